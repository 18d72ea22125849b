"""Writes a checkpoint directory: the layout that `skyinfer.load` and, of s1, `laya.load` and the converters read.

Weights are stored as F16, as Laya's own are, so that a GGUF file of that type holds the very same numbers. Everything
is written under other names first; the directory is a checkpoint once rl_agent_config.json takes its place, last.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SkyinferError, faults_named
from ..files.checkpoint.config import DECISION_BLOCKS
from ..files.temperatures import BUCKETS
from ..files.whole_file import WholeFile
from .architectures import ARCHITECTURES
from .report import PLOT_NAME, REPORT_NAME

AGENT, ENCODER, TOKENIZER, WEIGHTS = "rl_agent_config.json", "encoder", "tokenizer", "model.safetensors"
# the entry of AGENT that says how a model was trained; no other runtime reads it
TRAINING = "training"
# what an unfinished training keeps in its output directory
SCRATCH = "training"
# where an older checkpoint is moved to piece by piece, and the name of that once it holds all of it
_LEAVING, _REPLACED = f"{SCRATCH}/leaving", f"{SCRATCH}/replaced"
# all that a training writes there
OWN = {AGENT, ENCODER, TOKENIZER, WEIGHTS, REPORT_NAME, PLOT_NAME, SCRATCH}

# The runtime's second head chooses whether to act; no answer reads it, so it is left at no preference.
_ACT_COSTS = {"escalate": 0.5}
_ACT_WIDTH = 256


def bucket_name(kind: str, bucket: str) -> str:
    """The runtime's name of a temperature: "choice:3-5" for ("choice", "3_5")."""
    return f"{kind}:{BUCKETS[bucket]}"


def encoder_config(
    *, d_model: int, n_layers: int, n_heads: int, d_ff: int, vocab_size: int, special_ids: Mapping[str, int]
) -> dict[str, Any]:
    """encoder/config.json of a new model."""
    return {
        "architectures": ["ModernBertModel"],
        "model_type": "modernbert",
        "hidden_size": d_model,
        "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads,
        "intermediate_size": d_ff,
        "vocab_size": vocab_size,
        "hidden_activation": "gelu",
        "max_position_embeddings": 8192,
        # transformers reads the one, llama.cpp's converter the other
        "norm_eps": 1e-5,
        "layer_norm_eps": 1e-5,
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "norm_bias": False,
        "classifier_pooling": "cls",
        "bos_token_id": special_ids["cls"],
        "eos_token_id": special_ids["sep"],
        "cls_token_id": special_ids["cls"],
        "sep_token_id": special_ids["sep"],
        "pad_token_id": special_ids["pad"],
    }


def agent_config(
    architecture: str, d_model: int, n_decision_blocks: int
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """rl_agent_config.json of a new model but for lengths and temperatures, and the tensors that the Laya runtime loads
    and no answer depends on."""
    if not ARCHITECTURES[architecture].is_laya:
        return {
            "architecture": architecture,
            "encoder": "ModernBERT",
            DECISION_BLOCKS[architecture]: n_decision_blocks,
        }, {}
    agent = {"encoder": "ModernBERT", DECISION_BLOCKS[architecture]: n_decision_blocks, "act_costs": _ACT_COSTS}
    n_act = len(_ACT_COSTS) + 1
    return agent, {
        "act_head.0.weight": np.zeros((_ACT_WIDTH, d_model + 4), np.float16),
        "act_head.0.bias": np.zeros(_ACT_WIDTH, np.float16),
        "act_head.2.weight": np.zeros((n_act, _ACT_WIDTH), np.float16),
        "act_head.2.bias": np.zeros(n_act, np.float16),
        "temperature": np.ones(3, np.float16),
    }


def write_json(path: Path, value: Any) -> None:
    """UTF-8 and LF on every platform, so that the same training writes the same bytes."""
    content = (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode()
    with faults_named(path):
        path.write_bytes(content)


def write_weights(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """`tensors` of any number types and shapes, as they are."""
    from safetensors.numpy import save

    content = save({name: np.ascontiguousarray(values) for name, values in tensors.items()}, {"format": "pt"})
    # safetensors' own way to a file leaves one that nobody else may read, whatever the umask
    whole = WholeFile(path, replace=True)
    with whole.writing() as file, whole.faults_named():
        file.write(content)


def check_place(out: Path, *, force: bool) -> None:
    """Make sure that a checkpoint may be written to `out`: it is new, or empty but for an unfinished training; or, with
    `force`, an older checkpoint that makes way.

    Raises:
        FileExistsError: it holds a checkpoint already.
        SkyinferError: it holds other things, which are never removed.
        OSError: it is no directory, or its parent is missing.
    """
    if not out.exists() and not out.is_symlink():
        if not out.absolute().parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, f"there is no directory {out.absolute().parent}", str(out))
        return
    if not out.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "is not a directory; name one to write", str(out))
    standing = {entry.name for entry in out.iterdir()}
    foreign = sorted(standing - OWN)
    if foreign:
        raise SkyinferError(f"{out}: holds {foreign[0]!r}, which is no part of a checkpoint; name another directory")
    if (out / SCRATCH).exists() and not (out / SCRATCH).is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "is not a directory", str(out / SCRATCH))
    # a move that was interrupted is undone first, under the lock
    if standing - {SCRATCH} and not force and not is_moving(out):
        raise FileExistsError(errno.EEXIST, "holds a checkpoint already; it is replaced only when forced", str(out))


def is_moving(out: Path) -> bool:
    """Whether a move of `place` was interrupted there."""
    return (out / _LEAVING).exists() or (out / _REPLACED).exists()


def place(staged: Path, out: Path) -> None:
    """Move a complete checkpoint from `staged`, inside `out`, to its place. What stands there makes way, and comes back
    where that fails."""
    (out / _LEAVING).mkdir()
    try:
        # the configuration goes first and comes last: in between there is no checkpoint, and not half of two
        for name in sorted(OWN - {SCRATCH}, key=lambda name: name != AGENT):
            if os.path.lexists(out / name):
                os.replace(out / name, out / _LEAVING / name)
        os.replace(out / _LEAVING, out / _REPLACED)
        for name in sorted((entry.name for entry in staged.iterdir()), key=lambda name: name == AGENT):
            os.replace(staged / name, out / name)
    finally:
        settle(out)


def settle(out: Path) -> None:
    """End a move of `place` that was interrupted, even by a process's end: a checkpoint that is whole stays, else the
    one before comes back. This may be interrupted, too."""
    leaving, replaced = out / _LEAVING, out / _REPLACED
    if replaced.exists():
        if (out / AGENT).exists():
            remove(replaced)
            return
        for name in OWN - {SCRATCH}:
            remove(out / name)
        os.replace(replaced, leaving)
    if leaving.exists():
        for entry in sorted(leaving.iterdir(), key=lambda entry: entry.name == AGENT):
            os.replace(entry, out / entry.name)
        leaving.rmdir()


def remove(path: Path) -> None:
    """Remove a file or a directory with all that it holds, as far as that is possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
