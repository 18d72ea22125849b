"""Training of s2: what its batches hold, its network against the executable specification, and what comes out. Needs
torch, but for the batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import SIZES, paint

from skyinfer.core import border
from skyinfer.schema import QUESTION_TYPES, parse_questions
from skyinfer.train.architectures import ARCHITECTURES, DEFAULT
from skyinfer.train.encoding import Drawn, Encoded, builder_of, encode
from skyinfer.train.rows import Dataset, gather
from skyinfer.train.set_batches import laid_out
from skyinfer.train.vocabulary import learn_tokenizer, tokenizer_config

torch = pytest.importorskip("torch")

# ruff: noqa: E402
from networks import set_network_of
from reference import SetReference
from trainings import QUESTIONS, QUICK, ROWS, STATES, contents

import skyinfer
from skyinfer.command.main import main
from skyinfer.train import fitting, train, train_rows
from skyinfer.train.fitting import Fit, Plan, cross_entropy, laid, logits_of, option_batch, state_batch, workers
from skyinfer.train.network import Shape, initial_weights
from skyinfer.train.options import OptionError, Options
from skyinfer.train.set_network import SetNetwork

MANY = {
    **QUESTIONS,
    "which": {"type": "choice", "instructions": "Which one?", "criteria": [f"number {i}" for i in range(9)]},
    "again": QUESTIONS["act"],
}


def encoded_rows(tmp_path: Path, max_len: int = 64, views: Any = None) -> tuple[Dataset, Encoded, Any]:
    """States of several lengths, some about the same, a list and one that is too long."""
    states = [f"light {('red', 'green')[i % 2]} " + "far " * (i % 23) for i in range(50)]
    answers = {"act": "stop", "speed": [0.5, 0.25, 0.25], "safe": 0.9, "which": "number 3", "again": "go"}
    rows: list[Any] = [{"state": state, "questions": MANY, "answers": answers} for state in states]
    rows += [{"state": ["turn"] * 70, "questions": MANY, "answers": {"safe": True}}]
    rows += [{"state": "alone", "questions": {"safe": QUESTIONS["safe"]}, "answers": {"safe": 0.25}}]
    data = gather(((f"row {i}", one) for i, one in enumerate(rows, 1)), "rows")
    (tmp_path / "tokenizer.json").write_text(json.dumps(learn_tokenizer([s.text for s in data.states], 300)), "utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(8192)), "utf-8")
    builder, pad = builder_of(tmp_path, 300, max_len, 48, "s2")
    return data, encode(data, builder, pad, max_len, views, "s2"), builder


def test_every_architecture_of_the_core_can_be_trained() -> None:
    assert list(ARCHITECTURES) == list(border.ARCHITECTURES)
    assert fitting.COMPUTING.keys() == ARCHITECTURES.keys()
    assert DEFAULT in ARCHITECTURES


def small_shape(n_blocks: int = 2) -> Shape:
    return Shape(
        64, 4, 1, 96, n_blocks, 300, window=8, layer_is_global=(True, False, False, True), architecture="s2"
    )  # fmt: skip


# ----------------------------------------------------------------------------------------- what is read


def test_a_batch_holds_what_answers_are_given_from(tmp_path: Path) -> None:
    """Every state and every option sequence once, as a request's are laid out; and who asks about what."""
    data, encoded, builder = encoded_rows(tmp_path)
    examples = data.examples
    assert encoded.n_cut == 1
    n = len(examples)
    option_chunks, chunks = laid_out(encoded, np.arange(n)[::-1], np.arange(n, dtype=float), tokens=500)
    assert len(chunks) > 4
    options = [
        (chunk.ids[i, : chunk.lengths[i]].tolist(), int(chunk.markers[i]), QUESTION_TYPES[chunk.kinds[i]])
        for chunk in option_chunks
        for i in range(len(chunk.ids))
    ]
    assert len({(tuple(ids), marker, kind) for ids, marker, kind in options}) == len(options) == 2 + 3 + 2 + 9
    seen_states, seen_examples = [], []
    for chunk in chunks:
        rows = iter(chunk.table_rows.tolist())
        row_counts = dict.fromkeys(range(len(chunk.ids)), 0)
        places = {tuple(chunk.ids[i, : chunk.lengths[i]].tolist()): i for i in range(len(chunk.ids))}
        for i, number in enumerate(chunk.examples.tolist()):
            example = examples[number]
            state, question = data.states[example.state], data.questions[example.question]
            value = json.loads(state.text) if state.is_list else state.text
            sequence = builder.encode(value, {"q": MANY[str(question.id)]})["q"]
            row_counts[places[tuple(sequence.ids)]] += len(question.options)
            for ids, marker, is_option in zip(sequence.option_ids, sequence.markers, chunk.options[i], strict=False):
                assert is_option
                assert options[next(rows)] == (list(ids), marker, question.type)
            assert chunk.options[i].sum() == len(question.options)
            assert chunk.targets[i][chunk.options[i]] == pytest.approx(example.target)
            assert not chunk.targets[i][~chunk.options[i]].any()
            assert chunk.weights[i] == number
            seen_examples.append(number)
        assert next(rows, None) is None
        assert chunk.row_counts.tolist() == list(row_counts.values())
        seen_states += places
    assert sorted(seen_examples) == list(range(n))
    assert len(seen_states) == len(set(seen_states)) == len(data.states)


