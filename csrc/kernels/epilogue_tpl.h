/* What becomes of a register tile's sums, over an instruction set's vector primitives: bias, residual, activation, and the store of
 * the columns that there are. An instruction-set file defines TILE_ROWS and includes this after vec_tpl.h. PANEL_VECTORS vectors make
 * a panel, and a row of a tile.
 */
#ifndef SKY_EPILOGUE_TPL_H
#define SKY_EPILOGUE_TPL_H

#define PANEL_VECTORS 2
#define PANEL_COLS (PANEL_VECTORS * VL)

SKY_INLINE void store_cols(float *c, vf x0, vf x1, int cols)
{
    if (cols >= PANEL_COLS) {
        v_store(c, x0);
        v_store(c + VL, x1);
    } else if (cols > VL) {
        v_store(c, x0);
        v_store_part(c + VL, x1, cols - VL);
    } else {
        v_store_part(c, x0, cols);
    }
}

SKY_INLINE void load_cols(const float *c, int cols, vf *x0, vf *x1)
{
    if (cols >= PANEL_COLS) {
        *x0 = v_load(c);
        *x1 = v_load(c + VL);
    } else if (cols > VL) {
        *x0 = v_load(c);
        *x1 = v_load_part(c + VL, cols - VL);
    } else {
        *x0 = v_load_part(c, cols);
        *x1 = v_set1(0.0f);
    }
}

/* c's tile from the sums `t` [rows, PANEL_COLS]. Kept out of the tile so that each activation is compiled once. */
static void finish_spilled(const sky_gemm *g, const float *t, int rows, int row, int panel)
{
    if (g->epilogue == SKY_EPILOGUE_GATED) {
        const int first = panel * VL, cols = g->c.cols - first < VL ? g->c.cols - first : VL;
        for (int i = 0; i < rows; i++) {
            const vf up = v_load(t + i * PANEL_COLS), gate = v_load(t + i * PANEL_COLS + VL);
            const vf y = v_mul(g->act == SKY_ACT_GELU ? v_gelu(up) : v_activation(g->act, up), gate);
            float *c = g->c.data + (ptrdiff_t)(row + i) * g->c.stride + first;
            if (cols == VL)
                v_store(c, y);
            else
                v_store_part(c, y, cols);
        }
        return;
    }
    const int first = panel * PANEL_COLS, cols = g->c.cols - first;
    vf b0 = v_set1(0.0f), b1 = b0;
    if (g->bias)
        load_cols(g->bias + first, cols, &b0, &b1);
    for (int i = 0; i < rows; i++) {
        vf y0 = v_add(v_load(t + i * PANEL_COLS), b0), y1 = v_add(v_load(t + i * PANEL_COLS + VL), b1);
        if (g->epilogue == SKY_EPILOGUE_GELU) {
            y0 = v_gelu(y0);
            y1 = v_gelu(y1);
        } else if (g->epilogue == SKY_EPILOGUE_RELU) {
            y0 = v_max(v_set1(0.0f), y0);
            y1 = v_max(v_set1(0.0f), y1);
        } else if (g->residual.data) {
            vf r0, r1;
            load_cols(g->residual.data + (ptrdiff_t)(row + i) * g->residual.stride + first, cols, &r0, &r1);
            y0 = v_add(y0, r0);
            y1 = v_add(y1, r1);
        }
        store_cols(g->c.data + (ptrdiff_t)(row + i) * g->c.stride + first, y0, y1, cols);
    }
}

SKY_INLINE void spill_and_finish(const int rows, const sky_gemm *g, int row, int panel, vf acc[TILE_ROWS][PANEL_VECTORS])
{
    float spilled[TILE_ROWS * PANEL_COLS];
    SKY_UNROLL
    for (int i = 0; i < rows; i++) {
        v_store(spilled + i * PANEL_COLS, acc[i][0]);
        v_store(spilled + i * PANEL_COLS + VL, acc[i][1]);
    }
    finish_spilled(g, spilled, rows, row, panel);
}

/* c's tile from the sums acc, straight from the registers where that is simple. The usual activation of whole tiles is, too: a copy of
 * it in tiles of every height would double their code. */
SKY_INLINE void tile_finish(const int rows, const sky_gemm *g, int row, int panel, vf acc[TILE_ROWS][PANEL_VECTORS])
{
    if (rows == TILE_ROWS && g->epilogue == SKY_EPILOGUE_GATED && g->act == SKY_ACT_GELU && g->c.cols - panel * VL >= VL) {
        float *c = g->c.data + (ptrdiff_t)row * g->c.stride + panel * VL;
        SKY_UNROLL
        for (int i = 0; i < rows; i++)
            v_store(c + (ptrdiff_t)i * g->c.stride, v_mul(v_gelu(acc[i][0]), acc[i][1]));
        return;
    }
    if (g->epilogue != SKY_EPILOGUE_LINEAR) {
        spill_and_finish(rows, g, row, panel, acc);
        return;
    }
    const int first = panel * PANEL_COLS, cols = g->c.cols - first;
    vf b0 = v_set1(0.0f), b1 = b0;
    if (g->bias)
        load_cols(g->bias + first, cols, &b0, &b1);
    SKY_UNROLL
    for (int i = 0; i < rows; i++) {
        vf y0 = v_add(acc[i][0], b0), y1 = v_add(acc[i][1], b1);
        if (g->residual.data) {
            vf r0, r1;
            load_cols(g->residual.data + (ptrdiff_t)(row + i) * g->residual.stride + first, cols, &r0, &r1);
            y0 = v_add(y0, r0);
            y1 = v_add(y1, r1);
        }
        store_cols(g->c.data + (ptrdiff_t)(row + i) * g->c.stride + first, y0, y1, cols);
    }
}

#endif
