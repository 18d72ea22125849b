"""A Laya checkpoint directory as a model source, in GGUF's keys and tensor names.

So files/config.py checks a directory as it checks a file, `skyinfer.load` takes either, and conversion.py only writes
what is found here. No torch: weights are mapped from safetensors. Three parts: config.py reads the sizes, tokenizer.py
(on hf_tokenizer.py) the tokenizer, weights.py the tensors.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from reprlib import repr as short_repr  # values of a hostile file may be long or deeply nested
from types import TracebackType
from typing import Any

import numpy as np

from ...errors import FormatError
from ...text.pre_tokenizers import PRE_TOKENIZERS
from ...text.template import julia_template, laya_template
from ..config import ModelConfig
from ..json_file import JsonFile
from ..paths import checked_path, name_as_text
from ..safetensors import StoredTensor
from ..tensors import ALL_ROWS, TensorInfo, as_float32, finite, release_rows, stored_values
from .config import architecture_of, read_configuration
from .tokenizer import tokenizer_metadata
from .weights import check_embedding, checkpoint_name, match_tensors, stored_tensors

# the number types of safetensors that numpy has, BF16 aside
_NUMPY_TYPES = {
    "BOOL": "?", "U8": "<u1", "I8": "<i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip


class Checkpoint:
    """A Laya checkpoint directory, open as a `config.ModelSource`.

    Attributes:
        path: the directory.
        metadata: GGUF keys and values, as a converted file would hold them.
        tensors: by GGUF name; `offset` counts in the safetensors file the tensor lies in.
        agent_config: rl_agent_config.json or julia_config.json as it is.
        encoder_config: encoder/config.json as it is.
        is_julia: a Julia-1 checkpoint, whose template and lengths differ from Laya's.
    """

    def __init__(
        self,
        path: Path,
        metadata: dict[str, Any],
        stored: dict[str, tuple[TensorInfo, StoredTensor]],
        unused: dict[str, StoredTensor],
        *,
        config: ModelConfig,
        agent_config: dict[str, Any],
        encoder_config: dict[str, Any],
        is_julia: bool,
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = {name: info for name, (info, _) in stored.items()}
        self.agent_config, self.encoder_config = agent_config, encoder_config
        self.is_julia = is_julia
        self._data = {name: data for name, (_, data) in stored.items()}
        self._unused = unused
        self._n_layers, self._architecture = config.n_layers, config.architecture

    @classmethod
    def open(cls, directory: str | os.PathLike[str], *, pre: str | None = None, name: str | None = None) -> Checkpoint:
        """Read the configuration and the tokenizer, map the weights, and check them all.

        Args:
            directory: holds rl_agent_config.json (or julia_config.json), encoder/, tokenizer/ and
                model.safetensors (or its shards).
            pre: `tokenizer.ggml.pre`, where what the tokenizer does should not decide: one of llama.cpp's names in
                `skyinfer.text.pre_tokenizers`.
            name: `general.name`; the directory's own by default.

        Raises:
            FormatError: not a checkpoint, or a faulty one; the message names the file and the entry,
                or the tensor with what was expected and found. Or `pre` is not known, or `name` is no text.
            TypeError: `pre` or `name` is not a string.
            OSError: a file cannot be read.
        """
        directory = checked_path(directory)
        _check_names(pre, name)
        if not directory.is_dir():
            raise FormatError(f"{directory}: not a checkpoint directory")
        agent = JsonFile.one_of(directory, "rl_agent_config.json", "julia_config.json")
        encoder = JsonFile.read(directory / "encoder" / "config.json")
        is_julia = agent.path.name == "julia_config.json" or agent.get("architecture") == "JuliaDecisionModel"
        policy = directory / "inference-policy.json"
        lengths = JsonFile.read(policy) if is_julia and policy.exists() else JsonFile(policy, {})
        name = name_as_text(directory.resolve().name) or "model" if name is None else name
        metadata, origins = read_configuration(agent, encoder, lengths, name)
        stored = stored_tensors(directory)
        check_embedding(directory, metadata, stored)
        metadata |= tokenizer_metadata(
            directory / "tokenizer",
            metadata[f"{metadata['general.architecture']}.vocab_size"],
            pre,
            template=_template_of(agent, is_julia=is_julia),
        )
        config = ModelConfig.from_metadata(metadata, directory, origins)
        used, unused = match_tensors(directory, config, stored)
        return cls(
            directory,
            metadata,
            used,
            unused,
            config=config,
            agent_config=agent.content,
            encoder_config=encoder.content,
            is_julia=is_julia,
        )

    def tensor(self, name: str) -> np.ndarray:
        """A tensor's values: float32 in the shape of its `TensorInfo`; a view of the file for F32.

        Raises:
            FormatError: a value is NaN or infinite.
        """
        values = as_float32(*self.stored(name))
        if not finite(values):
            raise FormatError(f"{self.path}: tensor {self.label(name)}: holds a NaN or infinite value")
        return values

    def stored(self, name: str, rows: slice = ALL_ROWS) -> tuple[np.ndarray, str]:
        """As `GGUFFile.stored`."""
        return stored_values(self.tensors[name], self._data[name].data, rows)

    def label(self, name: str) -> str:
        """The checkpoint's own name of a tensor, for messages: "scorer.3.bias" for "cls.output.bias"."""
        return checkpoint_name(name, self._n_layers, self._architecture)

    def unused(self) -> dict[str, np.ndarray]:
        """The tensors that no answer depends on, by the checkpoint's names: float32, copied.

        Raises:
            FormatError: the type of one is not one of numpy's.
        """
        return {name: _as_float32(self.path, name, tensor) for name, tensor in self._unused.items()}

    def forget(self, prefix: str) -> None:
        """As `GGUFFile.forget`."""
        self.metadata = {key: value for key, value in self.metadata.items() if not key.startswith(prefix)}

    def release(self, name: str, rows: slice = ALL_ROWS) -> None:
        """As `GGUFFile.release`."""
        if name in self._data:
            release_rows(self._data[name].file, self.tensors[name], rows)

    def close(self) -> None:
        """Close the files. Memory is unmapped once no array refers to it."""
        self._data, self._unused = {}, {}

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _template_of(agent: JsonFile, *, is_julia: bool) -> Callable[[str, str, str], str] | None:
    """The layout of a prompt. s2 has no prompt that holds a whole request; its texts are Laya's."""
    if architecture_of(agent) == "s1":
        return julia_template if is_julia else laya_template
    if is_julia:
        agent.fail("architecture", f"{agent.get('architecture')} has its configuration in rl_agent_config.json")
    return None


