"""s2 in the core: options made ready, states encoded once, against the float64 reference and against itself."""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import numpy as np
import pytest
from reference import ReferenceConfig, SetReference

from skyinfer.core import border

ISAS = [name for name in border.isa_names() if border.isa_supported(name)]
CLS, SEP, VOCAB, WINDOW = 58, 59, 60, 8
SIZES = {"d_model": 128, "d_ff": 96, "n_vocab": VOCAB, "n_layers": 4, "n_decision_blocks": 2}
GLOBAL = (True, False, False, True)
TYPES = ("choice", "score", "noul")

_TOP = {
    "token_embd": "encoder.embeddings.tok_embeddings", "token_embd_norm": "encoder.embeddings.norm",
    "output_norm": "encoder.final_norm", "token_types": "type_emb", "cls.norm": "scorer.0", "cls": "scorer.1",
    "cls.output": "scorer.3",
}  # fmt: skip
_LAYER = {
    "attn_norm": "attn_norm", "attn_qkv": "attn.Wqkv", "attn_output": "attn.Wo", "ffn_norm": "mlp_norm",
    "ffn_up": "mlp.Wi", "ffn_down": "mlp.Wo",
}  # fmt: skip
_BLOCK = {
    "cross_attn_norm": "cross_norm.", "cross_attn_kv_norm": "cross_kv_norm.", "cross_attn_q": "cross_attn.q_proj.",
    "cross_attn_kv": "cross_attn.kv_proj.", "cross_attn_output": "cross_attn.out_proj.", "attn_norm": "norm1.",
    "attn_qkv": "self_attn.in_proj_", "attn_output": "self_attn.out_proj.", "ffn_norm": "norm2.", "ffn_up": "linear1.",
    "ffn_down": "linear2.",
}  # fmt: skip


class Asked(NamedTuple):
    """A question: sequences of its options, where their mask tokens are, its type."""

    option_ids: list[tuple[int, ...]]
    markers: list[int]
    kind: int


def checkpoint_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    _, number, part = stem.split(".")
    layer = int(number)
    if layer < len(GLOBAL):
        return f"encoder.layers.{layer}.{_LAYER[part]}.{kind}"
    return f"decision.layers.{layer - len(GLOBAL)}.{_BLOCK[part]}{kind}"


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(12)
    found = {}
    for name, shape in border.tensor_shapes(**SIZES, architecture="s2").items():
        values = rng.standard_normal(shape)
        if name.endswith("norm.weight"):
            values = 1.0 + 0.2 * values
        elif len(shape) == 2 and name != "token_embd.weight":
            values *= 1.4 / np.sqrt(shape[1])
        else:
            values *= 0.3
        found[name] = values.astype(np.float32)
    return found


WEIGHTS = weights()
REFERENCE = SetReference(
    ReferenceConfig(4, 1e-5, WINDOW, GLOBAL, 160000.0, 10000.0, "gelu", SIZES["n_decision_blocks"]),
    {checkpoint_name(name): values for name, values in WEIGHTS.items()},
)


def core_of(isa: str, table: bool = False, weights: str = "f32") -> border.CoreModel:
    """`weights`: as they are kept, "f32", "f16" or "int8"."""
    core = border.CoreModel(
        **SIZES, n_heads=4, n_decision_heads=2, window=WINDOW, max_positions=256, norm_eps=1e-5,
        rope_base_global=160000.0, rope_base_local=10000.0, activation="gelu", architecture="s2",
        layer_is_global=GLOBAL, qkv_table_bytes=1 << 20 if table else 0, isa=isa,
        precision="int8" if weights == "int8" else "exact",
    )  # fmt: skip
    for name, values in WEIGHTS.items():
        if weights == "f16" and values.ndim == 2:
            core.set(name, values.astype(np.float16), "f16")
        else:
            core.set(name, values)
    core.freeze()
    return core


def some_questions(rng: np.random.Generator, *sizes: tuple[int, int]) -> list[Asked]:
    """One for each (number of options, type)."""
    found = []
    for n_options, kind in sizes:
        ids = [tuple(rng.integers(0, CLS, rng.integers(4, 30)).tolist()) for _ in range(n_options)]
        found.append(Asked(ids, [int(rng.integers(0, len(one))) for one in ids], kind))
    return found


def made_ready(core: border.CoreModel, questions: list[Asked], **settings: int) -> border.CoreQuestions:
    return border.CoreQuestions(
        core,
        [((CLS,), one.markers, one.kind, 200) for one in questions],
        [list(range(len(one.markers))) for one in questions],
        sep_id=SEP,
        option_ids=list(itertools.chain.from_iterable(one.option_ids for one in questions)),
        **settings,
    )


def run(
    core: border.CoreModel, asks: list[border.Ask], pass_tokens: int = 2048, threads: int = 1,
    trace: dict[str, np.ndarray] | None = None,
) -> np.ndarray:  # fmt: skip
    batch = border.CoreAsks(asks, pass_tokens)
    n_tokens, n_sequences, n_markers, longest = batch.sizes
    plan = border.CorePlan(
        core, n_tokens=n_tokens, n_sequences=n_sequences, n_markers=n_markers, sequence_tokens=longest,
        n_threads=threads,
    )  # fmt: skip
    return plan.run(batch, None, trace)


def state_of(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, CLS, n).astype(np.int32)


QUESTIONS = some_questions(np.random.default_rng(1), (2, 0), (5, 1), (2, 2), (9, 0), (1, 0))


@functools.cache
def reference_options() -> list[np.ndarray]:
    return [REFERENCE.options(one.option_ids, one.markers, TYPES[one.kind]) for one in QUESTIONS]


