# Questions that are asked again and again: their heads laid out once, and the state copied in behind each. Included by
# _core.pyx.

from libc.math cimport exp, isfinite
from libc.string cimport memcpy


cdef class CoreHeads:
    """The heads of some questions, end to end: every sequence but for its state and last [SEP]. Immutable.

    `heads`: for each (head ids, marker positions, question type). Sequences have at most `max_tokens` tokens.
    """

    cdef readonly int n, n_markers, max_tokens
    cdef int sep_id
    cdef int32_t[::1] ids, offsets, markers, marker_offsets, question_types

    def __cinit__(self, list heads not None, *, int max_tokens, int sep_id):
        self.n, self.max_tokens, self.sep_id = len(heads), max_tokens, sep_id
        self.ids = np.array([token_id for ids, _, _ in heads for token_id in ids] or [0], np.int32)
        self.offsets = np.cumsum([0] + [len(ids) for ids, _, _ in heads], dtype=np.int32)
        self.markers = np.array([at for _, markers, _ in heads for at in markers] or [0], np.int32)
        self.marker_offsets = np.cumsum([0] + [len(markers) for _, markers, _ in heads], dtype=np.int32)
        self.question_types = np.array([kind for _, _, kind in heads] or [0], np.int32)
        self.n_markers = self.marker_offsets[self.n]

    cdef int used(self, int q, int n_state) noexcept nogil:
        """How many of a state's tokens head q leaves room for."""
        return min(n_state, max(0, self.max_tokens - (self.offsets[q + 1] - self.offsets[q]) - 1))

    def state_tokens_used(self, int n_state) -> list:
        """How many of `n_state` tokens each head leaves room for."""
        return [self.used(q, n_state) for q in range(self.n)]

    cpdef int n_tokens(self, int n_state) noexcept:
        """Tokens of all sequences together, for a state of `n_state` tokens."""
        cdef int q, total = 0
        for q in range(self.n):
            total += min(self.offsets[q + 1] - self.offsets[q] + self.used(q, n_state) + 1, self.max_tokens)
        return total

    cdef int put(self, CorePlan plan, list state_ids, bint keep_tail) except -1:
        """[head] [state] [SEP] for each question, into the buffers of a plan.

        Raises:
            ValueError: the plan is too small.
        """
        cdef int n_state = <int>min(len(state_ids), self.max_tokens)
        cdef Py_ssize_t first = len(state_ids) - n_state if keep_tail else 0
        cdef int q, i, n_head, used, end = 0
        if not plan.holds(self.n_tokens(n_state), self.n, self.n_markers, self.max_tokens):
            raise ValueError("these heads and this state are larger than the plan")
        for i in range(n_state):
            plan.state[i] = state_ids[first + i]
        for q in range(self.n):
            n_head, used = self.offsets[q + 1] - self.offsets[q], self.used(q, n_state)
            memcpy(&plan.token_ids[end], &self.ids[self.offsets[q]],
                   <size_t>min(n_head, self.max_tokens) * sizeof(int32_t))
            if used:
                memcpy(&plan.token_ids[end + n_head], &plan.state[n_state - used if keep_tail else 0],
                       <size_t>used * sizeof(int32_t))
            if n_head + used < self.max_tokens:
                plan.token_ids[end + n_head + used] = self.sep_id
            end += min(n_head + used + 1, self.max_tokens)
            plan.token_offsets[q + 1] = end
        memcpy(&plan.markers[0], &self.markers[0], <size_t>self.n_markers * sizeof(int32_t))
        memcpy(&plan.marker_offsets[0], &self.marker_offsets[0], <size_t>(self.n + 1) * sizeof(int32_t))
        memcpy(&plan.question_types[0], &self.question_types[0], <size_t>self.n * sizeof(int32_t))
        return 0


cdef class CoreStepper:
    """A plan for the same questions over and over. One thread at a time may step.

    `temperatures`: of each question; `options`: for each, the caller's option that each marker stands for.
    """

    cdef CorePlan plan
    cdef CoreHeads heads
    cdef int32_t[::1] option_of
    cdef double[::1] temperatures

    def __cinit__(self, CoreModel model not None, CoreHeads heads not None, list temperatures not None,
                  list options not None, *, int n_threads=1):
        if len(temperatures) != heads.n or [len(order) for order in options] != np.diff(heads.marker_offsets).tolist():
            raise ValueError("expected a temperature and an option for each marker of every head")
        self.heads = heads
        self.plan = CorePlan(model, n_tokens=max(heads.n, 1) * heads.max_tokens, n_sequences=max(heads.n, 1),
                             n_markers=heads.n_markers, sequence_tokens=heads.max_tokens, n_threads=n_threads)
        self.option_of = np.array([option for order in options for option in order] or [0], np.int32)
        self.temperatures = np.array(temperatures or [0], np.float64)

    def step(self, list state_ids not None, bint keep_tail, float[::1] probabilities not None,
             int n_threads=1) -> bool:
        """Writes the softmax of every question, options in the caller's order. False where scores are not finite."""
        if probabilities.shape[0] != self.heads.n_markers:
            raise ValueError(f"expected room for {self.heads.n_markers} probabilities")
        if not sky_plan_claim(self.plan.handle):
            raise RuntimeError("these compiled questions are stepping in another thread")
        try:
            sky_plan_use_threads(self.plan.handle, n_threads)
            if self.heads.n == 0:
                return True
            self.heads.put(self.plan, state_ids, keep_tail)
            self.plan.forward(self.heads.n)
            return self._softmax(probabilities)
        finally:
            sky_plan_yield(self.plan.handle)

    cdef bint _softmax(self, float[::1] probabilities) noexcept nogil:
        cdef int q, i, begin, end
        cdef double peak, total
        cdef bint finite = True
        cdef const float *logits = &self.plan.logits[0]
        for q in range(self.heads.n):
            begin, end = self.heads.marker_offsets[q], self.heads.marker_offsets[q + 1]
            peak = logits[begin]
            for i in range(begin, end):
                finite &= isfinite(logits[i]) != 0
                peak = max(peak, <double>logits[i])
            total = 0.0
            for i in range(begin, end):
                total += exp((logits[i] - peak) / self.temperatures[q])
            for i in range(begin, end):
                probabilities[begin + self.option_of[i]] = <float>(
                    exp((logits[i] - peak) / self.temperatures[q]) / total)
        return finite
