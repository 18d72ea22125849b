"""The subcommands that read and write model files: convert and inspect; and info."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkpoints import SIZES, paint
from commands import Run

import skyinfer
from skyinfer import terminal
from skyinfer.command import inspect
from skyinfer.files import inspection
from skyinfer.files.outtypes import OUTTYPES

pytestmark = pytest.mark.usefixtures("plain_environment")

# ------------------------------------------------------------------------------------------- convert


@pytest.mark.parametrize("outtype", OUTTYPES)
def test_convert(run: Run, sky_checkpoint: Path, tmp_path: Path, outtype: str) -> None:
    out = tmp_path / "out.gguf"
    result = run("convert", sky_checkpoint, "-o", out, "--outtype", outtype, "--name", "blue", "--pre", "gpt-2")
    assert (result.code, result.err) == (0, "")
    assert result.out == f"wrote {out}: {terminal.size(out.stat().st_size)}, {outtype}\n"
    description = json.loads(run("inspect", "--json", out).out)
    assert description["name"] == "blue"
    assert description["tokenizer"]["pre"] == "gpt-2"
    assert outtype.upper() in description["tensor_types"]


def test_convert_keeps_an_existing_file(run: Run, sky_checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"mine")
    assert "--force" in run("convert", sky_checkpoint, "-o", out).fault()
    assert out.read_bytes() == b"mine"
    assert run("convert", sky_checkpoint, "-o", out, "--force").code == 0
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
    run: Run, flags: list[str], message: str, sky_checkpoint: Path, tmp_path: Path
) -> None:
    assert message in run("convert", sky_checkpoint, "-o", tmp_path / "out.gguf", *flags).fault()
    assert not list(tmp_path.iterdir())


def test_convert_names_the_path_that_was_given(
    run: Run, sky_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for out, said in {
        "nowhere/out.gguf": "there is no directory",
        "out.gguf/": "names a directory",
        ".": "is a directory",
        f"{'n' * 256}.gguf": os.strerror(errno.ENAMETOOLONG),
    }.items():
        fault = run("convert", sky_checkpoint, "-o", out, "--force").fault()
        assert fault.startswith(f"{out}: ")
        assert said in fault
    assert (
        "own model.safetensors"
        in run("convert", sky_checkpoint, "-o", sky_checkpoint / "model.safetensors", "--force").fault()
    )
    with monkeypatch.context() as patch:
        plain = os.open

        def refuse(path: Any, flags: int, *mode: int) -> int:
            if flags & os.O_CREAT:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return plain(path, flags, *mode)

        patch.setattr(os, "open", refuse)
        assert run("convert", sky_checkpoint, "-o", "out.gguf").fault() == "out.gguf: Permission denied"
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_convert_leaves_nothing_when_it_is_ended(name: str, sky_checkpoint: Path, tmp_path: Path) -> None:
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
    command = [sys.executable, "-c", code, "convert", str(sky_checkpoint), "-o", str(out), "--force"]
    result = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (128 + number, b"", b"")
    assert out.read_bytes() == b"mine"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_convert_leaves_ignored_signals_ignored(run: Run, sky_checkpoint: Path, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run("convert", sky_checkpoint, "-o", tmp_path / "out.gguf").code == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device")
@pytest.mark.parametrize("closed", [True, False])
def test_convert_says_that_the_file_was_written(closed: bool, sky_checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    words = [sys.executable, "-m", "skyinfer", "convert", str(sky_checkpoint), "-o", str(out)]
    command = ["sh", "-c", f'exec "$@" {">&-" if closed else ">/dev/full"}', "sh", *words]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith(b"skyinfer: standard output: ")
    assert f"the file was written: {out}".encode() in result.stderr
    assert result.stderr.count(b"\n") == 1
    skyinfer.load(out)


# ----------------------------------------------------------------------------------- inspect and info


def test_inspect(run: Run, sky_file: Path, sky_checkpoint: Path) -> None:
    file, directory = (json.loads(run("inspect", "--json", path).out) for path in (sky_file, sky_checkpoint))
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
    tensors = json.loads(run("inspect", "--json", "--tensors", sky_file).out)["tensors"]
    assert {"name": "cls.output.weight", "shape": [1, 64], "type": "F32"}.items() <= tensors[-2].items()


def test_inspect_fits_a_terminal(run: Run, sky_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sky_file.parent)
    result = run("inspect", "--tensors", sky_file.name)
    assert (result.code, result.err) == (0, "")
    assert max(map(len, result.out.splitlines())) <= 80
    for shown in ("modern-bert", "GGUF 3", "[MASK]", "max_head_tokens", "blk.2.ffn_up.weight", "choice.2"):
        assert shown in result.out


def test_inspect_shows_what_the_clamp_does(run: Run, tmp_path: Path) -> None:
    cold = paint(tmp_path / "cold", **SIZES["pico"], temperature=[1.0, 1.0, 0.01], temperature_by_options={})
    assert "0.01 (clamped to 0.5)" in run("inspect", cold).out


def test_strings_of_a_file_cannot_move_the_cursor(run: Run, sky_checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "evil.gguf"
    name = "\x1b[2J\x07 \u202ereversed\u2028 " + "long" * 5000
    assert run("convert", sky_checkpoint, "-o", out, "--name", name).code == 0
    result = run("inspect", out)
    assert result.code == 0
    assert all(line.isprintable() for line in result.out.split("\n"))
    assert "\\x1b[2J\\x07 \\u202ereversed\\u2028" in result.out
    assert len(result.out) < 12_000
    assert json.loads(run("inspect", "--json", out).out)["name"] == name


def test_a_file_without_optional_keys(sky_checkpoint: Path) -> None:
    """As llama.cpp's converter writes it, and without a template."""
    from skyinfer.files.checkpoint import Checkpoint

    with Checkpoint.open(sky_checkpoint) as source:
        for key in ("tokenizer.huggingface.json", "tokenizer.chat_template.systemone"):
            del source.metadata[key]
        description = inspection.describe(source)
    assert description["tokenizer"]["source"] == "tokenizer.ggml.*"
    assert description["template"]["source"].startswith("default")
    assert "tokenizer.ggml.*" in inspect.as_text(description)


def test_info(run: Run) -> None:
    facts = json.loads(run("info", "--json").out)
    assert facts == json.loads(json.dumps(skyinfer.info()))
    text = run("info").out
    assert facts["version"] in text
    assert facts["isa"]["selected"] in text
    assert facts["precision"] == {"supported": ["exact", "int8"], "selected": "exact"}
    assert "  in precision       exact; also: int8 (--precision)\n" in text
