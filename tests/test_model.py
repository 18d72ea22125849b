"""A loaded model as its users meet it: long requests, threads, switches, every kind of file, and how it fails."""

from __future__ import annotations

import copy
import os
import pickle
import pydoc
import subprocess
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import checkpoints
import gguf
import numpy as np
import pytest
from checkpoints import read_safetensors, write_safetensors
from sequences import ask_of

import skyinfer
from skyinfer import FormatError
from skyinfer.core import border
from skyinfer.files.gguf import GGUFFile
from skyinfer.model import ISA_VARIABLE
from skyinfer.runtime import engine

PLAIN = checkpoints.SIZES["pico"] | {"temperature": [1.0, 1.0, 1.0], "temperature_by_options": {}}
ISAS = [name for name in border.isa_names() if border.isa_supported(name)]
STATE = "the drone keeps flying through the next gap and lets gravity pull it down " * 20
WORDS = ["thrust", "glide", "tight", "comfortable", "danger", "margin", "input", "rotor", "gap", "alt", "vy", "dx"]


def question(i: int, n_options: int = 3) -> dict[str, Any]:
    kind = ("choice", "score", "noul")[i % 3]
    asked: dict[str, Any] = {"type": kind, "instructions": f"Which is number {i}?"}
    return asked if kind == "noul" else asked | {"criteria": [f"{word} {i}" for word in WORDS[:n_options]]}


QUESTIONS: dict[str, Any] = {
    "a": {"type": "choice", "instructions": "i", "criteria": ["x", "y"]},
    "b": {"type": "noul", "instructions": "i"},
}
# 24 sequences that are full, and so twelve passes of 512 tokens
MANY = {f"q{i}": question(i, 2 + i % 5) for i in range(24)}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.paint(tmp_path_factory.mktemp("model"), **checkpoints.SIZES["pico"])


def load(path: Path, **arguments: Any) -> skyinfer.Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the painted temperatures are clamped, which is said
        return skyinfer.load(path, **arguments)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> skyinfer.Model:
    return load(checkpoint)


# ------------------------------------------------------------------------------ more than one forward pass


def test_a_request_of_several_passes_is_its_questions_one_at_a_time(model: skyinfer.Model) -> None:
    sizes = [len(sequence.ids) for sequence in model.encode(STATE, MANY).values()]
    assert sum(sizes) == 24 * 256 == 12 * 512
    answers, logits = model.decide(STATE, MANY)["answers"], model.logits(STATE, MANY)
    for key, asked in MANY.items():
        assert answers[key] == model.decide(STATE, {key: asked})["answers"][key]
        assert logits[key].tobytes() == model.logits(STATE, {key: asked})[key].tobytes()


def test_activations_of_a_request_of_several_passes_are_those_of_its_questions(model: skyinfer.Model) -> None:
    together = model.activations(STATE, MANY)
    alone = [model.activations(STATE, {key: asked}) for key, asked in MANY.items()]
    assert len(together["embd_norm"]) == 24 * 256
    for name, rows in together.items():
        assert rows.tobytes() == np.concatenate([one[name] for one in alone]).tobytes(), name


# ------------------------------------------------------------------------------ threads


def test_threads_ask_requests_of_all_sizes(model: skyinfer.Model) -> None:
    """decide and logits at once, from 1 question to 24 and from short states to full ones."""
    keys = list(MANY)
    requests = [
        (state, {key: MANY[key] for key in keys[first : first + n]})
        for first, n in ((0, 1), (1, 24), (2, 3), (5, 9), (0, 2))
        for state in ("vy 0", STATE, [STATE, "newest"])
    ]
    expected = [(model.decide(*request), model.logits(*request)) for request in requests]
    faults: list[Any] = []

    def ask(thread: int) -> None:
        for i in range(2 * len(requests)):
            number = (i * (thread + 1) + thread) % len(requests)
            answers, logits = expected[number]
            if (i + thread) % 2:
                same = model.decide(*requests[number]) == answers
            else:
                ours = model.logits(*requests[number])
                same = all(ours[key].tobytes() == logits[key].tobytes() for key in logits)
            if not same:
                faults.append((thread, number))

    run_all([lambda thread=thread: ask(thread) for thread in range(6)])
    assert not faults


