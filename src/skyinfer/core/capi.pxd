# The C API of csrc/skyinfer.h, and the kernel table of csrc/kernels/kernels.h for tests and benchmarks.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint64_t


cdef extern from "float_mode.h" nogil:
    ctypedef unsigned long long sky_float_mode  # as large as the machine's control word
    sky_float_mode sky_float_mode_enter()
    void sky_float_mode_leave(sky_float_mode before)


cdef extern from "skyinfer.h" nogil:
    ctypedef enum sky_status:
        SKY_OK
        SKY_ERR_ARGUMENT
        SKY_ERR_SHAPE
        SKY_ERR_STATE
        SKY_ERR_ISA
        SKY_ERR_CAPACITY
        SKY_ERR_MEMORY

    ctypedef enum sky_option_layout:
        SKY_OPTIONS_SEQUENTIAL
        SKY_OPTIONS_PARALLEL

    ctypedef enum sky_activation:
        SKY_ACT_GELU
        SKY_ACT_SILU
        SKY_ACT_GELU_TANH
        SKY_ACT_GELU_QUICK
        SKY_ACT_GELU_CLIPPED
        SKY_ACT_RELU
        SKY_ACT_RELU_SQUARED
        SKY_ACT_RELU6
        SKY_ACT_RELU_LEAKY
        SKY_ACT_TANH
        SKY_ACT_SIGMOID
        SKY_ACT_LINEAR
        SKY_ACT_HARDSWISH
        SKY_ACT_MISH

    enum:
        SKY_N_QUESTION_TYPES
        SKY_MAX_D_MODEL
        SKY_MAX_D_FF
        SKY_MAX_VOCAB
        SKY_MAX_BLOCKS
        SKY_MAX_D_HEAD
        SKY_MAX_THREADS

    ctypedef enum sky_architecture:
        SKY_ARCH_S1
        SKY_ARCH_S2

    ctypedef enum sky_precision:
        SKY_PRECISION_EXACT
        SKY_PRECISION_INT8

    ctypedef enum sky_dtype:
        SKY_DTYPE_F32
        SKY_DTYPE_F16
        SKY_DTYPE_BF16
        SKY_DTYPE_Q8_0

    const char *sky_isa_name(int index)
    int sky_isa_supported(const char *name)

    ctypedef struct sky_model:
        pass

    ctypedef struct sky_model_params:
        sky_architecture architecture
        int32_t d_model
        int32_t d_ff
        int32_t n_vocab
        int32_t n_layers
        int32_t n_heads
        int32_t n_decision_blocks
        int32_t n_decision_heads
        int32_t window
        int32_t max_positions
        float norm_eps
        float rope_base_global
        float rope_base_local
        sky_activation activation
        sky_option_layout option_layout
        sky_precision precision
        const uint8_t *layer_is_global
        const sky_dtype *dtypes
        size_t widened_bytes
        size_t qkv_table_bytes
        const char *isa
        int32_t n_cpus

    ctypedef struct sky_tensor:
        char name[64]
        int32_t n_dims
        int64_t rows
        int64_t cols

    int sky_tensors(const sky_model_params *params, sky_tensor *tensors, int most)
    void sky_widen_bf16(const uint16_t *inp, int64_t n, float *out)

    sky_status sky_model_create(const sky_model_params *params, sky_model **model)
    sky_status sky_model_measure(const sky_model_params *params, sky_model **model)
    sky_status sky_model_set(sky_model *model, const char *name, sky_dtype dtype, int64_t rows, int64_t cols,
                             const void *data)
    sky_status sky_model_set_rows(sky_model *model, const char *name, sky_dtype dtype, int64_t first_row, int64_t rows,
                                  int64_t cols, const void *data)
    sky_status sky_model_freeze(sky_model *model)
    void sky_model_error(const sky_model *model, char *text, size_t n_bytes)
    const char *sky_model_isa(const sky_model *model)
    size_t sky_model_bytes(const sky_model *model)
    int64_t sky_model_parameters(const sky_model *model, sky_dtype dtype)
    void sky_model_free(sky_model *model)

    ctypedef struct sky_plan:
        pass

    ctypedef struct sky_plan_limits:
        int32_t n_tokens
        int32_t n_sequences
        int32_t n_markers
        int32_t sequence_tokens
        int32_t n_threads

    ctypedef struct sky_batch:
        int32_t n_sequences
        const int32_t *token_ids
        const int32_t *token_offsets
        const int32_t *markers
        const int32_t *marker_offsets
        const int32_t *question_types

    ctypedef void sky_trace_fn(void *context, const char *name, const float *data, int rows, int cols, int stride) noexcept

    sky_status sky_plan_create(const sky_model *model, const sky_plan_limits *limits, sky_plan **plan)
    const char *sky_plan_error(const sky_plan *plan)
    void sky_plan_free(sky_plan *plan)
    int sky_plan_threads(const sky_plan *plan)
    int sky_plan_claim(sky_plan *plan)
    void sky_plan_release(sky_plan *plan)
    sky_status sky_run(sky_plan *plan, const sky_batch *batch, float *logits)
    void sky_plan_trace(sky_plan *plan, sky_trace_fn *fn, void *context)

    ctypedef struct sky_questions:
        pass

    ctypedef struct sky_question_list:
        int32_t n_questions
        int32_t sep_id
        const int32_t *token_ids
        const int32_t *token_offsets
        const int32_t *markers
        const int32_t *marker_offsets
        const int32_t *options
        const int32_t *question_types
        const int32_t *max_tokens
        const int32_t *option_ids
        const int32_t *option_offsets
        int32_t n_threads

    ctypedef struct sky_ask:
        const sky_questions *questions
        int32_t first
        int32_t n
        const int32_t *state_ids
        int64_t n_state
        int32_t keep_tail

    sky_status sky_questions_create(const sky_model *model, const sky_question_list *list, sky_questions **questions)
    const char *sky_questions_error(const sky_questions *questions)
    size_t sky_questions_bytes(const sky_questions *questions)
    void sky_questions_free(sky_questions *questions)
    int32_t sky_ask_sequence(const sky_ask *ask, int32_t question, int32_t *token_ids, int32_t *n_state_used)
    sky_status sky_run_asks(sky_plan *plan, const sky_ask *asks, int32_t n_asks, int32_t pass_tokens, float *logits)
    sky_status sky_measure_asks(const sky_ask *asks, int32_t n_asks, int32_t pass_tokens, sky_plan_limits *largest,
                                int64_t *n_tokens, int64_t *n_markers)
    int sky_probabilities(const sky_questions *questions, const float *logits, const double *temperatures, double *p)

    ctypedef struct sky_answers:
        float *probabilities
        int32_t *labels
        float *values
        float *confidence
        uint8_t *truncated
    int64_t sky_write_answers(const sky_questions *questions, const float *logits, const int64_t *n_state, int64_t n,
                              const double *temperatures, double *p, const sky_answers *out)


