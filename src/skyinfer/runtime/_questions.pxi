# Questions that are asked again and again: their prefixes laid out once, and the state copied in behind each. Included by
# _core.pyx.

from libc.math cimport exp, isfinite
from libc.string cimport memcpy


cdef class CorePrefixes:
    """The prefixes of some questions, end to end: every sequence but for its state and last [SEP]. Immutable.

    `prefixes`: for each (prefix ids, marker positions, question type, tokens that its whole sequence may have).
    """

    cdef readonly int n
    cdef int sep_id
    cdef int32_t[::1] ids, offsets, markers, marker_offsets, question_types, max_tokens
    cdef readonly int longest

    def __cinit__(self, list prefixes not None, *, int sep_id):
        self.n, self.sep_id = len(prefixes), sep_id
        self.ids = _as_int32([token_id for ids, _, _, _ in prefixes for token_id in ids])
        self.offsets = _as_int32(np.cumsum([0] + [len(ids) for ids, _, _, _ in prefixes]))
        self.markers = _as_int32([at for _, markers, _, _ in prefixes for at in markers])
        self.marker_offsets = _as_int32(np.cumsum([0] + [len(markers) for _, markers, _, _ in prefixes]))
        self.question_types = _as_int32([kind for _, _, kind, _ in prefixes])
        self.max_tokens = _as_int32([most for _, _, _, most in prefixes])
        self.longest = max([most for _, _, _, most in prefixes], default=0)

    cdef int used(self, int q, int n_state) noexcept nogil:
        """How many of a state's tokens prefix q leaves room for."""
        return min(n_state, max(0, self.max_tokens[q] - (self.offsets[q + 1] - self.offsets[q]) - 1))

    cdef int length(self, int q, int n_state) noexcept nogil:
        """Tokens of the whole sequence of prefix q."""
        return min(self.offsets[q + 1] - self.offsets[q] + self.used(q, n_state) + 1, self.max_tokens[q])

    cdef int kept(self, object n_state) except -1:
        """How many of `n_state` tokens any prefix could take: no more than fit into an int."""
        return min(n_state, self.longest)

    def n_tokens(self, n_state) -> int:
        """Tokens of all sequences together, for a state of `n_state` tokens."""
        cdef int64_t total = 0
        cdef int kept = self.kept(n_state)
        for q in range(self.n):
            total += self.length(q, kept)
        return total

    def batch(self, int first, n_state, int most_tokens) -> tuple[int, int, int]:
        """The longest run of prefixes from `first` on that one forward pass over `most_tokens` holds, at least one prefix:
        (first prefix after it, its tokens, its markers)."""
        cdef int last = first, length, kept = self.kept(n_state)
        cdef int64_t n_tokens = 0
        while last < self.n:
            length = self.length(last, kept)
            if last > first and n_tokens + length > most_tokens:
                break
            n_tokens += length
            last += 1
        return last, n_tokens, self.marker_offsets[last] - self.marker_offsets[first]

    cdef int lay_out(self, CorePlan plan, int first, int last, list state_ids, bint keep_tail) except -1:
        """[prefix] [state] [SEP] for each question, into the buffers of a plan, as sequence.SequenceBuilder.assemble does.

        Raises:
            ValueError: the plan is too small.
        """
        cdef int n_state = self.kept(len(state_ids)), n_markers = self.marker_offsets[last] - self.marker_offsets[first]
        cdef Py_ssize_t begin = len(state_ids) - n_state if keep_tail else 0
        cdef int q, i, n_head, used, length, end = 0
        cdef int64_t n_tokens = 0
        for q in range(first, last):
            n_tokens += self.length(q, n_state)
        if n_tokens > plan.limits.n_tokens or not plan.holds(n_tokens, last - first, n_markers, self.longest):
            raise ValueError("these prefixes and this state are larger than the plan")
        for i in range(n_state):
            plan.state[i] = _as_token(state_ids[begin + i])
        for q in range(first, last):
            n_head, used = self.offsets[q + 1] - self.offsets[q], self.used(q, n_state)
            length = self.length(q, n_state)
            memcpy(&plan.token_ids[end], &self.ids[self.offsets[q]],
                   <size_t>min(n_head, length) * sizeof(int32_t))
            if used:
                memcpy(&plan.token_ids[end + n_head], &plan.state[n_state - used if keep_tail else 0],
                       <size_t>used * sizeof(int32_t))
            if n_head + used < length:
                plan.token_ids[end + n_head + used] = self.sep_id
            end += length
            plan.token_offsets[q - first + 1] = end
            plan.marker_offsets[q - first + 1] = self.marker_offsets[q + 1] - self.marker_offsets[first]
        memcpy(&plan.markers[0], &self.markers[self.marker_offsets[first]], <size_t>n_markers * sizeof(int32_t))
        memcpy(&plan.question_types[0], &self.question_types[first], <size_t>(last - first) * sizeof(int32_t))
        return 0


