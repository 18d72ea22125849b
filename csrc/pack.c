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

void sky_widen(const sky_kernels *kernels, sky_weight_type type, const void *data, size_t first, int n, float *out)
{
    if (type == SKY_WEIGHT_F32)
        memcpy(out, (const float *)data + first, (size_t)n * sizeof(float));
    else if (type == SKY_WEIGHT_F16)
        kernels->widen_f16((const uint16_t *)data + first, n, out);
    else if (type == SKY_WEIGHT_INT8)
        sky_widen_q8_0(kernels, data, first, n, out);
    else
        sky_widen_bf16((const uint16_t *)data + first, n, out);
}

int sky_all_finite(sky_weight_type type, const void *data, size_t n)
{
    if (type == SKY_WEIGHT_INT8)
        return sky_q8_0_finite(data, n / SKY_INT8_BLOCK);
    if (type == SKY_WEIGHT_F32) {
        const float *values = data;
        float worst = 0.0f; /* x - x is 0 for every number, and NaN for what is none; a sum of those stays NaN */
        for (size_t i = 0; i < n; i++)
            worst += values[i] - values[i];
        return worst == 0.0f;
    }
    const uint16_t *halves = data, exponent = type == SKY_WEIGHT_F16 ? 0x7C00 : 0x7F80;
    uint16_t faults = 0;
    for (size_t i = 0; i < n; i++)
        faults |= (halves[i] & exponent) == exponent;
    return faults == 0;
}

int sky_panel_row(const sky_linear *w, int panel_cols, int panel, int col)
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
    if (sky_is_int8(w->type))
        return sky_int8_panel_bytes(w->type, w->k, kernels->panel_cols);
    return (size_t)kernels->panel_cols * sky_row_bytes(w->type, w->k);
}

enum { K_BLOCK = 128 }; /* rows of a panel by this many columns stay in the L1 cache */

/* panel [count][cols] = the transpose of rows [cols][K_BLOCK] */
static void pack_halves(const uint16_t *rows, int cols, int count, uint16_t *panel)
{
    for (int j = 0; j < count; j++)
        for (int i = 0; i < cols; i++)
            panel[j * cols + i] = rows[i * K_BLOCK + j];
}

int sky_pack(const sky_kernels *kernels, sky_linear *w, sky_weight_type type, const void *data, int first_row)
{
    const int cols = kernels->panel_cols;
    if (sky_is_int8(w->type))
        return sky_pack_int8(kernels, w, type, data, first_row);
    const size_t item = sky_row_bytes(w->type, 1);
    int finite = 1;
    for (int panel = 0; panel < sky_n_panels(kernels, w); panel++)
        for (int k0 = 0; k0 < w->k; k0 += K_BLOCK) {
            const int count = w->k - k0 < K_BLOCK ? w->k - k0 : K_BLOCK;
            union { /* as w's type is */
                float floats[SKY_MAX_PANEL_COLS * K_BLOCK];
                uint16_t halves[SKY_MAX_PANEL_COLS * K_BLOCK];
            } rows;
            for (int col = 0; col < cols; col++) {
                const int row = sky_panel_row(w, cols, panel, col);
                const size_t from = (size_t)(first_row + row) * w->k + k0;
                void *out = (char *)&rows + col * K_BLOCK * item;
                if (row < 0) {
                    memset(out, 0, (size_t)count * item);
                    continue;
                }
                if (w->type == SKY_WEIGHT_F32)
                    sky_widen(kernels, type, data, from, count, out);
                else
                    memcpy(out, (const char *)data + from * item, (size_t)count * item);
                finite &= sky_all_finite(w->type, out, (size_t)count);
            }
            void *packed = (char *)w->panels + panel * sky_panel_bytes(kernels, w) + (size_t)k0 * cols * item;
            if (w->type == SKY_WEIGHT_F32)
                kernels->pack_panel(rows.floats, K_BLOCK, count, packed);
            else
                pack_halves(rows.halves, cols, count, packed);
        }
    return finite;
}
