"""Trainings that end early, by an exception, Ctrl-C or a kill, or meet another one: nothing is lost or half written.
Needs torch."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

# ruff: noqa: E402
from trainings import QUICK, ROWS, contents

import skyinfer
from skyinfer.errors import FormatError, SkyinferError
from skyinfer.train import RowsError, directory, fitting, train_rows, training, writing
from skyinfer.train.batches import Chunk

pytestmark = pytest.mark.usefixtures("without_plots")


class Stop(Exception):
    pass


def stopping_at(step: int, how: Callable[[], None]) -> Callable[[str, int, int], None]:
    def progress(what: str, done: int, total: int) -> None:
        if done == step and total > 1:
            how()

    return progress


def stop() -> None:
    raise Stop


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "_SNAPSHOT_SECONDS", 0.0)
    monkeypatch.setattr(fitting, "_SNAPSHOT_SHARE", 1e9)


@pytest.mark.usefixtures("every_step")
@pytest.mark.parametrize("step", [1, 4])
def test_a_resumed_training_ends_the_same(trained: tuple[Path, Any], tmp_path: Path, step: int) -> None:
    out = tmp_path / "model"
    with pytest.raises(Stop):
        train_rows(ROWS, out, **QUICK, held_out=0.4, progress=stopping_at(step, stop))
    assert sorted(path.name for path in out.iterdir()) == ["training"]
    with pytest.raises(FormatError):
        skyinfer.load(out)
    seen = []
    train_rows(ROWS, out, **QUICK, held_out=0.4, progress=lambda _, done, total: seen.append(done))
    assert seen[1] == step + 1  # the first is the tokenizer's
    assert contents(out) == contents(trained[0])
    assert not (out / "training").exists()


def test_an_interruption_in_a_step_is_kept(
    trained: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, steps = tmp_path / "model", 0
    original = fitting.Fit._gradients

    def interrupted(fit: Any, chunk: Chunk) -> Any:
        nonlocal steps
        steps += 1
        if steps == 6:
            raise KeyboardInterrupt
        return original(fit, chunk)

    monkeypatch.setattr(fitting.Fit, "_gradients", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_rows(ROWS, out, **QUICK, held_out=0.4)
    monkeypatch.undo()
    assert (out / "training" / "snapshot.pt").exists()
    train_rows(ROWS, out, **QUICK, held_out=0.4)
    assert contents(out) == contents(trained[0])


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_a_killed_training_can_be_resumed(trained: tuple[Path, Any], tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "model"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    code = f"""
import os, signal
from skyinfer.train import fitting, train_rows
fitting._SNAPSHOT_SECONDS = 0.0
def kill(what, done, total):
    if done == 5:
        os.kill(os.getpid(), signal.SIGKILL)
train_rows({str(rows)!r}, {str(out)!r}, **{QUICK!r}, held_out=0.4, progress=kill)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=False)
    assert result.returncode == -signal.SIGKILL, result.stderr.decode()
    train_rows(rows, out, **QUICK, held_out=0.4)
    assert contents(out) == contents(trained[0])


def test_two_trainings_do_not_mix(trained: tuple[Path, Any], tmp_path: Path) -> None:
    """Neither in one process nor of two; the second one is refused before it reads a row or touches anything."""
    out, refused = tmp_path / "model", 0
    code = f"""
from skyinfer.train import train_rows
train_rows(iter([]), {str(out)!r}, force=True)
"""

    def never() -> Any:
        raise AssertionError("read")
        yield

    def another() -> None:
        nonlocal refused
        before = sorted(out.rglob("*"))
        with pytest.raises(SkyinferError, match=f"^another training is at work in {re.escape(str(out))}$"):
            train_rows(never(), out, force=True)
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert f"another training is at work in {out}" in result.stderr
        assert sorted(out.rglob("*")) == before
        refused += 1

    train_rows(ROWS, out, **QUICK, held_out=0.4, progress=stopping_at(3, another))
    assert refused == 1
    assert contents(out) == contents(trained[0])
    assert not (out / "training").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be removed there")