def test_what_is_drawn_for_a_state_is_drawn_once(tmp_path: Path) -> None:
    """Views belong to states; an order of options moves targets along."""
    _, encoded, _ = encoded_rows(tmp_path, views=lambda number: [f"another text {number}", "a third"])
    examples = np.repeat(np.arange(30), 2)
    drawn = encoded.drawn(examples, np.random.default_rng(3), options=True)
    for state in set(encoded.state[examples].tolist()):
        assert len(set(drawn.views[encoded.state[examples] == state].tolist())) == 1
    assert set(drawn.views.tolist()) == {0, 1, 2}
    assert drawn.orders is not None
    option_chunks, (chunk,) = laid_out(encoded, np.array([0, 3]), np.ones(500), None)
    turned_chunks, (turned,) = laid_out(
        encoded, np.array([0, 3]), np.ones(500),
        Drawn(np.zeros(2, np.int64), np.array([[1, 0, *range(2, 9)], [*range(8, -1, -1)]])),
    )  # fmt: skip
    assert all(np.array_equal(one.ids, other.ids) for one, other in zip(option_chunks, turned_chunks, strict=True))
    assert turned.table_rows[:2].tolist() == chunk.table_rows[:2][::-1].tolist()
    assert turned.table_rows[2:].tolist() == chunk.table_rows[2:][::-1].tolist()
    assert turned.targets[0, :2].tolist() == chunk.targets[0, :2][::-1].tolist() == [1, 0]
    assert turned.targets[1].tolist() == chunk.targets[1][::-1].tolist()


@pytest.mark.parametrize(
    ("n", "n_states", "given", "size"),
    [
        (100_000, 100_000, None, 128), (100_000, 60_000, None, 128),  # as in s1
        (60_000, 3_000, None, 1280), (10_000, 100, None, 2048), (600, 30, None, 1280),
        (60_000, 3_000, 16, 16),
    ],
)  # fmt: skip
def test_a_batch_is_about_many_states(n: int, n_states: int, given: int | None, size: int) -> None:
    options = Options("pico", None, None, None, None, given, None, None, 0, None, ())
    assert options.for_states(n, n_states).batch_size_for(n) == size


def test_what_is_asked_about_a_state_comes_together(tmp_path: Path) -> None:
    data, encoded, _ = encoded_rows(tmp_path)
    n = len(data.examples)
    shape = small_shape()
    fit = Fit(SetNetwork(shape, initial_weights(shape, 0)), encoded, np.arange(n), np.ones(n),
              Plan(50, 21, 1e-3, 0.1, 0.0, 5))  # fmt: skip
    drawn = np.concatenate([fit.batch(step) for step in range(24)])
    first, second = drawn[:n].tolist(), drawn[n : 2 * n].tolist()
    assert sorted(first) == sorted(second) == list(range(n))
    assert first != second
    states = encoded.state[first]
    assert np.count_nonzero(np.diff(states)) == len(data.states) - 1


# -------------------------------------------------------------------------------------------- the network