@functools.cache
def reference(n: int) -> list[dict[str, np.ndarray]]:
    """Activations of each of the questions about a state of n tokens."""
    kept: list[dict[str, np.ndarray]] = [{} for _ in QUESTIONS]
    ids = [CLS, *state_of(n)[:198].tolist(), SEP]
    for options, keep in zip(reference_options(), kept, strict=True):
        REFERENCE.scores(ids, options, keep)
    return kept


@pytest.mark.parametrize("table", [False, True], ids=["products", "table"])
def test_scores_and_activations_are_the_references(isa: str, table: bool) -> None:
    core = core_of(isa, table)
    ready = made_ready(core, QUESTIONS)
    for n in (0, 7, 33, 198, 250):
        kept = reference(n)
        found: dict[str, np.ndarray] = {}
        scores = run(core, [(ready, 0, len(QUESTIONS), state_of(n), False)], trace=found)
        np.testing.assert_allclose(scores, np.concatenate([one["logits"] for one in kept]), rtol=0, atol=4e-5)
        assert set(kept[0]) - set(found) == {"head.0.attn_qkv", "head.1.attn_qkv", "head.0.cross_attn_norm"}
        assert set(found) <= set(kept[0])
        for name, values in found.items():
            if name == "logits":
                continue
            of_state = name.startswith("layer.") or name in ("embd_norm", "output_norm") or name.endswith("kv_norm")
            own = kept[0][name] if of_state else np.concatenate([one[name] for one in kept])
            scale = np.sqrt(np.square(own).mean())
            np.testing.assert_allclose(values, own, rtol=2e-5, atol=4e-5 * scale, err_msg=name)


@pytest.mark.parametrize("weights", ["f32", "f16", "int8"])
def test_bits_depend_on_nothing_beside_a_question_and_its_state(isa: str, weights: str) -> None:
    core = core_of(isa, weights=weights)
    rng = np.random.default_rng(3)
    questions = some_questions(rng, (4, 0), (2, 2), (11, 0), (3, 1), (40, 0))
    alone = [made_ready(core, [one]) for one in questions]
    together = made_ready(core, questions, n_threads=2)
    states = [state_of(n, n) for n in (0, 5, 12, 13, 100)]
    expected = {
        (q, s): run(core, [(alone[q], 0, 1, state, False)])
        for q in range(len(questions))
        for s, state in enumerate(states)
    }
    for pass_tokens, threads in ((1, 1), (60, 1), (2048, 1), (2048, 3)):
        asks, order = [], []
        for s, state in enumerate(states):
            # a whole set, then sets about the same state, which is read once, and about an equal one
            asks += [
                (together, 0, 5, state, False),
                (alone[2], 0, 1, state, False),
                (together, 1, 3, state.copy(), False),
            ]
            order += [(q, s) for q in (0, 1, 2, 3, 4, 2, 1, 2, 3)]
        found = run(core, asks, pass_tokens, threads)
        assert found.tobytes() == b"".join(expected[key].tobytes() for key in order)


def test_a_state_is_read_once_for_all_sets() -> None:
    core = core_of(ISAS[-1])
    rng = np.random.default_rng(4)
    sets = [made_ready(core, some_questions(rng, (2, 0), (3, 1))) for _ in range(3)]
    state = state_of(30)
    asks = [(one, 0, 2, state, False) for one in sets]
    batch = border.CoreAsks(asks, 2048)
    assert batch.sizes == (32, 6, 15, 32)
    assert (batch.n_tokens, batch.n_markers) == (32, 15)
    apart = border.CoreAsks(
        [(one, 0, 2, state, keep_tail) for one, keep_tail in zip(sets, (True, False, True), strict=True)], 2048
    )
    assert apart.n_tokens == 96
    # cut between questions, a state is read again
    assert border.CoreAsks(asks, 5).n_tokens == 96


def test_what_is_no_set_of_questions_is_refused() -> None:
    core = core_of(ISAS[-1])
    (one,) = some_questions(np.random.default_rng(5), (2, 0))
    for option_ids, markers, message in (
        ([(1, 2), ()], [0, 0], "question 0, option 1: expected 1 to 256 tokens"),
        ([(1, 2), tuple(range(50)) * 6], [0, 0], "question 0, option 1: expected 1 to 256 tokens"),
        ([(1, 2), (3, VOCAB)], [0, 0], "question 0, option 1: token id 60"),
        ([(1, 2), (3, -1)], [0, 0], "question 0, option 1: token id -1"),
        ([(1, 2), (3,)], [0, 1], "question 0, option 1: marker 1 lies outside its 1 tokens"),
        ([(1, 2), (3,)], [-1, 0], "question 0, option 0: marker -1"),
    ):
        with pytest.raises(ValueError, match=message):
            made_ready(core, [Asked(option_ids, markers, 0)])
    with pytest.raises(ValueError, match="option_ids"):
        border.CoreQuestions(core, [((CLS, 1, SEP), [1], 0, 200)], [[0]], sep_id=SEP)
    with pytest.raises(ValueError, match="expected a sequence for each option"):
        border.CoreQuestions(core, [((CLS,), [0], 0, 200)], [[0]], sep_id=SEP, option_ids=[])
    for prefix, most in (((CLS, 1), 200), ((SEP,), 200), ((CLS,), 199)):
        with pytest.raises(ValueError, match="question 1: expected prefix and max_tokens of the first"):
            border.CoreQuestions(
                core, [((CLS,), [0], 0, 200), (prefix, [0], 0, most)], [[0], [0]], sep_id=SEP, option_ids=[(1,), (2,)]
            )
    assert np.isfinite(run(core, [(made_ready(core, [one]), 0, 1, state_of(3), False)])).all()
