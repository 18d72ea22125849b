"""A checkpoint as the beginning of a training: its weights to be changed, and what is passed on as it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import FormatError
from ..config import ModelConfig
from . import Checkpoint


class InitialModel(NamedTuple):
    """What a training that starts from a checkpoint takes from it.

    Attributes:
        config: sizes and constants.
        weights: every tensor that answers depend on, by the checkpoint's name: float32, the caller's own copy.
        unused: every other tensor, likewise. What float32 cannot hold is infinite there.
        encoder: encoder/config.json as it is.
        agent: rl_agent_config.json as it is.
        tokenizer_files: the regular files of tokenizer/.
    """

    config: ModelConfig
    weights: dict[str, np.ndarray]
    unused: dict[str, np.ndarray]
    encoder: dict[str, Any]
    agent: dict[str, Any]
    tokenizer_files: tuple[Path, ...]


def read_initial(directory: str | os.PathLike[str]) -> InitialModel:
    """Read a Laya checkpoint directory whole, checked as `skyinfer.load` checks it.

    Raises:
        FormatError: as `Checkpoint.open`; or a weight is NaN or infinite; or it is a Julia-1 checkpoint or one with
            `option_layout` parallel, which are trained on other layouts of options.
        OSError: a file cannot be read.
    """
    with Checkpoint.open(directory) as checkpoint:
        if checkpoint.is_julia:
            raise FormatError(f"{checkpoint.path}: a Julia-1 checkpoint; only a Laya checkpoint can be trained further")
        config = ModelConfig.from_source(checkpoint)
        if config.option_layout != "sequential":
            raise FormatError(
                f"{checkpoint.path}: option_layout {config.option_layout} cannot be trained further; sequential can"
            )
        return InitialModel(
            config,
            {checkpoint.label(name): np.array(checkpoint.tensor(name)) for name in checkpoint.tensors},
            checkpoint.unused(),
            checkpoint.encoder_config,
            checkpoint.agent_config,
            tuple(sorted(file for file in (checkpoint.path / "tokenizer").iterdir() if file.is_file())),
        )
