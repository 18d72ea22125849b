/* Weights from a file's number types into the panels of an instruction set (kernels/kernels.h has the layout). */
#include "internal.h"

#include <string.h>

void sky_widen_bf16(const uint16_t *in, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = (uint32_t)in[i] << 16;
        memcpy(out + i, &bits, sizeof bits);
    }
}

int sky_read_floats(const sky_kernels *kernels, sky_dtype dtype, const void *data, size_t first, int n, float *out)
{
    const uint16_t *half = (const uint16_t *)data + first;
    if (dtype == SKY_DTYPE_F32)
        memcpy(out, (const float *)data + first, (size_t)n * sizeof(float));
    else if (dtype == SKY_DTYPE_F16)
        kernels->widen_f16(half, n, out);
    else
        sky_widen_bf16(half, n, out);
    float worst = 0.0f; /* x - x is 0 for every number, and NaN for what is none; a sum of those stays NaN */
    for (int i = 0; i < n; i++)
        worst += out[i] - out[i];
    return worst == 0.0f;
}

/* The row of w that stands in column `col` of panel `panel`, or -1 for padding. */
static int panel_row(const sky_linear *w, int panel_cols, int panel, int col)
{
    const int half = panel_cols / 2;
    int row;
    if (!w->gated) {
        row = panel * panel_cols + col;
        return row < w->n ? row : -1;
    }
    row = panel * half + col % half;
    if (row >= w->n / 2)
        return -1;
    return col < half ? row : row + w->n / 2;
}

size_t sky_panel_bytes(const sky_kernels *kernels, const sky_linear *w)
{
    return (size_t)kernels->panel_cols * w->k * sizeof(float);
}

int sky_pack(const sky_kernels *kernels, sky_linear *w, sky_dtype dtype, const void *data, int first_row)
{
    enum { K_BLOCK = 128 }; /* rows of a panel by this many columns stay in the L1 cache */
    const int cols = kernels->panel_cols;
    int finite = 1;
    for (int panel = 0; panel < sky_n_panels(kernels, w); panel++) {
        float *packed = (float *)((char *)w->panels + panel * sky_panel_bytes(kernels, w));
        for (int k0 = 0; k0 < w->k; k0 += K_BLOCK) {
            const int count = w->k - k0 < K_BLOCK ? w->k - k0 : K_BLOCK;
            float rows[SKY_MAX_PANEL_COLS * K_BLOCK];
            for (int col = 0; col < cols; col++) {
                const int row = panel_row(w, cols, panel, col);
                float *out = rows + col * K_BLOCK;
                if (row < 0)
                    memset(out, 0, (size_t)count * sizeof *out);
                else
                    finite &= sky_read_floats(kernels, dtype, data, (size_t)(first_row + row) * w->k + k0, count, out);
            }
            kernels->pack_panel(rows, K_BLOCK, count, packed + (size_t)k0 * cols);
        }
    }
    return finite;
}