def _check_names(pre: str | None, name: str | None) -> None:
    """Refuse what the caller wants to call the model or its tokenizer, where GGUF or llama.cpp would."""
    for key, value in (("pre", pre), ("name", name)):
        if not isinstance(value, (str, type(None))):
            raise TypeError(f"{key} must be a string, not {type(value).__name__}")
    if pre is not None and pre not in PRE_TOKENIZERS:
        raise FormatError(
            f"tokenizer.ggml.pre: {short_repr(pre)} is not a name of llama.cpp's that skyinfer knows; "
            f"use one of {', '.join(PRE_TOKENIZERS)}"
        )
    if name is not None:
        if not name:
            raise FormatError("general.name: must not be empty")
        if name != name_as_text(name):
            raise FormatError(f"general.name: {short_repr(name)} is not Unicode text")


def _as_float32(directory: Path, name: str, tensor: StoredTensor) -> np.ndarray:
    """Any tensor of numbers that numpy has; what float32 cannot hold becomes infinite."""
    if tensor.dtype == "BF16":
        values = as_float32(tensor.data.view("<u2"), "bf16")
    elif tensor.dtype in _NUMPY_TYPES:
        with np.errstate(over="ignore"):
            values = tensor.data.view(_NUMPY_TYPES[tensor.dtype]).astype(np.float32)
    else:
        raise FormatError(f"{directory}: tensor {name}: type {tensor.dtype} is not supported")
    return values.reshape(tensor.shape)