def run_all(tasks: list[Callable[[], None]]) -> None:
    raised: list[BaseException] = []

    def guarded(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not raised, raised


@pytest.fixture
def no_switching() -> Iterator[None]:
    """No thread is made to give up the GIL: another runs only where it is given up by itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("way", ["run_tokens", "run"])
def test_another_thread_runs_during_a_forward_pass(way: str, checkpoint: Path, no_switching: None) -> None:
    """The pass is one of a tenth of a second, in portable C; nothing around it (a tokenizer) gives up the GIL."""
    slow = load(checkpoint, isa="portable")
    compiled = slow.compile({key: MANY[key] for key in list(MANY)[:8]})
    ids = [7] * 256
    work = [ask_of(slow.engine.core, [(ids, [3, 5], 0)] * 8)]
    forward = (lambda: compiled.run_tokens(ids)) if way == "run_tokens" else (lambda: slow.engine.run(work))
    forward()  # makes its buffers
    progress: list[str] = []

    def pass_once() -> None:
        progress.append("in")
        forward()
        progress.append("out")

    seen = []
    for _ in range(20):
        progress.clear()
        thread = threading.Thread(target=pass_once)
        thread.start()
        seen = list(progress)
        thread.join()
        if seen == ["in"]:
            break
    assert seen == ["in"]


# ------------------------------------------------------------------------------ switches


def test_temperature_clamp_at_load_and_for_a_call(checkpoint: Path) -> None:
    questions = {"q": question(0, 12)}  # choices of 11 and more have a temperature of 0.1006
    with pytest.warns(RuntimeWarning, match=r"choice\.11 0\.1006 -> 0\.5"):
        clamping = skyinfer.load(checkpoint)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        raw = skyinfer.load(checkpoint, temperature_clamp=False)
    clamped, unclamped = clamping.decide("vy 0", questions), raw.decide("vy 0", questions)
    assert clamped != unclamped
    for asked in (clamping, raw):
        for decide in (asked.decide, lambda state, _, asked=asked, **more: asked.compile(questions)(state, **more)):
            assert decide("vy 0", questions, temperature_clamp=True) == clamped
            assert decide("vy 0", questions, temperature_clamp=False) == unclamped
        assert asked.decide_many(["vy 0"], questions, temperature_clamp=True) == [clamped]
        assert asked.decide_many(["vy 0"], questions, temperature_clamp=False) == [unclamped]
    logits = clamping.logits("vy 0", questions)["q"].astype(float)
    for response, temperature in ((clamped, 0.5), (unclamped, 0.1006)):
        p = np.exp((logits - logits.max()) / temperature)
        ours = list(response["answers"]["q"]["probabilities"].values())
        np.testing.assert_allclose(ours, p / p.sum(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ISAS)
def test_the_environment_chooses_the_instruction_set(
    name: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ISA_VARIABLE, name)
    assert load(checkpoint).isa == name
    assert skyinfer.info()["isa"]["selected"] == name
    for other in ISAS:
        assert load(checkpoint, isa=other).isa == other


def test_an_instruction_set_that_cannot_run_is_refused(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    assert load(checkpoint).isa == ISAS[-1]
    monkeypatch.setenv(ISA_VARIABLE, "")
    assert load(checkpoint).isa == ISAS[-1]
    monkeypatch.setenv(ISA_VARIABLE, "mmx")
    for refused in (lambda: skyinfer.load(checkpoint), skyinfer.info):
        with pytest.raises(skyinfer.IsaError, match=f"SKYINFER_ISA='mmx'.*{ISAS[0]}"):
            refused()
    assert load(checkpoint, isa="portable").isa == "portable"
    with pytest.raises(skyinfer.IsaError, match="isa='AVX2'"):
        skyinfer.load(checkpoint, isa="AVX2")
    monkeypatch.setattr(border, "isa_supported", lambda name: name == "portable")
    if len(ISAS) > 1:
        monkeypatch.setenv(ISA_VARIABLE, ISAS[-1])
        with pytest.raises(skyinfer.IsaError, match=r"this CPU cannot run; use one of portable$"):
            skyinfer.load(checkpoint)


def test_a_table_of_tokens_changes_no_answer(checkpoint: Path, model: skyinfer.Model) -> None:
    without = load(checkpoint, token_table_bytes=0)
    assert without.engine.core.n_bytes < model.engine.core.n_bytes
    for key, logits in without.logits(STATE, MANY).items():
        np.testing.assert_allclose(logits, model.logits(STATE, {key: MANY[key]})[key], rtol=0, atol=1e-5)


# ------------------------------------------------------------------------------ files


def without_optional_keys(source: Path, out: Path) -> Path:
    """The same model as llama.cpp's converter writes it, copied with the gguf package."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, "modern-bert")
    for field in reader.fields.values():
        name = field.name
        if name.startswith(("GGUF.", "skycmd.")) or name in (
            "general.architecture",
            "tokenizer.huggingface.json",
            "modern-bert.decision.max_tokens",
        ):
            continue
        kind, *inner = field.types
        writer.add_key_value(name, field.contents(), kind, inner[-1] if inner else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


@pytest.mark.parametrize("tokenizer", ["byte", "metaspace"])
def test_a_directory_and_both_kinds_of_file_answer_alike(tokenizer: Any, tmp_path: Path) -> None:
    """512 tokens, which is what a file without decision.max_tokens means."""
    directory = checkpoints.paint(
        tmp_path / "model",
        **(PLAIN | {"max_len": 512, "head_max_len": 192}),
        dtype="F16",
        tokenizer=tokenizer,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = skyinfer.convert(directory, tmp_path / "model.gguf", outtype="f16")
    plain = without_optional_keys(file, tmp_path / "plain.gguf")
    with GGUFFile.open(plain) as opened:
        assert not {"tokenizer.huggingface.json", "modern-bert.decision.max_tokens"} & opened.metadata.keys()
    # "mmbert" starts a word with every text, as llama.cpp does by that name; the painted tokenizer does not
    alike = (directory, file, plain) if tokenizer == "byte" else (directory, file)
    assert len(load(plain).decide(STATE, MANY)["answers"]) == 24
    sources = [load(path) for path in alike]
    for state in (STATE * 3, {"Größe": [1.0, None, "[MASK] 日本語 e\u0301"]}, ["old " * 600, "new"]):
        first, *others = [model.decide(state, MANY) for model in sources]
        for other in others:
            assert other == first | {"model": other["model"]}
        first, *others = [model.encode(state, MANY) for model in sources]
        assert all(other == first for other in others)


@pytest.mark.parametrize("outtype", [None, "f32", "f16", "bf16", "q8_0"])
def test_an_embedding_in_parts_is_the_same(
    outtype: str | None, checkpoint: Path, model: skyinfer.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint if outtype is None else skyinfer.convert(checkpoint, tmp_path / "model.gguf", outtype=outtype)
    whole = load(path, threads=1).logits(STATE, QUESTIONS)
    for rows in (1, 100, 1023):
        monkeypatch.setattr(engine, "_ROWS_AT_ONCE", rows)
        for key, logits in load(path, threads=1).logits(STATE, QUESTIONS).items():
            np.testing.assert_array_equal(logits, whole[key])
    if outtype in (None, "f32"):
        for key, logits in model.logits(STATE, QUESTIONS).items():
            np.testing.assert_array_equal(logits, whole[key])


def test_little_else_is_in_memory_while_weights_are_packed(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vocabulary is let go of before, and of the embedding no more than some rows are dequantized at once."""
    path = skyinfer.convert(checkpoint, tmp_path / "model.gguf", outtype="q8_0")
    stored, rows_seen = GGUFFile.stored, []

    def watched(file: GGUFFile, name: str, rows: slice) -> tuple[np.ndarray, str]:
        assert not [key for key in file.metadata if key.startswith("tokenizer.")]
        values, dtype = stored(file, name, rows)
        if name == "token_embd.weight":
            rows_seen.append(len(values))
        return values, dtype

    monkeypatch.setattr(GGUFFile, "stored", watched)
    monkeypatch.setattr(engine, "_ROWS_AT_ONCE", 100)
    load(path)
    assert rows_seen == [100] * 10 + [24]


# ------------------------------------------------------------------------------ faults


def test_scores_that_are_not_finite_are_refused_by_every_call(checkpoint: Path, tmp_path: Path) -> None:
    """Each weight is a number, but their products are none."""
    directory = checkpoints.paint(tmp_path / "faulty", **PLAIN)
    weights = read_safetensors(directory / "model.safetensors")
    weights["scorer.3.weight"] = np.full_like(weights["scorer.3.weight"], 3e38)
    weights["scorer.0.weight"] = np.full_like(weights["scorer.0.weight"], 1e30)
    write_safetensors(directory / "model.safetensors", weights)
    model = skyinfer.load(directory)
    compiled = model.compile(QUESTIONS)
    calls: list[Callable[[], Any]] = [
        lambda: model.decide("s", QUESTIONS),
        lambda: model.decide_many(["s", "t"], QUESTIONS),
        lambda: model.logits("s", QUESTIONS),
        lambda: compiled("s"),
        lambda: compiled.many(["s"]),
        lambda: compiled.logits("s"),
        lambda: compiled.step("s"),
    ]
    for call in calls:
        with pytest.raises(skyinfer.FormatError, match="scores are not finite"):
            call()
    assert not np.isfinite(model.activations("s", QUESTIONS)["logits"]).all()
    # and of good weights they are numbers
    for row in load(checkpoint).logits("s", QUESTIONS).values():
        assert np.isfinite(row).all()


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_model_stays_in_its_process(take: Callable[[Any], Any], checkpoint: Path) -> None:
    model = load(checkpoint)
    with pytest.raises(
        TypeError, match=r"skyinfer\.Model cannot be pickled or copied; load it in each process"
    ) as caught:
        take(model)
    assert repr(str(checkpoint)) in str(caught.value)
    with pytest.raises(TypeError, match=r"skyinfer\.CompiledQuestions cannot be pickled or copied; load the model in"):
        take(model.compile(QUESTIONS))


# ------------------------------------------------------------------------------ imports


def imported(code: str) -> set[str]:
    """Which of the packages that take long to import `code` imports."""
    heavy = "{'gguf', 'tokenizers', 'jinja2', 'safetensors', 'numpy'}"
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import sys\n{code}\nprint(*({heavy} & set(sys.modules)))"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def test_a_free_threaded_python_stays_so() -> None:
    """An extension that does not declare itself fit for it would switch the GIL on again."""
    code = "import sys, skyinfer.core.border; print(getattr(sys, '_is_gil_enabled', lambda: True)())"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert run.stdout.split() == [str(not sysconfig.get_config_var("Py_GIL_DISABLED"))], run.stderr


def test_packages_are_imported_when_they_are_used(checkpoint: Path, tmp_path: Path) -> None:
    assert imported("import skyinfer") == set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = skyinfer.convert(checkpoint, tmp_path / "model.gguf", outtype="f16")
    code = f"import skyinfer; skyinfer.load({str(file)!r}).decide('x', {{'q': {QUESTIONS['b']!r}}})"
    assert imported(code) & {"gguf", "safetensors"} == set()


def test_paths_of_every_kind(checkpoint: Path) -> None:
    assert load(os.fsencode(checkpoint)).name == load(checkpoint).name  # type: ignore[arg-type]
    for path in ("\ud800", "a\0b", "", b""):
        with pytest.raises(FormatError, match="the path"):
            skyinfer.load(path)  # type: ignore[arg-type]


def test_users_see_what_is_meant_for_them(model: skyinfer.Model) -> None:
    compiled = model.compile(QUESTIONS)
    for value, documented in (
        (model, {"activations", "architecture", "compile", "config", "decide", "decide_long", "decide_many", "encode",
                 "engine", "isa", "logits", "name", "path", "precision", "threads"}),
        (compiled, {"activations", "arrays", "batches", "ids", "logits", "long", "many", "offsets", "probabilities",
                    "run_tokens", "sequences", "step", "step_many"}),
    ):  # fmt: skip
        shown = {name for name in dir(value) if not name.startswith("__")}
        assert shown == documented
        text = pydoc.plain(pydoc.render_doc(type(value)))
        assert all(name in text for name in documented)
        for inner in ("_engine", "_prepared", "Prepared", "StateTokens", "_stepper"):
            assert inner not in text
        assert all(getattr(value, name).__doc__ for name in documented if callable(getattr(value, name)))


def test_models_and_compiled_questions_are_made_in_one_way() -> None:
    with pytest.raises(TypeError, match=r"skyinfer\.load"):
        skyinfer.Model()
    with pytest.raises(TypeError, match="compile"):
        skyinfer.CompiledQuestions()
