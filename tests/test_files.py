"""The files of a model: what is no regular file is refused at once, and whatever goes wrong names the file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import SIZES, paint

import skyinfer
from skyinfer import FormatError
from skyinfer.files.checkpoint import Checkpoint
from skyinfer.files.gguf import GGUFFile
from skyinfer.files.inspection import describe
from skyinfer.files.json_file import JsonFile
from skyinfer.files.paths import name_as_text
from skyinfer.runtime.engine import Engine

unix = pytest.mark.skipif(sys.platform == "win32", reason="no such files")


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paint(tmp_path_factory.mktemp("painted") / "tiny", **SIZES["pico"])


def in_time(call: str, *arguments: str) -> str:
    """What a call prints, in a process that is ended when it waits for something."""
    code = f"import sys, skyinfer\ntry: {call}\nexcept skyinfer.FormatError as error: print(error)"
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=20, check=True
    )
    return result.stdout


@unix
@pytest.mark.parametrize("make", [os.mkfifo if hasattr(os, "mkfifo") else None], ids=["pipe"])
@pytest.mark.parametrize(
    "place", ["model.gguf", "tiny/rl_agent_config.json", "tiny/tokenizer/tokenizer.json", "tiny/model.safetensors"]
)
def test_a_pipe_is_not_waited_for(make: Callable[[Path], None], place: str, painted: Path, tmp_path: Path) -> None:
    shutil.copytree(painted, tmp_path / "tiny")
    path = tmp_path / place
    path.unlink(missing_ok=True)
    make(path)
    model = path if place == "model.gguf" else tmp_path / "tiny"
    assert in_time("skyinfer.load(sys.argv[1])", str(model)) == f"{path}: is a pipe, not a regular file\n"


@unix
@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", "/proc/self/status", "/proc/kmsg", "/proc/self/mem"])
def test_devices_and_the_kernels_files(path: str) -> None:
    if not os.path.exists(path):
        pytest.skip("this system has none")
    said = in_time("skyinfer.load(sys.argv[1])", path)
    assert said.startswith(f"{path}: ")
    assert said.count("\n") == 1


@unix
def test_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.chdir(tmp_path)  # a socket's name is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("model.gguf")
        with pytest.raises(FormatError, match=r"model\.gguf: is a socket"):
            skyinfer.load("model.gguf")


@pytest.mark.parametrize(("path", "message"), [("", "'': the path is empty"), ("a\0.gguf", r"'a\\x00\.gguf'.* NUL")])
def test_paths_that_are_none(path: str, message: str, painted: Path, tmp_path: Path) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: skyinfer.load(path),
        lambda: GGUFFile.open(path),
        lambda: Checkpoint.open(path),
        lambda: skyinfer.convert(path, tmp_path / "out.gguf"),
        lambda: skyinfer.convert(painted, path),
    ]
    for call in calls:
        with pytest.raises(FormatError, match=message):
            call()


def test_a_missing_file_is_an_os_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        skyinfer.load(tmp_path / "nowhere.gguf")
    assert caught.value.filename == str(tmp_path / "nowhere.gguf")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b"\xff", "is not UTF-8"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "expected a JSON object"),
        (b"9" * 5000, "is not JSON"),
        (None, "is missing"),
    ],
)
def test_a_file_that_is_no_json_object(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FormatError, match=message) as caught:
        JsonFile.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value)) < 400


def test_numbers_of_any_length_are_refused_in_short(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"n": 10**4000}))
    file = JsonFile.read(path)
    for read in (lambda: file.whole("n"), lambda: file.number("n", file.get("n"))):
        with pytest.raises(FormatError, match=r"n: .* is out of range") as caught:
            read()
        assert len(str(caught.value)) < 400


def test_names_become_text() -> None:
    for name in ("sky", "", "\u65e5 \U0001f681"):
        assert name_as_text(name) == name
    assert name_as_text("a\udcff") == "a\\udcff"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_a_byte_order_mark_in_a_checkpoint_is_named(encoding: str, painted: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(painted, tmp_path / "tiny"))
    path = directory / "encoder" / "config.json"
    path.write_bytes(("\ufeff" + path.read_text(encoding="utf-8")).encode(encoding))
    name = encoding.upper().removesuffix("-LE").removesuffix("-BE")
    with pytest.raises(FormatError, match=rf"config\.json: begins with a {name} byte order mark; save it as UTF-8"):
        Checkpoint.open(directory)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tokenizer.huggingface.json", "{}", "tokenizer.huggingface.json: not a usable tokenizer"),
        ("tokenizer.huggingface.json", 7, "tokenizer.huggingface.json must be a string"),
        ("tokenizer.chat_template.systemone", "{{ state }", "tokenizer.chat_template.systemone"),
    ],
)
def test_a_faulty_tokenizer_and_template_name_the_file(key: str, value: Any, message: str, painted: Path) -> None:
    with Checkpoint.open(painted) as source:
        for open_it in (describe, engine_of):
            source.metadata = source.metadata | {key: value}
            with pytest.raises(FormatError) as caught:
                open_it(source)
            assert str(caught.value).startswith(f"{painted}: {message}")


def engine_of(source: Checkpoint) -> Engine:
    return Engine(source, isa="portable", threads=1, temperature_clamp=False, token_table_bytes=0)
