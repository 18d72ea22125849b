"""The command: what it prints where, its exit codes, and that no input, stream or file makes it show a traceback."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from checkpoints import SIZES, paint
from commands import REQUEST, Run, Terminal, process, saved
from trainings import ROWS

import skyinfer
from skyinfer import terminal
from skyinfer.command import main as cli
from skyinfer.errors import is_exhaustion
from skyinfer.files import streams
from skyinfer.files.places import SHIPPED

EXAMPLES = Path(__file__).parents[1] / "examples"

pytestmark = pytest.mark.usefixtures("plain_environment")

# -------------------------------------------------------------------------------------------- decide


def test_decide_is_the_library(run: Run, sky_file: Path, tmp_path: Path) -> None:
    request = saved(tmp_path / "request.json", REQUEST)
    expected = skyinfer.load(sky_file).decide(REQUEST["state"], REQUEST["questions"])
    result = run("decide", "-m", sky_file, request)
    assert (result.code, result.err) == (0, "")
    assert result.out.count("\n") == 1
    assert json.loads(result.out) == expected
    assert run("decide", "-m", sky_file, "-", stdin=request.read_bytes()).out == result.out


def test_the_environment_names_a_model(
    run: Run, sky_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = saved(tmp_path / "request.json", REQUEST)
    monkeypatch.setenv("SKYINFER_MODEL", str(sky_file))
    assert json.loads(run("decide", request).out)["model"] == "sky"
    for unset in (lambda: monkeypatch.setenv("SKYINFER_MODEL", ""), lambda: monkeypatch.delenv("SKYINFER_MODEL")):
        unset()
        assert json.loads(run("decide", request).out)["model"] == "s1-pico"


def test_help_names_the_models_that_come_with_skyinfer(run: Run) -> None:
    for command in ("decide", "rows", "evaluate", "calibrate", "play", "serve", "web", "inspect", "distill"):
        assert " or ".join(SHIPPED) in " ".join(run(command, "--help").out.split()), command


def test_timing(run: Run, sky_file: Path, tmp_path: Path) -> None:
    response = json.loads(run("decide", "--timing", "-m", sky_file, saved(tmp_path / "r.json", REQUEST)).out)
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


def test_the_last_of_repeated_keys_counts(run: Run, sky_file: Path) -> None:
    questions = json.dumps(REQUEST["questions"]).encode()
    twice = b'{"state": 1, "questions": %s, "state": [NaN]}' % questions
    once = b'{"state": [NaN], "questions": %s}' % questions
    results = [run("decide", "-m", sky_file, "-", stdin=text) for text in (twice, once)]
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
def test_a_faulty_request_is_one_line(run: Run, sky_file: Path, tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "request.json").write_bytes(content)
    for result in (
        run("decide", "-m", sky_file, tmp_path / "request.json"),
        run("decide", "-m", sky_file, "-", stdin=content),
    ):
        assert message in result.fault()
        assert len(result.err) < 1200


def test_a_fault_of_the_request_is_told_before_the_model_is_read(run: Run) -> None:
    assert "standard input: is empty" in run("decide", "-m", "no-such-model.gguf", "-").fault()


def test_what_cannot_be_read_is_named(run: Run, sky_file: Path, sky_checkpoint: Path, tmp_path: Path) -> None:
    request = saved(tmp_path / "request.json", REQUEST)
    assert "nowhere.json: " in run("decide", "-m", sky_file, "nowhere.json").fault()
    run("decide", "-m", sky_file, tmp_path).fault()
    assert "nowhere.gguf: " in run("decide", "-m", "nowhere.gguf", request).fault()
    assert "not a GGUF file" in run("decide", "-m", request, request).fault()
    assert "model.gguf" in run("inspect", tmp_path / "model.gguf").fault()
    assert "not a checkpoint of an s1 (Laya) or s2 model" in run("inspect", tmp_path).fault()
    assert "not a checkpoint" in run("convert", request, "-o", tmp_path / "out.gguf").fault()
    assert "out.gguf" in run("convert", sky_checkpoint, "-o", tmp_path / "nowhere" / "out.gguf").fault()


def test_an_unknown_instruction_set_is_named(run: Run, sky_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYINFER_ISA", "mmx")
    body = json.dumps(REQUEST).encode()
    for result in (run("info"), run("decide", "-m", sky_file, "-", stdin=body)):
        assert "SKYINFER_ISA='mmx'" in result.fault()


# ------------------------------------------------------------------------------------------- streams


def test_json_is_indented_on_a_terminal(sky_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    assert cli.main(["decide", "-m", str(sky_file), str(saved(tmp_path / "request.json", REQUEST))]) == 0
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


def test_json_survives_a_lone_surrogate(run: Run, sky_file: Path) -> None:
    body = b'{"state": "s", "questions": {"\\ud800": {"type": "noul", "instructions": "i"}}}'
    result = run("decide", "-m", sky_file, "-", stdin=body)
    assert result.code == 0
    assert list(json.loads(result.out)["answers"]) == ["\ud800"]


def test_an_encoding_that_lacks_the_answer(sky_file: Path, tmp_path: Path) -> None:
    request = {
        "state": "ça",
        "questions": {"œ": {"type": "choice", "instructions": "quoi", "criteria": {"là": None, "空": None}}},
    }
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = process("decide", "-m", sky_file, saved(tmp_path / "request.json", request), env=environment)
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


def test_streams_that_are_closed(sky_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = str(saved(tmp_path / "request.json", REQUEST))
    for stream in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, stream, None)
    assert cli.main(["decide", "-m", str(sky_file), request]) == 1
    assert cli.main(["decide", "-m", str(sky_file), "-"]) == 1
    assert cli.main(["inspect", str(sky_file)]) == 1
    assert cli.main(["convert", str(sky_file.with_suffix("")), "-o", str(tmp_path / "out.gguf")]) == 1
    assert (tmp_path / "out.gguf").read_bytes()[:4] == b"GGUF"


@pytest.mark.skipif(sys.platform == "win32", reason="no such pipe")
@pytest.mark.parametrize("arguments", [["inspect", "MODEL"], ["info"], ["--help"]])
def test_a_reader_that_left_is_not_complained_about(sky_file: Path, arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = process(*(str(sky_file) if a == "MODEL" else a for a in arguments), stdout=writer)
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
def test_the_limit_of_a_request_holds_for_everything_that_is_read(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_REQUEST_BYTES", 3 << 20)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    large = tmp_path / "large.json"
    with open(large, "wb") as file:  # no blocks of a disk
        file.truncate((3 << 20) + 1)

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), open(fifo, "wb") as pipe:
            while True:
                pipe.write(b" " * 65536)

    endless = threading.Thread(target=write)
    endless.start()
    try:
        for path in ("/dev/zero", fifo, large):
            assert run("decide", path).fault() == f"{path}: is longer than 3 MB"
    finally:
        endless.join(20)
    assert run("decide", "-", stdin=b" " * (4 << 20)).fault() == "standard input: is longer than 3 MB"
    monkeypatch.setattr(streams, "MAX_REQUEST_BYTES", len(json.dumps(REQUEST)))
    assert run("decide", saved(tmp_path / "request.json", REQUEST)).code == 0


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="no such names")
def test_a_request_from_a_pipe(run: Run, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with open(writer, "wb") as pipe:
        pipe.write(json.dumps(REQUEST).encode())
    try:
        assert run("decide", f"/dev/fd/{reader}").code == 0
    finally:
        os.close(reader)


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no such device")
@pytest.mark.parametrize("by_path", [True, False])
def test_an_endless_request_can_be_interrupted(by_path: bool) -> None:
    with open("/dev/zero", "rb") as endless:
        command = [sys.executable, "-m", "skyinfer", "decide", "/dev/zero" if by_path else "-"]
        reading = subprocess.Popen(command, stdin=endless, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(1.0)
        reading.send_signal(signal.SIGINT)
        try:
            # or it was told that the request is too long, and may have been at its end when the signal came
            assert reading.wait(20) in (130, 1, -signal.SIGINT)
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


def test_labels_that_are_no_numbers_in_json(run: Run, sky_file: Path) -> None:
    body = b"""{"state": "s", "questions": {"q": {"type": "choice", "instructions": "i",
        "criteria": [NaN, Infinity, -Infinity, 1.5, "NaN", "Infinity"]}}}"""
    result = run("decide", "-m", sky_file, "-", stdin=body)
    assert result.code == 0
    answer = strict(result.out)["answers"]["q"]
    names = ["NaN", "Infinity", "-Infinity", "1.5", "NaN", "Infinity"]
    pairs = json.loads(result.out, object_pairs_hook=list)
    (probabilities,) = (value for key, value in dict(dict(pairs)["answers"])["q"] if key == "probabilities")
    assert [name for name, _ in probabilities] == names
    assert sum(p for _, p in probabilities) == pytest.approx(1)
    assert answer["choice"] in (*names, 1.5)


def test_a_single_label_that_is_no_number(run: Run, sky_file: Path) -> None:
    for spelled in ("NaN", "Infinity", "-Infinity", "1e999"):
        question = f'{{"type": "choice", "instructions": "i", "criteria": [{spelled}]}}'
        body = f'{{"state": "s", "questions": {{"q": {question}}}}}'.encode()
        answer = strict(run("decide", "-m", sky_file, "-", stdin=body).out)["answers"]["q"]
        name = spelled.replace("1e999", "Infinity")
        assert (answer["choice"], answer["probabilities"]) == (name, {name: 1.0})


@pytest.mark.skipif(sys.platform == "win32", reason="no such shell")
@pytest.mark.parametrize("arguments", ["decide -m MODEL REQUEST", "inspect MODEL", "inspect --json MODEL", "info"])
def test_a_closed_stdout_is_told(arguments: str, sky_file: Path, tmp_path: Path) -> None:
    request = saved(tmp_path / "request.json", REQUEST)
    words = arguments.replace("MODEL", str(sky_file)).replace("REQUEST", str(request)).split()
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "skyinfer", *words]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (1, b"skyinfer: standard output: is closed\n")


def test_an_error_of_the_system_names_what_it_is_about(run: Run, sky_file: Path, tmp_path: Path) -> None:
    class Broken(io.BytesIO):
        def read(self, *_: Any) -> bytes:
            raise OSError(5, "Input/output error")

    request = saved(tmp_path / "request.json", REQUEST)
    for path in (tmp_path, tmp_path / "nowhere.json", request / "below"):
        assert run("decide", "-m", sky_file, path).fault().startswith(f"{path}: ")
    assert "'': the path is empty" in run("decide", "-m", sky_file, "").fault()
    for arguments in (("inspect", ""), ("convert", "", "-o", tmp_path / "out.gguf"), ("convert", tmp_path, "-o", "")):
        assert "'': the path is empty" in run(*arguments).fault()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(Broken()))
        patch.setattr(sys, "stderr", io.StringIO())
        assert cli.main(["decide", "-m", str(sky_file), "-"]) == 1
        assert sys.stderr.getvalue() == "skyinfer: standard input: Input/output error\n"


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


# Ctrl-C when a module begins to be imported.
_INTERRUPTED = """
import sys

