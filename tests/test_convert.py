"""The file that comes out of a checkpoint, and what becomes of the place where it is put.

What llama.cpp's own converter made of the same painted checkpoints is recorded in
golden/llama_converter.json; key by key and byte by byte, ours may differ only where a test says so.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from checkpoints import SIZES, paint, read_safetensors, write_safetensors

from skyinfer import load
from skyinfer.errors import FormatError
from skyinfer.files.checkpoint import Checkpoint
from skyinfer.files.config import ModelConfig
from skyinfer.files.conversion import OUTTYPES, convert
from skyinfer.files.gguf import GGUFFile

sys.path.append(str(Path(__file__).parent / "golden"))
import llama_converter

TINY = SIZES["pico"] | {"vocab": 600}


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paint(tmp_path_factory.mktemp("painted") / "tiny", **TINY)


@pytest.fixture
def checkpoint(painted: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(painted, tmp_path / "tiny"))


# ------------------------------------------------------------------------------- against llama.cpp


# the record's own, and what it says instead
LLAMA_ONLY = {
    "general.type",
    "general.size_label",
    "general.quantization_version",
    "modern-bert.attention.layer_norm_rms_epsilon",
}
# read off the tokenizer's template for pairs there; a sequence has separators by definition
LLAMA_OTHERWISE = {"tokenizer.ggml.add_sep_token", "general.name"}
OURS_ONLY = {
    "modern-bert.decision.max_tokens",
    "tokenizer.huggingface.json",
    "skycmd.tokenizer.normalizer",
    "skycmd.tokenizer.lstrip",
}


@pytest.mark.parametrize("case", llama_converter.CASES)
def test_writes_what_llama_cpp_writes(case: str, tmp_path: Path) -> None:
    size, paints, pre, outtype = llama_converter.CASES[case]
    directory = paint(tmp_path / case, **SIZES[size], **paints)
    # the record's names were given, too; which one a tokenizer gets is tested in test_pre_tokenizers.py
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "llama.cpp will read other tokens")
        out = convert(directory, tmp_path / "out.gguf", outtype=outtype, pre=pre)
    with GGUFFile.open(out) as file:
        ours = llama_converter.summary(file)
    theirs = json.loads(llama_converter.RECORD.read_text(encoding="utf-8"))[case]
    assert ours["tensors"] == theirs["tensors"]
    assert set(ours["metadata"]) - set(theirs["metadata"]) <= OURS_ONLY
    assert set(theirs["metadata"]) - set(ours["metadata"]) <= LLAMA_ONLY
    for key in set(theirs["metadata"]) & set(ours["metadata"]) - LLAMA_OTHERWISE:
        assert ours["metadata"][key] == theirs["metadata"][key], key
    assert ours["metadata"]["tokenizer.ggml.pre"] == pre
    assert ours["metadata"]["tokenizer.ggml.add_sep_token"] is True


def test_written_keys_are_those_of_the_format(painted: Path, tmp_path: Path) -> None:
    with GGUFFile.open(convert(painted, tmp_path / "out.gguf", name="drone")) as file:
        assert file.metadata["general.name"] == "drone"
        assert file.metadata["general.file_type"] == OUTTYPES["f16"]
        assert file.metadata["modern-bert.decision.max_tokens"] == TINY["max_len"]
        assert file.metadata["skycmd.tokenizer.normalizer"] == "NFC"
        mask = file.metadata["tokenizer.ggml.mask_token_id"]
        assert file.metadata["skycmd.tokenizer.lstrip"] == [mask]
        tokenizer = json.loads(file.metadata["tokenizer.huggingface.json"])
        assert tokenizer["model"]["type"] == "BPE"


# ---------------------------------------------------------------------------------- number types


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_weight_that_is_no_number(value: float, checkpoint: Path, tmp_path: Path) -> None:
    tensors = read_safetensors(checkpoint / "model.safetensors")
    tensors["encoder.layers.2.mlp.Wi.weight"][3, 5] = value
    write_safetensors(checkpoint / "model.safetensors", tensors)
    with pytest.raises(FormatError, match=r"encoder\.layers\.2\.mlp\.Wi\.weight: holds a NaN"):
        convert(checkpoint, tmp_path / "out.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        (65519.0, {"f32", "f16", "bf16", "q8_0"}),
        (-65521.0, {"f32", "bf16", "q8_0"}),
        (8.33e6, {"f32", "bf16"}),
        (3.4e38, {"f32"}),
    ],
)
def test_weight_too_large_for_its_type(value: float, fits: set[str], checkpoint: Path, tmp_path: Path) -> None:
    tensors = read_safetensors(checkpoint / "model.safetensors")
    tensors["type_emb.weight"][0, 0] = value  # always F32
    tensors["scorer.1.weight"][3, 5] = value
    write_safetensors(checkpoint / "model.safetensors", tensors)
    for outtype in OUTTYPES:
        out = tmp_path / f"{outtype}.gguf"
        if outtype in fits:
            with GGUFFile.open(convert(checkpoint, out, outtype=outtype)) as file:
                for name in file.tensors:
                    file.tensor(name)
        else:
            with pytest.raises(FormatError, match=f"scorer.1.weight: a weight is too large for {outtype}"):
                convert(checkpoint, out, outtype=outtype)


def test_rows_that_q8_0_cannot_hold_become_f16(tmp_path: Path) -> None:
    size = TINY | {"d_model": 64, "d_ff": 80}
    out = convert(paint(tmp_path / "odd", **size), tmp_path / "out.gguf", outtype="q8_0")
    with GGUFFile.open(out) as file:
        assert file.tensors["blk.0.ffn_down.weight"].type == 1
        assert file.tensors["blk.0.ffn_up.weight"].type == 8
        ModelConfig.from_source(file)


# ------------------------------------------------------------------------------------ the file itself


def test_an_existing_file_is_kept(painted: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"precious")
    with pytest.raises(FileExistsError, match=r"exists already.*out\.gguf"):
        convert(painted, out)
    assert out.read_bytes() == b"precious"
    convert(painted, out, force=True)
    assert out.read_bytes()[:4] == b"GGUF"
    assert list(tmp_path.iterdir()) == [out]
    with pytest.raises(IsADirectoryError):
        convert(painted, tmp_path, force=True)


def test_unknown_outtype(painted: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown outtype 'q4_0'; choose one of f32, f16"):
        convert(painted, tmp_path / "out.gguf", outtype="q4_0")


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_nothing_is_left_of_a_failure(error: type[BaseException], painted: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"precious")

    def progress(name: str, done: int, total: int) -> None:
        if done > total // 2:
            raise error

    with pytest.raises(error):
        convert(painted, out, force=True, progress=progress)
    assert out.read_bytes() == b"precious"
    assert list(tmp_path.iterdir()) == [out]


def test_progress_counts_every_byte(painted: Path, tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    out = convert(painted, tmp_path / "out.gguf", progress=lambda *call: calls.append(call))
    with GGUFFile.open(out) as file:
        assert [name for name, _, _ in calls] == list(file.tensors)
        total = sum(info.n_bytes for info in file.tensors.values())
    assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)
    assert calls[-1][1:] == (total, total)


def test_what_llama_cpp_would_misread_is_a_warning(tmp_path: Path) -> None:
    heads = paint(tmp_path / "heads", **(TINY | {"n_heads": 2}))
    with pytest.warns(RuntimeWarning, match="2 attention heads where the Laya runtime has 1"):
        convert(heads, tmp_path / "heads.gguf")
    bare = paint(tmp_path / "bare", **(TINY | {"head_layers": 0}))
    with pytest.warns(RuntimeWarning, match="without head blocks"):
        convert(bare, tmp_path / "bare.gguf")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Checkpoint.open(heads)


# ------------------------------------------------------------------------------------------- names


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="file names are Unicode there")
def test_a_directory_whose_name_is_no_text(painted: Path, tmp_path: Path) -> None:
    directory = tmp_path / os.fsdecode(b"sky-\xff")
    shutil.copytree(painted, directory)
    with GGUFFile.open(convert(directory, tmp_path / "out.gguf")) as file:
        assert file.metadata["general.name"] == "sky-\\udcff"
        del file.metadata["general.name"]
        unnamed = ModelConfig.from_metadata(file.metadata, directory.with_suffix(".gguf"))
    assert unnamed.name == "sky-\\udcff"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": "sky-\udcff"}, FormatError, "general.name"),
        ({"name": ""}, FormatError, "general.name"),
        ({"name": 3}, TypeError, "name must be a string, not int"),
        ({"name": b"sky"}, TypeError, "name must be a string, not bytes"),
        ({"pre": "gpt-2\udcff"}, FormatError, "tokenizer.ggml.pre"),
        ({"pre": ""}, FormatError, "tokenizer.ggml.pre"),
        ({"pre": "other"}, FormatError, "'other'.* use one of modern-bert, gpt-2, mmbert, "),
        ({"pre": 3}, TypeError, "pre must be a string, not int"),
    ],
)
def test_names_that_no_file_can_hold(
    arguments: dict[str, Any], error: type[Exception], message: str, painted: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        convert(painted, tmp_path / "out.gguf", **arguments)
    assert not list(tmp_path.iterdir())


def test_merges_cannot_be_none(checkpoint: Path, tmp_path: Path) -> None:
    """GGUF has no array without elements; a directory is read as it is."""
    path = checkpoint / "tokenizer" / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model"]["merges"] = []
    path.write_text(json.dumps(content), encoding="utf-8")
    assert Checkpoint.open(checkpoint).metadata["tokenizer.ggml.merges"] == []
    with pytest.raises(FormatError, match="tiny: the tokenizer's BPE has no merges"):
        convert(checkpoint, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


# ------------------------------------------------------------------------------- the place of the file


def test_the_checkpoints_own_files_are_not_replaced(checkpoint: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}
    link = tmp_path / "link.gguf"
    link.symlink_to(checkpoint / "model.safetensors")
    twin = tmp_path / "twin.gguf"
    os.link(checkpoint / "model.safetensors", twin)
    for out in (*before, link, twin):
        with pytest.raises(OSError, match="checkpoint's own") as caught:
            convert(checkpoint, out, force=True)
        assert caught.value.filename == str(out)
    assert {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()} == before
    # beside them there is room, again and again
    for _ in range(2):
        assert convert(checkpoint, checkpoint / "model.gguf", force=True).read_bytes()[:4] == b"GGUF"


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit")
def test_a_full_disk_says_so(painted: Path, tmp_path: Path) -> None:
    """Held to a small size, a file fails as on a full disk: by an error of the system's, which has a number."""
    import resource

    out = tmp_path / "out.gguf"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (100, 100_000):  # in the header, and in the weights
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(OSError, match="large") as caught:
                convert(painted, out)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(out))
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["s1-pico", "s2-pico"])
def test_a_model_that_is_a_file_already_is_told(name: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=f"^{name}: not a checkpoint directory, but a GGUF file already"):
        convert(name, tmp_path / "out.gguf")
    assert load(name.encode()).name == name  # type: ignore[arg-type]
