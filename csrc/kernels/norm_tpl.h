/* LayerNorm, and 16-bit numbers as floats, over an instruction set's vector primitives; included after vec_tpl.h. */
#ifndef SKY_NORM_TPL_H
#define SKY_NORM_TPL_H

#include <string.h>

static void widen_f16(const uint16_t *in, int n, float *out)
{
    int i = 0;
    for (; i + VL <= n; i += VL)
        v_store(out + i, v_load_f16(in + i));
    if (i < n) {
        uint16_t tail[VL] = {0};
        memcpy(tail, in + i, (size_t)(n - i) * sizeof *in);
        v_store_part(out + i, v_load_f16(tail), n - i);
    }
}

static void layer_norm(const sky_norm *n)
{
    const int d = n->x.cols, whole = d / VL * VL, tail = d - whole;
    const float inv_d = 1.0f / (float)d;
    for (int row = 0; row < n->x.rows; row++) {
        const float *x = n->x.data + (ptrdiff_t)row * n->x.stride;
        float *y = n->y.data + (ptrdiff_t)row * n->y.stride;

        vf sum = v_set1(0.0f);
        for (int j = 0; j < whole; j += VL)
            sum = v_add(sum, v_load(x + j));
        if (tail)
            sum = v_add(sum, v_load_part(x + whole, tail));
        const float mean_x = v_sum(sum) * inv_d;
        const vf mean = v_set1(mean_x);

        vf squares = v_set1(0.0f);
        for (int j = 0; j < whole; j += VL) {
            const vf delta = v_sub(v_load(x + j), mean);
            squares = v_fma(delta, delta, squares);
        }
        float variance = v_sum(squares);
        for (int j = whole; j < d; j++) {
            const float delta = x[j] - mean_x;
            variance += delta * delta;
        }
        const vf scale = v_set1(1.0f / sqrtf(variance * inv_d + n->eps));

        for (int j = 0; j < whole; j += VL) {
            vf z = v_mul(v_sub(v_load(x + j), mean), scale);
            z = n->bias ? v_fma(z, v_load(n->weight + j), v_load(n->bias + j)) : v_mul(z, v_load(n->weight + j));
            v_store(y + j, z);
        }
        if (tail) {
            vf z = v_mul(v_sub(v_load_part(x + whole, tail), mean), scale);
            z = v_mul(z, v_load_part(n->weight + whole, tail));
            if (n->bias)
                z = v_add(z, v_load_part(n->bias + whole, tail));
            v_store_part(y + whole, z, tail);
        }
    }
}

#endif