module = sys.argv.pop(1)

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
from skyinfer.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    "module", ["skyinfer.command.main", "argparse", "skyinfer.command.train", "numpy", "skyinfer.model"]
)
def test_ctrl_c_while_the_command_is_imported(module: str) -> None:
    found = subprocess.run([sys.executable, "-c", _INTERRUPTED, module, "info"], capture_output=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (130, b"", b"")


# Ctrl-C while NumPy's C code imports a module of Python, which makes an ImportError of it.
_LOST = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "datetime":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.modules.pop("datetime", None)
sys.meta_path.insert(0, Interrupting())
from skyinfer.__main__ import main
sys.exit(main())
"""


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="os.kill ends the process where there are no signals")
@pytest.mark.parametrize("command", ["decide", "evaluate", "serve", "rows", "train"])
def test_ctrl_c_that_becomes_an_import_error(command: str, tmp_path: Path) -> None:
    rest = {
        "decide": [saved(tmp_path / "request.json", REQUEST)],
        "evaluate": [EXAMPLES / "labelled.jsonl"],
        "serve": ["--port", "0"],
        "rows": [EXAMPLES / "labelled.jsonl", "-q", saved(tmp_path / "q.json", REQUEST), "-o", tmp_path / "out.jsonl"],
        "train": [EXAMPLES / "labelled.jsonl", "-o", tmp_path / "model"],
    }[command]
    found = subprocess.run([sys.executable, "-c", _LOST, command, *rest], capture_output=True, timeout=60, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (130, b"", b"")


# Ctrl-C in the callback of a weak reference while NumPy is imported.
_IGNORED = """
import os, signal, sys, weakref

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            gone = type("Gone", (), {})()
            reference = weakref.ref(gone, lambda _: os.kill(os.getpid(), signal.SIGINT))
            del gone

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
from skyinfer.__main__ import main
sys.exit(main())
"""


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="os.kill ends the process where there are no signals")
def test_ctrl_c_that_is_ignored_where_it_comes() -> None:
    command = [sys.executable, "-c", _IGNORED, "serve", "--port", "0"]
    found = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (130, b"", b"")


def test_the_package_alone_imports_nothing() -> None:
    """Beside what Python itself has begun with; until it is there, Ctrl-C shows a traceback."""
    code = "import sys, __future__; before = set(sys.modules); import skyinfer; print(*set(sys.modules) - before)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["skyinfer"]
    (script,) = importlib.metadata.distribution("skyinfer").entry_points.select(group="console_scripts")
    assert script.value == "skyinfer.__main__:main"


@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("torch", ["train", "rows.jsonl", "-o", "out"]),
        ("torch", ["distill", "states.jsonl", "-q", "q.json", "--teacher", "s1-pico", "-o", "out"]),
        ("pyarrow", ["rows", "rows.jsonl", "-q", "q.json", "-o", "out.jsonl"]),
    ],
)
def test_a_package_that_does_not_load_is_not_called_missing(package: str, arguments: list[str], tmp_path: Path) -> None:
    """As torch in a process that may not have the memory for its libraries."""
    (tmp_path / package).mkdir()
    broken = "raise ImportError('libbroken.so: failed to map segment from shared object')\n"
    (tmp_path / package / "__init__.py").write_text(broken, "utf-8")
    result = process(*arguments, env=os.environ | {"PYTHONPATH": str(tmp_path)}, cwd=tmp_path)
    assert result.returncode == 1
    (line,) = result.stderr.decode().splitlines()
    assert line.endswith("(what is installed does not load: libbroken.so: failed to map segment from shared object)")


def test_no_more_threads_and_no_more_memory_are_told(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")  # as CPython's _thread.c has it

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert (
        run("train", rows, "-o", tmp_path / "model", "--threads", "2").fault()
        == "out of memory or threads: can't start new thread"
    )
    monkeypatch.undo()
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 59)
    assert is_exhaustion(caught.value)
    assert not is_exhaustion(RuntimeError("another thread is stepping this object"))