cdef extern from "kernels/kernels.h" nogil:
    ctypedef enum sky_epilogue:
        SKY_EPILOGUE_LINEAR
        SKY_EPILOGUE_RELU
        SKY_EPILOGUE_GELU
        SKY_EPILOGUE_GATED

    ctypedef struct sky_matrix:
        float *data
        int stride
        int rows
        int cols

    ctypedef struct sky_gemm:
        sky_matrix a
        const void *panels
        const float *bias
        sky_matrix residual
        sky_matrix c
        sky_epilogue epilogue
        sky_activation act
        float *scratch
        const char *a_int8

    size_t sky_gemm_scratch(int k, sky_epilogue epilogue)
    size_t sky_int8_scratch(int k)

    ctypedef struct sky_norm:
        sky_matrix x
        const float *weight
        const float *bias
        float eps
        sky_matrix y

    ctypedef struct sky_attention:
        sky_matrix q
        sky_matrix k
        sky_matrix v
        sky_matrix out
        const float *rope_cos
        const float *rope_sin
        int window
        float scale
        float *scratch
        const int32_t *position
        const int32_t *option

    size_t sky_int8_row_bytes(int k)

    size_t sky_attention_scratch(int n_keys, int d_head)

    ctypedef enum sky_weight_type:
        SKY_WEIGHT_F32
        SKY_WEIGHT_F16
        SKY_WEIGHT_BF16
        SKY_WEIGHT_INT8
        SKY_WEIGHT_INT8_ROWS
        SKY_N_WEIGHT_TYPES

    ctypedef void sky_gemm_fn(const sky_gemm *g, int panel_begin, int panel_end) noexcept nogil

    ctypedef struct sky_kernels:
        const char *isa
        int tile_rows
        int panel_cols
        sky_gemm_fn **gemm
        void (*quantize_rows)(sky_matrix x, const float *factors, char *out) noexcept nogil
        void (*layer_norm)(const sky_norm *n) noexcept nogil
        void (*attention)(const sky_attention *a) noexcept nogil
        void (*widen_f16)(const uint16_t *inp, int n, float *out) noexcept nogil
        void (*fma_peak)(int rounds, float *sink) noexcept nogil


cdef extern from "internal.h" nogil:
    ctypedef struct sky_linear:
        sky_weight_type type
        int n
        int k
        int gated
        void *panels
        float *bias
        float *factors
        int has_factors

    sky_status sky_kernels_select(const char *isa, sky_kernels *table)
    size_t sky_panel_bytes(const sky_kernels *kernels, const sky_linear *w)
    int sky_pack(const sky_kernels *kernels, sky_linear *w, sky_weight_type type, const void *data, int first_row)
    enum: SKY_ALIGN
    void *sky_alloc(size_t nbytes)
    void sky_release(void *memory)