def test_a_lock_of_a_file_that_is_gone_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that ends between another's opening and locking of the file takes the file along."""
    out, original, calls = tmp_path / "model", directory._lock, 0

    def late(file: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            (out / "training" / "lock").unlink()
            (out / "training").rmdir()
        original(file)

    monkeypatch.setattr(directory, "_lock", late)
    with directory.alone_in(out):
        assert calls == 2
        monkeypatch.undo()
        with pytest.raises(SkyinferError, match="another training"), directory.alone_in(out):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_appears_meanwhile_is_not_replaced(
    trained: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, original = tmp_path / "model", directory._lock

    def late(file: int) -> None:
        original(file)
        shutil.copytree(trained[0], out, dirs_exist_ok=True)

    monkeypatch.setattr(directory, "_lock", late)
    with pytest.raises(FileExistsError, match="holds a checkpoint already"):
        train_rows(ROWS, out, **QUICK, seed=1)
    assert contents(out) == contents(trained[0])
    assert not (out / "training").exists()


@pytest.mark.usefixtures("every_step")
def test_an_unfinished_training_is_not_lost_by_mistake(tmp_path: Path) -> None:
    out = tmp_path / "model"
    with pytest.raises(Stop):
        train_rows(ROWS, out, **QUICK, progress=stopping_at(3, stop))
    before = (out / "training" / "snapshot.pt").read_bytes()
    with pytest.raises(FormatError, match="of other rows or options"):
        train_rows(ROWS[:-1], out, **QUICK)
    with pytest.raises(FormatError, match="of other rows or options"):
        train_rows(ROWS, out, **QUICK, lr=1e-3)
    with pytest.raises(FileExistsError, match="holds an unfinished training"):
        train_rows(ROWS, out, **QUICK, resume=False)
    with pytest.raises(RowsError):
        train_rows([{}], out, **QUICK)
    assert (out / "training" / "snapshot.pt").read_bytes() == before
    (out / "training" / "snapshot.pt").write_bytes(before[: len(before) // 2])
    with pytest.raises(FormatError, match="not a snapshot of a training"):
        train_rows(ROWS, out, **QUICK)
    train_rows(ROWS, out, **QUICK, force=True)
    assert skyinfer.load(out)


def test_a_checkpoint_is_replaced_only_when_forced(trained: tuple[Path, Any], tmp_path: Path) -> None:
    out = tmp_path / "model"
    shutil.copytree(trained[0], out)
    with pytest.raises(FileExistsError, match="replaced only when forced"):
        train_rows(ROWS, out, **QUICK)
    with pytest.raises(SkyinferError, match="all rows are about one state"):
        train_rows(ROWS[:1], out, **QUICK, force=True)
    assert contents(out) == contents(trained[0])
    train_rows(ROWS, out, **QUICK, held_out=0.4, seed=1, force=True)
    assert contents(out) != contents(trained[0])
    assert skyinfer.load(out)


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RowsError):
        train_rows([{}], tmp_path / "model")
    with pytest.raises(SkyinferError, match="one state"):
        train_rows(ROWS[:1], tmp_path / "model")
    with pytest.raises(RowsError, match="options fit"):
        train_rows(ROWS, tmp_path / "model", **(QUICK | {"max_len": 16, "head_max_len": 16}))
    factor = torch.inf
    monkeypatch.setattr(fitting, "cross_entropy", lambda logits, _: logits.clamp(-1).sum() * factor)
    with pytest.raises(FloatingPointError, match="at step 1; the model that training starts from cannot be learned"):
        train_rows(ROWS, tmp_path / "model", **QUICK)

    def diverge() -> None:
        nonlocal factor
        factor = torch.inf

    factor = 0.0
    with pytest.raises(FloatingPointError, match="at step 3; try a lower learning rate than"):
        train_rows(ROWS, tmp_path / "model", **QUICK, progress=stopping_at(2, diverge))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C cannot be sent to one process there")
def test_ctrl_c_leaves_something_to_resume(trained: tuple[Path, Any], tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "model"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    command = [sys.executable, "-m", "skyinfer", "train", str(rows), "-o", str(out), "--held-out", "0.4"]
    for name, value in QUICK.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    # every step takes a while, or it might be over before the signal comes
    code = f"""
import sys, time
from skyinfer.command.main import main
from skyinfer.train import fitting
step = fitting.Fit.step
def slow(*arguments):
    if "--resume" not in sys.argv:
        print("step", flush=True)
        time.sleep(1.0)
    return step(*arguments)
fitting.Fit.step = slow
sys.exit(main({command[3:]!r} + sys.argv[1:]))
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said == "skyinfer: interrupted; --resume goes on from here\n"
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 1
    assert "holds an unfinished training; --resume goes on with it, --force starts over" in again.stderr
    resumed = [sys.executable, "-c", code, "--resume"]
    subprocess.run(resumed, capture_output=True, timeout=60, check=True)
    assert contents(out) == contents(trained[0])


# --------------------------------------------------------------------------------------- half-written states


def narrower(values: Any) -> Any:
    return values[..., :-1].clone()


FAULTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a weight is missing": lambda s: s["weights"].pop("scorer.3.bias"),
    "a weight has another shape": lambda s: s["weights"].update({"type_emb.weight": torch.ones(3, 32)}),
    "the last weight is of another type": lambda s: s["weights"].update({"scorer.3.bias": torch.ones(1).double()}),
    "a weight is no tensor": lambda s: s["weights"].update({"scorer.3.bias": [1.0]}),
    "no momenta": lambda s: s["optimizer"].pop("momenta"),
    "one momentum less": lambda s: s["optimizer"]["momenta"].pop(),
    "a momentum has another shape": lambda s: s["optimizer"]["momenta"].append(
        narrower(s["optimizer"]["momenta"].pop())
    ),
    "a moment is missing": lambda s: s["optimizer"]["adam"].pop(3),
    "a moment has another shape": lambda s: s["optimizer"]["adam"][0].update(
        exp_avg=narrower(s["optimizer"]["adam"][0]["exp_avg"])
    ),
    "a loss too many": lambda s: s["losses"].append(1.0),
    "a step that is never reached": lambda s: s.update(step=10**6),
    "no step": lambda s: s.pop("step"),
}


# what is noticed last
LATE_FAULTS = ("the last weight is of another type", "a moment has another shape")


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unfinished") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "_SNAPSHOT_SECONDS", 0.0)
        with pytest.raises(Stop):
            train_rows(ROWS, out, **QUICK, held_out=0.4, progress=stopping_at(4, stop))
    return out


@pytest.mark.parametrize("fault", FAULTS)
def test_a_snapshot_that_does_not_fit_changes_nothing(
    trained: tuple[Path, Any], unfinished: Path, tmp_path: Path, fault: str
) -> None:
    """Forced, the training begins anew, from weights that took over nothing of it."""
    out = tmp_path / "model"
    shutil.copytree(unfinished, out)
    snapshot = out / "training" / "snapshot.pt"
    content = torch.load(snapshot, weights_only=True)
    FAULTS[fault](content)
    torch.save(content, snapshot)
    before = snapshot.read_bytes()
    with pytest.raises(FormatError, match="not a snapshot of a training"):
        train_rows(ROWS, out, **QUICK, held_out=0.4)
    assert snapshot.read_bytes() == before
    if fault not in LATE_FAULTS:
        return
    seen: list[int] = []
    train_rows(ROWS, out, **QUICK, held_out=0.4, force=True, progress=lambda _, done, total: seen.append(done))
    assert seen[:3] == [0, 1, 2]
    assert contents(out) == contents(trained[0])


def test_a_snapshot_stays_until_another_takes_its_place(unfinished: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    shutil.copytree(unfinished, out)
    before = (out / "training" / "snapshot.pt").read_bytes()
    with pytest.raises(Stop):
        train_rows(ROWS[:-1], out, **QUICK, force=True, progress=lambda *_: stop())
    with pytest.raises(RowsError):
        train_rows([{}], out, force=True)
    with pytest.raises(FileNotFoundError):
        train_rows(ROWS, out, init=tmp_path / "none", force=True)
    assert (out / "training" / "snapshot.pt").read_bytes() == before
    with pytest.raises(Stop):
        train_rows(ROWS[:-1], out, **QUICK, force=True, progress=stopping_at(2, stop))
    assert (out / "training" / "snapshot.pt").read_bytes() != before


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("where", ["scores", "write_weights", "place"])
def test_what_fails_after_the_last_step_is_gone_on_from(
    trained: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, fault: BaseException
) -> None:
    out = tmp_path / "model"

    def failing(*_: Any) -> None:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(training, where, failing)
        with pytest.raises(type(fault)):
            train_rows(ROWS, out, **QUICK, held_out=0.4)
    assert [path.name for path in out.iterdir()] == ["training"]
    steps: list[str] = []
    train_rows(ROWS, out, **QUICK, held_out=0.4, progress=lambda what, *_: steps.append(what))
    assert not any(what.startswith("loss") for what in steps)
    assert contents(out) == contents(trained[0])
    assert not (out / "training").exists()


def test_a_snapshot_that_cannot_be_written_hides_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fitting.Fit, "save", full)
    with pytest.warns(RuntimeWarning, match="no snapshot could be written"), pytest.raises(Stop):
        train_rows(ROWS, tmp_path / "model", **QUICK, progress=stopping_at(2, stop))


@pytest.mark.parametrize("killed", [False, True])
def test_a_checkpoint_is_replaced_whole_or_not_at_all(
    trained: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """Interrupted before each of its moves; killed, what was begun is ended by the next training there."""
    old = {name: b"old " + name.encode() for name in contents(trained[0])}
    original, n_moves = os.replace, 0
    for last in range(1, 100):
        out = tmp_path / str(last)
        staged = out / "training" / "checkpoint"
        shutil.copytree(trained[0], staged)
        for name, content in old.items():
            (out / name).parent.mkdir(exist_ok=True)
            (out / name).write_bytes(content)
        n_moves = 0

        def counted(source: Any, target: Any, last: int = last) -> None:
            nonlocal n_moves
            n_moves += 1
            if n_moves == last:
                raise KeyboardInterrupt
            original(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", counted)
            if killed:
                patch.setattr(writing, "settle", lambda _: None)
            try:
                writing.place(staged, out)
                interrupted = False
            except KeyboardInterrupt:
                interrupted = True
        if killed:
            with pytest.raises(FileExistsError, match="holds a checkpoint already"):
                train_rows(ROWS, out)
        assert contents(out) == (old if interrupted else contents(trained[0]))
        assert not writing.is_moving(out)
        if not interrupted:
            break
    # four old pieces away, their place's new name, and the new ones
    assert last > 9


def test_a_checkpoint_comes_back_even_if_that_is_interrupted(
    trained: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, original = contents(trained[0]), os.replace
    for last in range(1, 8):
        out = tmp_path / str(last)
        shutil.copytree(trained[0], out)
        (out / "training" / "replaced").mkdir(parents=True)
        for name in ("rl_agent_config.json", "model.safetensors", "encoder", "tokenizer"):
            (out / name).rename(out / "training" / "replaced" / name)
        (out / "model.safetensors").write_bytes(b"new")
        n_moves = 0

        def counted(source: Any, target: Any, last: int = last) -> None:
            nonlocal n_moves
            n_moves += 1
            if n_moves == last:
                raise KeyboardInterrupt
            original(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", counted)
            if last < 6:
                with pytest.raises(KeyboardInterrupt):
                    writing.settle(out)
        writing.settle(out)
        assert contents(out) == old


@pytest.mark.filterwarnings("ignore:no snapshot could be written")
@pytest.mark.skipif(sys.platform == "win32", reason="no such limit")
def test_a_full_disk_is_named_with_the_file(tmp_path: Path) -> None:
    """Held to a size, files fail as on a full disk: each that a training writes in its turn. Nothing is left."""
    import resource

    out, named = tmp_path / "model", set()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (100, 400, 2000, 20_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(OSError, match="large") as caught:
                train_rows(ROWS, out, **QUICK, resume=False, held_out=0.4)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert (caught.value.errno, Path(caught.value.filename).is_relative_to(out)) == (errno.EFBIG, True)
        named.add(Path(caught.value.filename).name)
        assert not out.exists()
    assert {"tokenizer.json", "model.safetensors"} <= named
