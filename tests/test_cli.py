"""The command: what it prints where, its exit codes, and that no input, stream or file makes it show a traceback."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import SIZES, paint

import skyinfer
from skyinfer import terminal
from skyinfer.command import main as cli
from skyinfer.files import inspection

REQUEST = json.loads((Path(__file__).parent.parent / "examples" / "request.json").read_text(encoding="utf-8"))


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def fault(self) -> str:
        """The one line that an input's fault leaves."""
        assert (self.code, self.out) == (1, "")
        assert self.err.startswith("skyinfer: ")
        assert self.err.count("\n") == 1
        assert self.err.endswith("\n")
        return self.err[len("skyinfer: ") : -1]


Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (cli.MODEL_VARIABLE, "SKYINFER_ISA", "PYTHONIOENCODING", "PYTHONUTF8"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command inside this process; `stdin` are the bytes it finds there."""

    def run(*arguments: str | Path, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            code = cli.main(list(map(str, arguments)))
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # temperatures within the clamp, so that nothing is warned of
    return paint(
        tmp_path_factory.mktemp("checkpoint") / "sky",
        **SIZES["pico"],
        temperature=[1.5, 1.25, 2.0],
        temperature_by_options={"choice:2": 1.25},
    )


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Path:
    return skyinfer.convert(checkpoint, checkpoint.parent / "sky.gguf", outtype="f32")


def process(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "skyinfer", *map(str, arguments)]
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("stdout", subprocess.PIPE)
    return subprocess.run(command, stderr=subprocess.PIPE, timeout=60, check=False, **options)


def saved(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


# -------------------------------------------------------------------------------------------- decide


def test_decide_is_the_library(run: Run, model: Path, tmp_path: Path) -> None:
    request = saved(tmp_path / "request.json", REQUEST)
    expected = skyinfer.load(model).decide(REQUEST["state"], REQUEST["questions"])
    result = run("decide", "-m", model, request)
    assert (result.code, result.err) == (0, "")
    assert result.out.count("\n") == 1
    assert json.loads(result.out) == expected
    assert run("decide", "-m", model, "-", stdin=request.read_bytes()).out == result.out


def test_the_environment_names_a_model(run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = saved(tmp_path / "request.json", REQUEST)
    monkeypatch.setenv("SKYINFER_MODEL", str(model))
    assert json.loads(run("decide", request).out)["model"] == "sky"
    for unset in (lambda: monkeypatch.setenv("SKYINFER_MODEL", ""), lambda: monkeypatch.delenv("SKYINFER_MODEL")):
        unset()
        assert json.loads(run("decide", request).out)["model"] == "s1-pico"


def test_timing(run: Run, model: Path, tmp_path: Path) -> None:
    response = json.loads(run("decide", "--timing", "-m", model, saved(tmp_path / "r.json", REQUEST)).out)
    assert response["micros"] > 0


def test_temperature_clamp(run: Run, tmp_path: Path) -> None:
    cold = paint(tmp_path / "cold", **SIZES["pico"], temperature=[1.0, 1.0, 0.01], temperature_by_options={})
    request = saved(tmp_path / "request.json", REQUEST)
    clamped, raw = (run("decide", "-m", cold, request, *flag) for flag in ([], ["--no-temperature-clamp"]))
    assert clamped.err.startswith("skyinfer: warning: ")
    assert clamped.err.count("\n") == 1
    assert "noul 0.01 -> 0.5" in clamped.err
    assert (clamped.code, raw.code, raw.err) == (0, 0, "")
    a, b = (json.loads(result.out)["answers"] for result in (clamped, raw))
    assert a["action"] == b["action"]
    assert abs(a["danger"]["noul"] - 0.5) < abs(b["danger"]["noul"] - 0.5)


def test_the_last_of_repeated_keys_counts(run: Run, model: Path) -> None:
    questions = json.dumps(REQUEST["questions"]).encode()
    twice = b'{"state": 1, "questions": %s, "state": [NaN]}' % questions
    once = b'{"state": [NaN], "questions": %s}' % questions
    results = [run("decide", "-m", model, "-", stdin=text) for text in (twice, once)]
    assert results[0].code == 0
    assert results[0].out == results[1].out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"\xef\xbb\xbf{}", "UTF-8 byte order mark"),
        ("{}".encode("utf-16"), "UTF-16 byte order mark"),
        ("{}".encode("utf-32"), "UTF-32 byte order mark"),
        (b'{"state": "\xe9"}', "is not UTF-8 (byte 0xe9 at offset 11)"),
        (b'{\n"state": }', "is not JSON: line 2, column 10"),
        (b"\x00\x01\x02", "is not JSON"),
        (b"[" * 200_000, "is nested too deeply"),
        (b'{"state": %s}' % (b"9" * 5000), "cannot be read"),
        (b"[]", "must be an object"),
        (b"NaN", "must be an object"),
        (b'{"questions": {}}', "state: is missing"),
        (b'{"state": "s"}', "questions: is missing"),
        (b'{"state": null, "questions": {}}', "state: must not be null"),
        (b'{"state": "s", "questions": {"a": {"type": "yes"}}}', "questions.a.type: must be choice, score or noul"),
        (b'{"state": "s", "questions": {"a\\n\\u001b[2J": 1}}', "questions.a\\n\\x1b[2J: a question must be"),
        (
            b'{"state": "\\ud800", "questions": {"a": {"type": "noul", "instructions": "i"}}}',
            "state: holds the lone surrogate U+D800",
        ),
        (b'{"state": "s", "questions": {"%s": 1}}' % (b"k" * 100_000), "questions.kkkk"),
    ],
)
def test_a_faulty_request_is_one_line(run: Run, model: Path, tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "request.json").write_bytes(content)
    for result in (
        run("decide", "-m", model, tmp_path / "request.json"),
        run("decide", "-m", model, "-", stdin=content),
    ):
        assert message in result.fault()
        assert len(result.err) < 1200


def test_a_fault_of_the_request_is_told_before_the_model_is_read(run: Run) -> None:
    assert "standard input: is empty" in run("decide", "-m", "no-such-model.gguf", "-").fault()


def test_what_cannot_be_read_is_named(run: Run, model: Path, checkpoint: Path, tmp_path: Path) -> None:
    request = saved(tmp_path / "request.json", REQUEST)
    assert "nowhere.json: " in run("decide", "-m", model, "nowhere.json").fault()
    run("decide", "-m", model, tmp_path).fault()
    assert "nowhere.gguf: " in run("decide", "-m", "nowhere.gguf", request).fault()
    assert "not a GGUF file" in run("decide", "-m", request, request).fault()
    assert "model.gguf" in run("inspect", tmp_path / "model.gguf").fault()
    assert "not a Laya checkpoint" in run("inspect", tmp_path).fault()
    assert "not a checkpoint" in run("convert", request, "-o", tmp_path / "out.gguf").fault()
    assert "out.gguf" in run("convert", checkpoint, "-o", tmp_path / "nowhere" / "out.gguf").fault()


def test_an_unknown_instruction_set_is_named(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYINFER_ISA", "mmx")
    body = json.dumps(REQUEST).encode()
    for result in (run("info"), run("decide", "-m", model, "-", stdin=body)):
        assert "SKYINFER_ISA='mmx'" in result.fault()


# ------------------------------------------------------------------------------------------- streams


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_json_is_indented_on_a_terminal(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    assert cli.main(["decide", "-m", str(model), str(saved(tmp_path / "request.json", REQUEST))]) == 0
    assert screen.getvalue().startswith('{\n  "model": "sky",\n')
    assert screen.getvalue().endswith("\n}\n")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1", "cp1252", "utf-16"])
def test_json_survives_every_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"né": "🜁", "κ": 1}
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding=encoding, newline="\n"))
    terminal.put_json(value)
    sys.stdout.flush()
    assert json.loads(out.getvalue().decode(encoding)) == value
    assert ("🜁".encode() in out.getvalue()) == (encoding == "utf-8")


def test_json_survives_a_lone_surrogate(run: Run, model: Path) -> None:
    body = b'{"state": "s", "questions": {"\\ud800": {"type": "noul", "instructions": "i"}}}'
    result = run("decide", "-m", model, "-", stdin=body)
    assert result.code == 0
    assert list(json.loads(result.out)["answers"]) == ["\ud800"]


def test_an_encoding_that_lacks_the_answer(model: Path, tmp_path: Path) -> None:
    request = {
        "state": "ça",
        "questions": {"œ": {"type": "choice", "instructions": "quoi", "criteria": {"là": None, "空": None}}},
    }
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = process("decide", "-m", model, saved(tmp_path / "request.json", request), env=environment)
    assert (result.returncode, result.stderr) == (0, b"")
    assert list(json.loads(result.stdout)["answers"]["œ"]["probabilities"]) == ["là", "空"]


def test_ctrl_c(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        @property
        def buffer(self) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Interrupted())
    assert cli.main(["decide", "-m", "model.gguf", "-"]) == 130
    assert capsys.readouterr() == ("", "")


def test_streams_that_are_closed(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = str(saved(tmp_path / "request.json", REQUEST))
    for stream in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, stream, None)
    assert cli.main(["decide", "-m", str(model), request]) == 1
    assert cli.main(["decide", "-m", str(model), "-"]) == 1
    assert cli.main(["inspect", str(model)]) == 1
    assert cli.main(["convert", str(model.with_suffix("")), "-o", str(tmp_path / "out.gguf")]) == 1
    assert (tmp_path / "out.gguf").read_bytes()[:4] == b"GGUF"


@pytest.mark.skipif(sys.platform == "win32", reason="no such pipe")
@pytest.mark.parametrize("arguments", [["inspect", "MODEL"], ["info"], ["--help"]])
def test_a_reader_that_left_is_not_complained_about(model: Path, arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = process(*(str(model) if a == "MODEL" else a for a in arguments), stdout=writer)
    finally:
        os.close(writer)
    assert result.stderr == b""
    # argparse writes its help itself, and calls it a success
    assert result.returncode in ((0, 141) if "--help" in arguments else (141,))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device")
@pytest.mark.parametrize("asked", [["info"], ["--help"], ["--version"], ["decide", "--help"]])
def test_a_full_disk_is_one_line(asked: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        result = process(*asked, stdout=full)
    assert result.returncode == 1
    assert result.stderr.startswith(b"skyinfer: standard output: ")
    assert result.stderr.count(b"\n") == 1


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no such device")
def test_an_endless_request_can_be_interrupted() -> None:
    with open("/dev/zero", "rb") as endless:
        command = [sys.executable, "-m", "skyinfer", "decide", "-"]
        reading = subprocess.Popen(command, stdin=endless, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(1.0)
        reading.send_signal(signal.SIGINT)
        try:
            assert reading.wait(20) == 130 or reading.returncode == 1  # or it was told that the request is too long
        finally:
            reading.kill()


def test_other_warnings_keep_their_form(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: shown.append(str(message)))
    with terminal.warnings_said():
        warnings.simplefilter("always")
        warnings.warn("two\nlines", RuntimeWarning, stacklevel=1)
        warnings.warn("elsewhere", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "skyinfer: warning: two\\nlines\n"
    assert shown == ["elsewhere"]


def strict(text: str | bytes) -> Any:
    """JSON as the standard has it: no NaN, no infinities."""

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_labels_that_are_no_numbers_in_json(run: Run, model: Path) -> None:
    body = b"""{"state": "s", "questions": {"q": {"type": "choice", "instructions": "i",
        "criteria": [NaN, Infinity, -Infinity, 1.5, "NaN", "Infinity"]}}}"""
    result = run("decide", "-m", model, "-", stdin=body)
    assert result.code == 0
    answer = strict(result.out)["answers"]["q"]
    names = ["NaN", "Infinity", "-Infinity", "1.5", "NaN", "Infinity"]
    pairs = json.loads(result.out, object_pairs_hook=list)
    (probabilities,) = (value for key, value in dict(dict(pairs)["answers"])["q"] if key == "probabilities")
    assert [name for name, _ in probabilities] == names
    assert sum(p for _, p in probabilities) == pytest.approx(1)
    assert answer["choice"] in (*names, 1.5)


def test_a_single_label_that_is_no_number(run: Run, model: Path) -> None:
    for spelled in ("NaN", "Infinity", "-Infinity", "1e999"):
        question = f'{{"type": "choice", "instructions": "i", "criteria": [{spelled}]}}'
        body = f'{{"state": "s", "questions": {{"q": {question}}}}}'.encode()
        answer = strict(run("decide", "-m", model, "-", stdin=body).out)["answers"]["q"]
        name = spelled.replace("1e999", "Infinity")
        assert (answer["choice"], answer["probabilities"]) == (name, {name: 1.0})


@pytest.mark.skipif(sys.platform == "win32", reason="no such shell")
@pytest.mark.parametrize("arguments", ["decide -m MODEL REQUEST", "inspect MODEL", "inspect --json MODEL", "info"])
def test_a_closed_stdout_is_told(arguments: str, model: Path, tmp_path: Path) -> None:
    request = saved(tmp_path / "request.json", REQUEST)
    words = arguments.replace("MODEL", str(model)).replace("REQUEST", str(request)).split()
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "skyinfer", *words]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (1, b"skyinfer: standard output: is closed\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device")
@pytest.mark.parametrize("closed", [True, False])
def test_convert_says_that_the_file_was_written(closed: bool, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    words = [sys.executable, "-m", "skyinfer", "convert", str(checkpoint), "-o", str(out)]
    command = ["sh", "-c", f'exec "$@" {">&-" if closed else ">/dev/full"}', "sh", *words]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith(b"skyinfer: standard output: ")
    assert f"the file was written: {out}".encode() in result.stderr
    assert result.stderr.count(b"\n") == 1
    skyinfer.load(out)


def test_an_error_of_the_system_names_what_it_is_about(run: Run, model: Path, tmp_path: Path) -> None:
    class Broken(io.BytesIO):
        def read(self, *_: Any) -> bytes:
            raise OSError(5, "Input/output error")

    request = saved(tmp_path / "request.json", REQUEST)
    for path in (tmp_path, tmp_path / "nowhere.json", request / "below"):
        assert run("decide", "-m", model, path).fault().startswith(f"{path}: ")
    assert "'': the path is empty" in run("decide", "-m", model, "").fault()
    for arguments in (("inspect", ""), ("convert", "", "-o", tmp_path / "out.gguf"), ("convert", tmp_path, "-o", "")):
        assert "'': the path is empty" in run(*arguments).fault()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(Broken()))
        patch.setattr(sys, "stderr", io.StringIO())
        assert cli.main(["decide", "-m", str(model), "-"]) == 1
        assert sys.stderr.getvalue() == "skyinfer: standard input: Input/output error\n"


# ------------------------------------------------------------------------------------------- convert


@pytest.mark.parametrize("outtype", cli.OUTTYPES)
def test_convert(run: Run, checkpoint: Path, tmp_path: Path, outtype: str) -> None:
    out = tmp_path / "out.gguf"
    result = run("convert", checkpoint, "-o", out, "--outtype", outtype, "--name", "blue", "--pre", "gpt-2")
    assert (result.code, result.err) == (0, "")
    assert result.out == f"wrote {out}: {terminal.size(out.stat().st_size)}, {outtype}\n"
    description = json.loads(run("inspect", "--json", out).out)
    assert description["name"] == "blue"
    assert description["tokenizer"]["pre"] == "gpt-2"
    assert outtype.upper() in description["tensor_types"]


def test_convert_keeps_an_existing_file(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"mine")
    assert "--force" in run("convert", checkpoint, "-o", out).fault()
    assert out.read_bytes() == b"mine"
    assert run("convert", checkpoint, "-o", out, "--force").code == 0
    assert out.read_bytes()[:4] == b"GGUF"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--name", os.fsdecode(b"sky-\xff")], "general.name: 'sky-\\udcff' is not Unicode text"),
        (["--name", ""], "general.name: must not be empty"),
        (["--pre", os.fsdecode(b"\xff")], "tokenizer.ggml.pre: "),
        (["--pre", ""], "tokenizer.ggml.pre: "),
        (["--pre", "gpt2"], "use one of modern-bert, gpt-2, mmbert"),
    ],
)
def test_convert_takes_names_that_a_file_can_hold(
    run: Run, flags: list[str], message: str, checkpoint: Path, tmp_path: Path
) -> None:
    assert message in run("convert", checkpoint, "-o", tmp_path / "out.gguf", *flags).fault()
    assert not list(tmp_path.iterdir())


def test_convert_names_the_path_that_was_given(
    run: Run, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for out, said in {
        "nowhere/out.gguf": "there is no directory",
        "out.gguf/": "names a directory",
        ".": "is a directory",
        f"{'n' * 256}.gguf": os.strerror(errno.ENAMETOOLONG),
    }.items():
        fault = run("convert", checkpoint, "-o", out, "--force").fault()
        assert fault.startswith(f"{out}: ")
        assert said in fault
    assert (
        "own model.safetensors" in run("convert", checkpoint, "-o", checkpoint / "model.safetensors", "--force").fault()
    )
    with monkeypatch.context() as patch:
        plain = os.open

        def refuse(path: Any, flags: int, *mode: int) -> int:
            if flags & os.O_CREAT:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return plain(path, flags, *mode)

        patch.setattr(os, "open", refuse)
        assert run("convert", checkpoint, "-o", "out.gguf").fault() == "out.gguf: Permission denied"
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_convert_leaves_nothing_when_it_is_ended(name: str, checkpoint: Path, tmp_path: Path) -> None:
    number = getattr(signal, name)
    # the process signals itself in the middle of the weights
    code = (
        "import os, signal, sys, skyinfer.command.main, skyinfer.terminal as terminal\n"
        f"if {int(number)} != signal.SIGINT: signal.signal({int(number)}, signal.SIG_DFL)  # nohup has one ignored\n"
        "def show(self, name, done, total):\n"
        f"    if done > total // 2: os.kill(os.getpid(), {int(number)})\n"
        "terminal.Progress.show = show\n"
        "sys.exit(skyinfer.command.main.main(sys.argv[1:]))"
    )
    out = tmp_path / "out.gguf"
    out.write_bytes(b"mine")
    command = [sys.executable, "-c", code, "convert", str(checkpoint), "-o", str(out), "--force"]
    result = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (128 + number, b"", b"")
    assert out.read_bytes() == b"mine"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_convert_leaves_ignored_signals_ignored(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run("convert", checkpoint, "-o", tmp_path / "out.gguf").code == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_progress_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, pipe = Terminal(), io.StringIO()
    monkeypatch.setenv("COLUMNS", "80")
    for stream in (screen, pipe):
        with terminal.Progress(stream) as progress:
            progress.show("a", 1_000_000, 4_000_000)
            progress.show("b", 4_000_000, 4_000_000)
    assert pipe.getvalue() == ""
    first, last, blank, end = screen.getvalue().split("\r")[1:]
    assert "25 % of 4.0 MB" in first
    assert "100 % of 4.0 MB" in last
    assert max(map(len, (first, last, blank))) < 80
    assert not blank.strip()
    assert end == ""


# ----------------------------------------------------------------------------------- inspect and info


def test_inspect(run: Run, model: Path, checkpoint: Path) -> None:
    file, directory = (json.loads(run("inspect", "--json", path).out) for path in (model, checkpoint))
    assert file["format"] == "GGUF 3"
    assert directory["format"] == "checkpoint directory"
    for part in ("architecture", "parameters", "encoder", "head", "tokenizer", "template"):
        if part != "encoder":
            assert file[part] == directory[part]
    assert file["encoder"]["global_layers"] == [0]
    assert file["encoder"]["window"] == 64
    assert file["parameters"]["total"] == sum(row["parameters"] for row in file["tensor_types"].values())
    assert file["parameters"]["embedding"] == 1024 * 64
    assert file["decision"]["temperatures"] == {"choice": 1.5, "score": 1.25, "noul": 2.0, "choice.2": 1.25}
    assert file["decision"]["clamped"] == {}
    assert file["template"]["style"] == "laya"
    assert file["tokenizer"]["special"]["mask"]["text"] == "[MASK]"
    assert "tensors" not in file
    tensors = json.loads(run("inspect", "--json", "--tensors", model).out)["tensors"]
    assert {"name": "cls.output.weight", "shape": [1, 64], "type": "F32"}.items() <= tensors[-2].items()


def test_inspect_fits_a_terminal(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    result = run("inspect", "--tensors", model.name)
    assert (result.code, result.err) == (0, "")
    assert max(map(len, result.out.splitlines())) <= 80
    for shown in ("modern-bert", "GGUF 3", "[MASK]", "max_head_tokens", "blk.2.ffn_up.weight", "choice.2"):
        assert shown in result.out


def test_inspect_shows_what_the_clamp_does(run: Run, tmp_path: Path) -> None:
    cold = paint(tmp_path / "cold", **SIZES["pico"], temperature=[1.0, 1.0, 0.01], temperature_by_options={})
    assert "0.01 (clamped to 0.5)" in run("inspect", cold).out


def test_strings_of_a_file_cannot_move_the_cursor(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "evil.gguf"
    name = "\x1b[2J\x07 \u202ereversed\u2028 " + "long" * 5000
    assert run("convert", checkpoint, "-o", out, "--name", name).code == 0
    result = run("inspect", out)
    assert result.code == 0
    assert all(line.isprintable() for line in result.out.split("\n"))
    assert "\\x1b[2J\\x07 \\u202ereversed\\u2028" in result.out
    assert len(result.out) < 12_000
    assert json.loads(run("inspect", "--json", out).out)["name"] == name


def test_a_file_without_optional_keys(checkpoint: Path) -> None:
    """As llama.cpp's converter writes it, and without a template."""
    from skyinfer.files.checkpoint import Checkpoint

    with Checkpoint.open(checkpoint) as source:
        for key in ("tokenizer.huggingface.json", "tokenizer.chat_template.systemone"):
            del source.metadata[key]
        description = inspection.describe(source)
    assert description["tokenizer"]["source"] == "tokenizer.ggml.*"
    assert description["template"]["source"].startswith("default")
    assert "tokenizer.ggml.*" in inspection.as_text(description)


def test_info(run: Run) -> None:
    facts = json.loads(run("info", "--json").out)
    assert facts == json.loads(json.dumps(skyinfer.info()))
    text = run("info").out
    assert facts["version"] in text
    assert facts["isa"]["selected"] in text


def test_sizes_read_well() -> None:
    sizes = {0: "0 B", 999: "999 B", 1000: "1.0 kB", 99_940: "99.9 kB", 99_960: "100 kB", 999_499: "999 kB"}
    sizes |= {999_500: "1.0 MB", 1_500_000_000: "1.5 GB", 5_000_000_000_000: "5000 GB"}
    assert {n: terminal.size(n) for n in sizes} == sizes


# --------------------------------------------------------------------------------- the command itself


def test_usage(run: Run) -> None:
    assert run().code == 2
    assert run("frobnicate").code == 2
    assert run("convert", "somewhere").code == 2
    assert run("convert", "somewhere", "-o", "out.gguf", "--outtype", "q4_0").code == 2
    assert run("--version").out == f"skyinfer {skyinfer.__version__}\n"
    assert run("decide", "--help").code == 0


def test_serving_without_its_packages_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "skyinfer.serve.listener", raising=False)
    result = run("serve", "--port", "0")
    assert (result.code, result.out) == (1, "")
    assert "pip install 'skyinfer[serve]'" in result.err


def test_help_needs_none_of_the_packages() -> None:
    code = (
        "import sys, skyinfer, skyinfer.command.main as cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'gguf', 'tokenizers', 'jinja2', 'safetensors'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, b"")
