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

/* Rows of a norm that are computed side by side: one alone would wait for its sums. Each row's order of operations is that of one alone. */
enum { NORM_ROWS = 4 };

SKY_INLINE void norm_rows(const int rows, const sky_norm *n, int first)
{
    const int d = n->x.cols, whole = d / VL * VL, tail = d - whole;
    const float inv_d = 1.0f / (float)d;
    const float *x = n->x.data + (ptrdiff_t)first * n->x.stride;
    float *y = n->y.data + (ptrdiff_t)first * n->y.stride;
    const ptrdiff_t x_stride = n->x.stride, y_stride = n->y.stride;

    vf sum[NORM_ROWS], mean[NORM_ROWS], squares[NORM_ROWS], scale[NORM_ROWS];
    float mean_x[NORM_ROWS];
    SKY_UNROLL
    for (int i = 0; i < rows; i++)
        sum[i] = squares[i] = v_set1(0.0f);
    for (int j = 0; j < whole; j += VL) {
        SKY_UNROLL
        for (int i = 0; i < rows; i++)
            sum[i] = v_add(sum[i], v_load(x + i * x_stride + j));
    }
    SKY_UNROLL
    for (int i = 0; i < rows; i++) {
        if (tail)
            sum[i] = v_add(sum[i], v_load_part(x + i * x_stride + whole, tail));
        mean_x[i] = v_sum(sum[i]) * inv_d;
        mean[i] = v_set1(mean_x[i]);
    }

    for (int j = 0; j < whole; j += VL) {
        SKY_UNROLL
        for (int i = 0; i < rows; i++) {
            const vf delta = v_sub(v_load(x + i * x_stride + j), mean[i]);
            squares[i] = v_fma(delta, delta, squares[i]);
        }
    }
    SKY_UNROLL
    for (int i = 0; i < rows; i++) {
        float variance = v_sum(squares[i]);
        for (int j = whole; j < d; j++) {
            const float delta = x[i * x_stride + j] - mean_x[i];
            variance += delta * delta;
        }
        scale[i] = v_set1(1.0f / sqrtf(variance * inv_d + n->eps));
    }

    for (int j = 0; j < whole; j += VL) {
        const vf weight = v_load(n->weight + j), bias = n->bias ? v_load(n->bias + j) : v_set1(0.0f);
        SKY_UNROLL
        for (int i = 0; i < rows; i++) {
            const vf z = v_mul(v_sub(v_load(x + i * x_stride + j), mean[i]), scale[i]);
            v_store(y + i * y_stride + j, n->bias ? v_fma(z, weight, bias) : v_mul(z, weight));
        }
    }
    if (tail) {
        SKY_UNROLL
        for (int i = 0; i < rows; i++) {
            vf z = v_mul(v_sub(v_load_part(x + i * x_stride + whole, tail), mean[i]), scale[i]);
            z = v_mul(z, v_load_part(n->weight + whole, tail));
            if (n->bias)
                z = v_add(z, v_load_part(n->bias + whole, tail));
            v_store_part(y + i * y_stride + whole, z, tail);
        }
    }
}

static void layer_norm(const sky_norm *n)
{
    int row = 0;
    for (; row + NORM_ROWS <= n->x.rows; row += NORM_ROWS)
        norm_rows(NORM_ROWS, n, row);
    for (; row < n->x.rows; row++)
        norm_rows(1, n, row);
}

#endif