@pytest.mark.parametrize(
    ("size", "paints"),
    [("golden", {}), ("golden", {"activation": "silu", "local_attention": 64, "seed": 3}), ("pico", {})],
)
def test_the_network_is_the_specification(tmp_path: Path, size: str, paints: dict[str, Any]) -> None:
    """Lengths around the window, all types, 1, 2 and 9 options, several questions about a state; padded and not."""
    directory = paint(tmp_path / "painted", **SIZES[size], **paints, architecture="s2")
    network, reference = set_network_of(directory), SetReference.open(directory)
    random = np.random.default_rng(5)
    vocab = SIZES[size]["vocab"]
    states = [random.integers(0, vocab, length).tolist() for length in (2, 33, 65, 66, 129)]
    asked = []
    for i, n_options in enumerate((1, 2, 9, 3)):
        ids = [random.integers(0, vocab, int(random.integers(5, 90))).tolist() for _ in range(n_options)]
        asked.append((ids, [int(random.integers(0, len(one))) for one in ids], QUESTION_TYPES[i % 3]))
    # which questions are asked about which state
    plan = [(0, 0), (0, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 3), (4, 2)]
    options = [reference.options(*one) for one in asked]
    expected = [reference.scores(states[s], options[q]) for s, q in plan]
    for numbers in ([0, 1], [2], [3, 4, 5], [6, 7], list(range(8))):
        some = [plan[i] for i in numbers]
        chunk = chunk_of(states, asked, some)
        with torch.inference_mode():
            tables = [network.options(one) for one in option_batches(asked, one_by_one=len(some) == 2)]
            found = network.logits(state_batch(chunk), torch.cat(tables))
        for row, i in zip(found.numpy(), numbers, strict=True):
            n = len(expected[i])
            assert row[:n] == pytest.approx(expected[i], abs=1e-4)
            assert np.isneginf(row[n:]).all()


def option_batches(asked: list[Any], *, one_by_one: bool) -> list[Any]:
    from skyinfer.train.set_batches import OptionChunk

    sequences = [
        (ids, marker, QUESTION_TYPES.index(kind))
        for own, at, kind in asked
        for ids, marker in zip(own, at, strict=True)
    ]
    groups = [[one] for one in sequences] if one_by_one else [sequences]
    batches = []
    for group in groups:
        ids = np.zeros((len(group), max(len(own) for own, _, _ in group)), np.int64)
        for i, (own, _, _) in enumerate(group):
            ids[i, : len(own)] = own
        lengths = np.array([len(own) for own, _, _ in group])
        markers, kinds = (np.array([one[part] for one in group]) for part in (1, 2))
        batches.append(option_batch(OptionChunk(ids, lengths, markers, kinds)))
    return batches


def chunk_of(states: list[list[int]], asked: list[Any], plan: list[tuple[int, int]]) -> Any:
    from skyinfer.train.set_batches import StateChunk

    first_row = np.cumsum([0, *(len(own) for own, _, _ in asked)])
    used = sorted({s for s, _ in plan})
    ids = np.zeros((len(used), max(len(states[s]) for s in used)), np.int64)
    for i, s in enumerate(used):
        ids[i, : len(states[s])] = states[s]
    counts = np.array([len(asked[q][0]) for _, q in plan])
    options = np.arange(counts.max()) < counts[:, None]
    rows = np.concatenate([np.arange(first_row[q], first_row[q] + len(asked[q][0])) for _, q in plan])
    row_counts = np.array([sum(len(asked[q][0]) for s, q in plan if s == own) for own in used])
    targets = np.zeros(options.shape, np.float32)
    targets[:, 0] = 1
    lengths = np.array([len(states[s]) for s in used])
    return StateChunk(ids, lengths, rows, row_counts, options, targets, np.ones(len(plan), np.float32),
                      np.arange(len(plan)))  # fmt: skip


