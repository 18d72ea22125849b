# Part of border.pyx: asks, and the plans that run them. It is included there and not a module, because the core is linked once.

cdef int _check_out(const float[::1] out, Py_ssize_t n) except -1:
    if out.shape[0] != n:
        raise ValueError(f"out: expected [{n}], got [{out.shape[0]}]")
    return 0


cdef class CoreAsks:
    """Questions about states, to be run together.

    `asks`: for each (questions, its first question, how many of them, the state's token ids as int32 [n], whether the end of
    a state that does not fit is kept). A forward pass takes at most `pass_tokens` tokens, or one sequence.

    Attributes:
        n_tokens, n_markers: of all sequences; n_markers is how many scores come out.
    """

    cdef list asks  # keeps what is pointed at
    cdef sky_ask *items
    cdef int n, pass_tokens
    cdef sky_plan_limits largest  # pass
    cdef readonly long long n_tokens, n_markers

    def __cinit__(self, list asks not None, int pass_tokens):
        cdef CoreQuestions questions
        cdef const int32_t[::1] ids
        cdef sky_ask *item
        cdef int64_t n_tokens, n_markers
        cdef sky_status status
        self.asks, self.n, self.pass_tokens = list(asks), len(asks), pass_tokens
        self.items = <sky_ask *>PyMem_Malloc((self.n + 1) * sizeof(sky_ask))
        if self.items == NULL:
            raise MemoryError
        item = self.items
        for questions, first, n, state_ids, keep_tail in self.asks:
            ids = state_ids
            item.questions, item.first, item.n = questions.handle, first, n
            item.state_ids, item.n_state = &ids[0] if ids.shape[0] else NULL, ids.shape[0]
            item.keep_tail = keep_tail
            item += 1
        status = sky_measure_asks(self.items, self.n, pass_tokens, &self.largest, &n_tokens, &n_markers)
        if status != SKY_OK:
            raise ValueError("a set has no such questions")
        self.n_tokens, self.n_markers = n_tokens, n_markers

    def __dealloc__(self):
        PyMem_Free(self.items)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Of the largest pass: tokens, sequences, markers, and the tokens of its longest sequence."""
        return self.largest.n_tokens, self.largest.n_sequences, self.largest.n_markers, self.largest.sequence_tokens


cdef void _record(void *context, const char *name, const float *data, int rows, int cols, int stride) noexcept with gil:
    cdef const float[:, :] view
    recorded = <object>context
    if rows == 0:
        recorded[name.decode()] = np.zeros((0, cols), np.float32)
        return
    view = <const float[:rows, :stride]>data
    recorded[name.decode()] = np.array(view)[:, :cols].copy()


cdef class CorePlan:
    """Every buffer of a forward pass, for batches within its limits. One thread at a time may run it."""

    cdef sky_plan *handle
    cdef CoreModel model  # lives as long as its plans
    cdef sky_plan_limits limits

    def __cinit__(self, CoreModel model not None, *, int n_tokens, int n_sequences, int n_markers, int sequence_tokens,
                  int n_threads=1):
        cdef sky_status status
        self.model = model
        self.limits.n_tokens, self.limits.n_sequences = n_tokens, n_sequences
        self.limits.n_markers, self.limits.sequence_tokens = n_markers, sequence_tokens
        self.limits.n_threads = n_threads
        with nogil:
            status = sky_plan_create(model.handle, &self.limits, &self.handle)
        if status != SKY_OK:
            raise _error(status, sky_plan_error(self.handle))

    def __dealloc__(self):
        sky_plan_free(self.handle)

    def holds(self, CoreAsks asks not None) -> bool:
        """Whether all passes of the asks are within the limits."""
        return (asks.largest.n_tokens <= self.limits.n_tokens and asks.largest.n_sequences <= self.limits.n_sequences
                and asks.largest.n_markers <= self.limits.n_markers
                and asks.largest.sequence_tokens <= self.limits.sequence_tokens)

    def run(self, CoreAsks asks not None, out=None, trace=None):
        """One raw score for each marker of every sequence, in order: float32 [asks.n_markers], into `out` where it is given.

        `trace`, a dict, is filled with every activation by name, float32 [rows, cols]; of several passes that of the last.

        Raises:
            RuntimeError: another thread is running this plan.
            ValueError: a sequence is larger than the plan, or a token id is not in the vocabulary; or `out` is of another size.
        """
        if out is None:
            out = np.empty(asks.n_markers, np.float32)
        cdef float[::1] logits = out
        cdef sky_status status
        _check_out(logits, asks.n_markers)
        cdef float *first = &logits[0] if logits.shape[0] else NULL
        if not sky_plan_claim(self.handle):
            raise RuntimeError("this plan is running in another thread")
        try:
            if trace is not None:
                sky_plan_trace(self.handle, _record, <void *>trace)
            with nogil:
                status = sky_run_asks(self.handle, asks.items, asks.n, asks.pass_tokens, first)
            if status != SKY_OK:
                raise _error(status, sky_plan_error(self.handle))
            return out
        finally:
            sky_plan_trace(self.handle, NULL, NULL)
            sky_plan_release(self.handle)

    @property
    def threads(self) -> int:
        """How many threads the last pass might use: passes of one model that run at once divide theirs."""
        return sky_plan_threads(self.handle)


cdef class CoreStepper:
    """A plan for the same questions over and over. One thread at a time may step.

    `temperatures`: float64 [n], of each question. One forward pass takes at most `pass_tokens` tokens, or one question.
    """

    cdef CorePlan plan
    cdef CoreQuestions questions
    cdef int pass_tokens
    cdef float[::1] logits
    cdef const double[::1] temperatures
    cdef double[::1] p

    def __cinit__(self, CoreQuestions questions not None, const double[::1] temperatures not None, *, int pass_tokens,
                  int n_threads=1):
        if temperatures.shape[0] != questions.n:
            raise ValueError(f"expected {questions.n} temperatures, got {temperatures.shape[0]}")
        n_markers = questions.n_options()
        n_sequences = 1 if questions.reads_state_once else max(questions.n, 1)
        most_tokens = min(n_sequences * max(questions.longest, 1), max(pass_tokens, questions.longest))
        self.questions, self.pass_tokens, self.temperatures = questions, pass_tokens, temperatures
        most_sequences, most_markers = min(n_sequences, most_tokens), min(n_markers, most_tokens)
        if questions.reads_state_once:
            most_sequences = max(questions.n, 1)
            most_markers = min(n_markers, max(pass_tokens, np.diff(questions.offsets).max(initial=0)))
        self.plan = CorePlan(questions.model, n_tokens=most_tokens, n_sequences=most_sequences,
                             n_markers=most_markers, sequence_tokens=max(questions.longest, 1), n_threads=n_threads)
        self.logits, self.p = np.zeros(n_markers + 1, np.float32), np.zeros(n_markers + 1, np.float64)

    def step(self, const int32_t[::1] state_ids not None, bint keep_tail, float[::1] out not None) -> bool:
        """Writes the probability of every option of every question to out [offsets[n]]. False where scores are not finite.

        Raises:
            RuntimeError: another thread is stepping.
            ValueError: a token id is not in the vocabulary, or `out` is of another size.
        """
        cdef sky_ask ask = self.questions.ask(state_ids.shape[0])
        cdef sky_status status
        cdef int i, n_options = self.questions.n_options()
        cdef int finite = 1
        _check_out(out, n_options)
        if n_options == 0:
            return True
        if state_ids.shape[0]:
            ask.state_ids = &state_ids[0]
        ask.keep_tail = keep_tail
        if not sky_plan_claim(self.plan.handle):
            raise RuntimeError("these compiled questions are stepping in another thread")
        try:
            with nogil:
                status = sky_run_asks(self.plan.handle, &ask, 1, self.pass_tokens, &self.logits[0])
                if status == SKY_OK:
                    finite = sky_probabilities(self.questions.handle, &self.logits[0], &self.temperatures[0], &self.p[0])
            if status != SKY_OK:
                raise _error(status, sky_plan_error(self.plan.handle))
            for i in range(n_options if finite else 0):
                out[i] = <float>self.p[i]
            return finite != 0
        finally:
            sky_plan_release(self.plan.handle)