cdef object _as_int32(values):
    """A buffer of int32 with an element more, so that the place behind the last one is an address, too."""
    return np.append(np.asarray(values, np.int32), np.int32(0))


cdef class CoreStepper:
    """A plan for the same questions over and over. One thread at a time may step.

    `temperatures`: of each question; `options`: for each, the caller's option that each marker stands for. One forward
    pass takes at most `batch_tokens` tokens, or one question.
    """

    cdef CorePlan plan
    cdef CorePrefixes prefixes
    cdef int batch_tokens
    cdef int32_t[::1] option_of
    cdef double[::1] temperatures

    def __cinit__(self, CoreModel model not None, CorePrefixes prefixes not None, list temperatures not None,
                  list options not None, *, int batch_tokens, int n_threads=1):
        if len(temperatures) != prefixes.n or [len(order) for order in options] != [
                prefixes.marker_offsets[q + 1] - prefixes.marker_offsets[q] for q in range(prefixes.n)]:
            raise ValueError("expected a temperature and an option for each marker of every prefix")
        self.prefixes, self.batch_tokens = prefixes, batch_tokens
        most_tokens = min(max(prefixes.n, 1) * max(prefixes.longest, 1), max(batch_tokens, prefixes.longest))
        self.plan = CorePlan(model, n_tokens=most_tokens, n_sequences=min(max(prefixes.n, 1), most_tokens),
                             n_markers=min(prefixes.marker_offsets[prefixes.n], most_tokens),
                             sequence_tokens=max(prefixes.longest, 1), n_threads=n_threads)
        self.option_of = _as_int32([option for order in options for option in order])
        self.temperatures = np.array(temperatures + [1.0], np.float64)

    def step(self, list state_ids not None, bint keep_tail, float[::1] probabilities not None) -> bool:
        """Writes the softmax of every question, options in the caller's order. False where scores are not finite."""
        cdef int first = 0, last
        cdef bint finite = True
        if probabilities.shape[0] != self.prefixes.marker_offsets[self.prefixes.n]:
            raise ValueError(f"expected room for {self.prefixes.marker_offsets[self.prefixes.n]} probabilities")
        if not sky_plan_claim(self.plan.handle):
            raise RuntimeError("these compiled questions are stepping in another thread")
        try:
            while first < self.prefixes.n:
                last, _, _ = self.prefixes.batch(first, len(state_ids), self.batch_tokens)
                self.prefixes.lay_out(self.plan, first, last, state_ids, keep_tail)
                self.plan.forward(last - first)
                finite &= self._softmax(first, last, probabilities)
                first = last
            return finite
        finally:
            sky_plan_release(self.plan.handle)

    cdef bint _softmax(self, int first, int last, float[::1] probabilities) noexcept nogil:
        cdef int q, i, begin, end, skipped = self.prefixes.marker_offsets[first]
        cdef double peak, total
        cdef bint finite = True
        cdef const float *logits = &self.plan.logits[0]
        for q in range(first, last):
            begin, end = self.prefixes.marker_offsets[q], self.prefixes.marker_offsets[q + 1]
            peak = logits[begin - skipped]
            for i in range(begin, end):
                finite &= isfinite(logits[i - skipped]) != 0
                peak = max(peak, <double>logits[i - skipped])
            total = 0.0
            for i in range(begin, end):
                total += exp((logits[i - skipped] - peak) / self.temperatures[q])
            for i in range(begin, end):
                probabilities[begin + self.option_of[i]] = <float>(
                    exp((logits[i - skipped] - peak) / self.temperatures[q]) / total)
        return finite