def test_gradients_in_two_steps_are_those_in_one(tmp_path: Path) -> None:
    """Options once for all chunks, and what the chunks ask of them handed on: the same as one function's gradient, for
    any cut into chunks and any number of threads."""
    data, encoded, _ = encoded_rows(tmp_path)
    shape = small_shape()
    examples, weights = np.arange(0, len(data.examples), 2), np.linspace(0.5, 2, len(data.examples))
    plan = Plan(5, 999, 1e-3, 0.1, 0.0, 5)
    found = {}
    for tokens, threads in ((300, 1), (300, 3), (10**6, 2)):
        network = SetNetwork(shape, initial_weights(shape, 1))
        fit = Fit(network, encoded, examples, weights, plan)
        batch = fitting.Laid(*laid_out(encoded, examples, weights, None, tokens))
        assert (len(batch.chunks) > 3) == (tokens == 300)
        with workers(threads) as pool:
            found[tokens, threads] = fit._of_batch(batch, pool)
    assert all(torch.equal(one, other) for one, other in zip(found[300, 1], found[300, 3], strict=True))
    network = SetNetwork(shape, initial_weights(shape, 1))
    parameters = list(network.weights.values())
    for values in parameters:
        values.requires_grad_(True)
    whole = laid(encoded, examples, weights, None)
    table = torch.cat([network.options(option_batch(chunk)) for chunk in whole.options])
    loss = sum(cross_entropy(logits_of(network, chunk, table), chunk) for chunk in whole.chunks)
    assert isinstance(loss, torch.Tensor)
    expected = [loss.detach(), *torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)]
    for some in found.values():
        for name, one, other in zip(("loss", *network.weights), some, expected, strict=True):
            assert torch.isfinite(one).all()
            assert torch.allclose(one, other, atol=1e-4 * max(1.0, float(other.abs().max()))), name
    assert not torch.equal(expected[1], torch.zeros_like(expected[1]))


def test_initial_weights_of_cross_attention_are_those_of_other_matrices() -> None:
    weights = initial_weights(small_shape(1), 3)
    block = "decision.layers.0"
    assert weights[f"{block}.cross_attn.kv_proj.weight"].std() == pytest.approx(0.88 / 8, rel=0.05)
    # what writes into the residual stream is smaller
    assert weights[f"{block}.cross_attn.out_proj.weight"].std() == pytest.approx(0.88 / 8 / 10**0.5, rel=0.05)
    assert (weights[f"{block}.cross_kv_norm.weight"] == 1).all()
    assert not weights[f"{block}.cross_attn.q_proj.bias"].any()


# --------------------------------------------------------------------------------------- from end to end


@pytest.fixture(scope="module")
def trained_s2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A trained s2 directory and its report. It must not be changed."""
    out = tmp_path_factory.mktemp("trained") / "model"
    return out, train_rows(ROWS, out, **QUICK, held_out=0.4, threads=2, architecture="s2")


def test_what_is_written_opens_and_is_reported(trained_s2: tuple[Path, Any]) -> None:
    out, report = trained_s2
    assert report.architecture == "s2"
    assert f"{out}: pico, s2, " in str(report)
    assert "options" not in report.augmentation
    assert {"keys", "numbers"} <= set(report.augmentation)
    assert {trial.change for trial in report.trials} >= {"options reversed", "keys shuffled"}
    for trial in report.trials:
        if trial.change == "options reversed":
            assert trial.accuracy == trial.accuracy_as_given
    agent = json.loads((out / "rl_agent_config.json").read_text("utf-8"))
    assert (agent["architecture"], agent["decision_blocks"]) == ("s2", 1)
    assert not {"head_layers", "act_costs"} & set(agent)
    assert report.temperatures == pytest.approx(
        dict(zip(QUESTION_TYPES, agent["temperature"], strict=True)) | agent["temperature_by_options"]
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_the_same_seed_gives_the_same_bytes(trained_s2: tuple[Path, Any], tmp_path: Path, threads: int) -> None:
    train_rows(ROWS, tmp_path / "model", **QUICK, held_out=0.4, threads=threads, architecture="s2")
    assert contents(tmp_path / "model") == contents(trained_s2[0])


def test_a_resumed_training_ends_the_same(
    trained_s2: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "_SNAPSHOT_SECONDS", 0.0)
    monkeypatch.setattr(fitting, "_SNAPSHOT_SHARE", 1e9)
    options: dict[str, Any] = QUICK | {"held_out": 0.4, "architecture": "s2"}

    def stopping(text: str, done: int, total: int) -> None:
        if done == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train_rows(ROWS, tmp_path / "model", **options, progress=stopping)
    # of s1 it is no beginning
    with pytest.raises(skyinfer.FormatError, match="other rows or options"):
        train_rows(ROWS, tmp_path / "model", **options | {"architecture": "s1"})
    seen: list[int] = []
    train_rows(ROWS, tmp_path / "model", **options, progress=lambda _, done, total: seen.append(done))
    assert seen[1] == 4
    assert contents(tmp_path / "model") == contents(trained_s2[0])


def test_training_goes_on_from_its_own_architecture_alone(
    trained: tuple[Path, Any], trained_s2: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"epochs": 8, "batch_size": 16, "held_out": 0.4}
    more = train_rows(ROWS, tmp_path / "more", init=trained_s2[0], **options)
    assert more.architecture == "s2"
    assert more.final_loss < trained_s2[1].final_loss
    for (directory, _), own, other in ((trained, "s1", "s2"), (trained_s2, "s2", "s1")):
        with pytest.raises(OptionError, match=f"architecture: .* is an {own} model; no {other} model starts from it"):
            train_rows(ROWS, tmp_path / "none", init=directory, architecture=other, **options)
        assert not (tmp_path / "none" / "rl_agent_config.json").exists()
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    with pytest.raises(SystemExit) as exit_code:
        main(["train", str(rows), "-o", str(tmp_path / "none"), "--init", str(trained[0]), "--architecture", "s2"])
    assert exit_code.value.code == 2
    assert "is an s1 model; no s2 model starts from it" in capsys.readouterr().err
    with pytest.raises(OptionError, match="unknown architecture 's3'; choose one of s1, s2"):
        train_rows(ROWS, tmp_path / "none", architecture="s3")


def test_the_command_trains_s2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "model"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    command = ["train", str(rows), "-o", str(out), "--epochs", "1", "--vocab-size", "300", "--architecture", "s2"]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["architecture"] == "s2"


def test_a_rule_is_learned_and_asked_in_any_order(tmp_path: Path) -> None:
    def teacher(state: dict[str, Any]) -> dict[str, Any]:
        return {"act": "stop" if state["light"] == "red" else "go"}

    asked = {"act": QUESTIONS["act"] | {"criteria": {"go": "drive on", "stop": "brake", "wait": "stay"}}}
    report = train(teacher, asked, STATES, tmp_path / "model", epochs=40, architecture="s2", held_out=0.25)
    assert report.questions["act"].accuracy == 1.0
    model = skyinfer.load(tmp_path / "model")
    turned = {"act": asked["act"] | {"criteria": dict(reversed(asked["act"]["criteria"].items()))}}
    for state in STATES[::5]:
        answers = [model.decide(state, own)["answers"]["act"] for own in (asked, turned)]
        assert answers[0]["choice"] == teacher(state)["act"]
        assert answers[0]["probabilities"] == pytest.approx(answers[1]["probabilities"], abs=1e-5)


def test_the_engine_gives_what_the_network_gives(trained_s2: tuple[Path, Any]) -> None:
    """The file's answers against torch's, on token ids of the engine's own."""
    network, model = set_network_of(trained_s2[0]), skyinfer.load(trained_s2[0])
    for state in STATES[::7]:
        laid_by_id = model.encode(state, MANY)
        found = model.logits(state, MANY)
        for name, sequence in laid_by_id.items():
            kind = parse_questions({name: MANY[name]})[0].type
            asked = [(sequence.option_ids, sequence.markers, kind)]
            with torch.inference_mode():
                table = network.options(option_batches(asked, one_by_one=False)[0])
                expected = network.logits(state_batch(chunk_of([sequence.ids], asked, [(0, 0)])), table)
            assert found[name] == pytest.approx(expected[0].numpy(), abs=1e-4)
            ours, theirs = (np.exp(z.astype(float) - z.max()) for z in (found[name], expected[0].numpy()))
            assert ours / ours.sum() == pytest.approx(theirs / theirs.sum(), abs=1e-5)


def test_options_may_have_more_room_than_states(tmp_path: Path) -> None:
    """They have sequences of their own."""
    limits: dict[str, Any] = {"max_len": 24, "head_max_len": 60, "vocab_size": 280}
    report = train_rows(ROWS, tmp_path / "model", epochs=0.2, architecture="s2", **limits)
    assert any("longer than the model reads" in warning for warning in report.warnings)
    model = skyinfer.load(tmp_path / "model")
    found = model.encode(STATES[0], QUESTIONS)["act"]
    assert (model.config.max_tokens, model.config.max_head_tokens, len(found.ids)) == (24, 60, 24)
    assert found.option_ids is not None
    assert 24 < max(map(len, found.option_ids)) <= 63
    assert model.decide(STATES[0], QUESTIONS)["answers"]["act"]["x_truncated"]
    train_rows(ROWS, tmp_path / "more", init=tmp_path / "model", epochs=0.2, head_max_len=50)
    with pytest.raises(OptionError, match="head_max_len: expected at most max_len"):
        train_rows(ROWS, tmp_path / "none", **limits)
