"""What a model is, read from GGUF keys and checked whole: nothing after this looks at a raw key again.

A source is an open GGUF file (gguf.py) or a checkpoint directory (checkpoint/); both give the keys and tensor names of
the GGUF form. Tokenizer and template keys are read by text/tokenizer.py and text/template.py, except for the three
special ids, which the sequence needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np

from ..core.border import OPTION_LAYOUTS, tensor_shapes
from ..errors import FormatError, shown
from ..schema import QUESTION_TYPES
from ..text.ggml_tokenizer import are_strings
from .activations import BY_GGUF
from .limits import LEAST_F32, MAX_BLOCKS, MAX_D_FF, MAX_D_HEAD, MAX_D_MODEL, MAX_TOKENS, MAX_VOCAB, MOST_F32
from .paths import name_as_text
from .temperatures import TEMPERATURE_NAMES
from .tensors import ALL_ROWS, TensorInfo, without_ones

# `general.architecture` of each architecture of the core's, which its keys begin with
GGUF_ARCHITECTURES = {"s1": "modern-bert", "s2": "skyinfer-s2"}
# `decision.type`: a Laya model, and one that asks for what llama.cpp would compute otherwise. It refuses the second.
LAYA, LAYA_OF_OURS = "laya", "skyinfer-laya"
DECISION_TYPES = {"s1": (LAYA, LAYA_OF_OURS), "s2": ("skyinfer-s2",)}
_ARCHITECTURES = {name: architecture for architecture, name in GGUF_ARCHITECTURES.items()}

# what the Laya runtime takes where a checkpoint does not say
DEFAULT_MAX_TOKENS = 512
# what ModernBERT takes
DEFAULT_ROPE_BASE_GLOBAL = 160000.0
DEFAULT_ROPE_BASE_LOCAL = 10000.0
# llama.cpp's period of global layers, and ModernBERT's
DEFAULT_PERIOD = 3


class ModelSource(Protocol):
    """What a model is loaded from."""

    @property
    def path(self) -> Path: ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """GGUF keys -> bool, int, float, str or list."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def tensor(self, name: str) -> np.ndarray:
        """float32, in the shape of the tensor's `TensorInfo`."""
        ...

    def stored(self, name: str, rows: slice = ALL_ROWS) -> tuple[np.ndarray, str]:
        """(values of the rows, their type's name) as they lie in the file if the core reads that, else float32."""
        ...

    def label(self, name: str) -> str:
        """What the source itself calls a tensor of the GGUF form, for messages."""
        ...

    def forget(self, prefix: str) -> None:
        """The metadata whose keys begin so is not needed any more."""
        ...

    def release(self, name: str, rows: slice = ALL_ROWS) -> None:
        """The tensor, or some of its rows, is not needed in memory any more."""
        ...


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of a decision model.

    Attributes:
        name: what the file calls itself, or the file's stem.
        architecture: "s1", a Laya model, which has question, options and state in one sequence; or "s2", which encodes
            the state once, and each option with its question.
        n_layers: encoder blocks.
        n_decision_blocks: blocks of the decision head; 0 is possible in s1.
        d_model: width of a token's vector.
        n_heads: attention heads of the encoder.
        n_decision_heads: attention heads of the decision head, `max(1, d_model // 64)`.
        d_ff: inner width of an encoder feed-forward; the head's is `4 * d_model`.
        vocab_size: rows of the token embedding.
        norm_eps: of the encoder's norms; the head's is 1e-5.
        window: a local layer sees this many tokens to each side.
        layer_is_global: for each encoder block, whether it sees every token.
        rope_base_global: rotary base of global layers.
        rope_base_local: rotary base of local layers.
        activation: of the encoder's feed-forward, a name in `activations.ACTIVATIONS`; "gelu" is the exact one.
        max_tokens: longest sequence; in s2 of a state.
        max_head_tokens: tokens that question and options may take of it; in s2 the longest sequence of an option with
            its question.
        temperatures: raw, by "choice", "choice.2", "choice.3_5", "choice.6_10", "choice.11" and so on.
        cls_id: token that begins a sequence.
        sep_id: token that ends a part.
        mask_id: token that marks an option.
        option_layout: "sequential", or "parallel": the encoder gives all options of a question the same positions and
            lets none see another.
        context_tokens: how long the encoder's sequences may get, by the file; at least `max_tokens`.
    """

    name: str
    n_layers: int
    n_decision_blocks: int
    d_model: int
    n_heads: int
    n_decision_heads: int
    d_ff: int
    vocab_size: int
    norm_eps: float
    window: int
    layer_is_global: tuple[bool, ...]
    rope_base_global: float
    rope_base_local: float
    activation: str
    max_tokens: int
    max_head_tokens: int
    temperatures: dict[str, float]
    cls_id: int
    sep_id: int
    mask_id: int
    context_tokens: int
    option_layout: str = "sequential"
    architecture: str = "s1"

    @classmethod
    def from_source(cls, source: ModelSource) -> ModelConfig:
        """Read and check a source: every key, and every tensor's name and shape, dimensions of 1 aside.

        Raises:
            FormatError: the message names the key or tensor, or the dialect where the file is one of the
                other things that are called a Laya GGUF.
        """
        config = cls.from_metadata(source.metadata, source.path)
        expected = config.expected_tensors()
        for name, shape in expected.items():
            found = source.tensors.get(name)
            if found is None:
                raise FormatError(f"{source.path}: tensor {source.label(name)} is missing (expected {list(shape)})")
            if without_ones(found.shape) != without_ones(shape):
                raise FormatError(
                    f"{source.path}: tensor {source.label(name)}: expected {list(shape)}, found {list(found.shape)}"
                )
        for name in source.tensors:
            if name not in expected:
                raise FormatError(f"{source.path}: tensor {shown(name)} is unknown to {config.kind}")
        return config

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, Any], path: Path, origins: Mapping[str, str] | None = None
    ) -> ModelConfig:
        """The part of `from_source` that needs no tensors.

        `path` and `origins`, by key the file and entry that it was derived from, are for messages.
        """
        keys = _Keys(metadata, path, origins or {})
        _check_dialect(keys)

        # without one in the decision head, nothing in s2 would join options and state
        least = int(keys.architecture == "s2")
        n_blocks = keys.whole("block_count", 1 + least, MAX_BLOCKS)
        n_decision_blocks = keys.whole("decision.block_count", least, n_blocks - 1)
        n_layers = n_blocks - n_decision_blocks
        d_model = keys.whole("embedding_length", 2, MAX_D_MODEL)
        n_heads = keys.uniform("attention.head_count", n_blocks, d_model)
        if d_model % n_heads or (d_model // n_heads) % 2:
            keys.fail(
                "attention.head_count",
                f"{n_heads} heads do not divide {d_model} into even parts",
            )
        if d_model // n_heads > MAX_D_HEAD:
            keys.fail(
                "attention.head_count", f"heads of {d_model // n_heads} values (at most {MAX_D_HEAD} are possible)"
            )
        n_decision_heads = max(1, d_model // 64)
        if d_model % n_decision_heads:
            keys.fail(
                "embedding_length",
                f"{d_model} does not divide into the head's {n_decision_heads} attention heads",
            )
        keys.only("attention.head_count_kv", n_heads)
        keys.only("attention.key_length", d_model // n_heads)
        keys.only("attention.value_length", d_model // n_heads)
        keys.only("attention.causal", False)
        keys.only("rope.dimension_count", d_model // n_heads)
        keys.only("rope.scaling.type", "none")
        keys.only("tokenizer.ggml.token_type_count", len(QUESTION_TYPES))

        vocab_size = keys.vocab_size()
        window, layer_is_global = keys.attention_spans(n_blocks, n_layers)
        rope_base = keys.number("rope.freq_base", DEFAULT_ROPE_BASE_GLOBAL)
        # a file that states one base means it for both kinds of layers, as llama.cpp reads it
        stated = keys.get("rope.freq_base") is not None
        activation = keys.text("hidden_activation", "gelu")
        if activation not in BY_GGUF:
            keys.fail("hidden_activation", f"{shown(activation)} is not supported ({', '.join(BY_GGUF)} are)")
        # llama.cpp's converter knows norm_eps, ModernBERT's own spelling, only under the other name
        eps_key, other_eps_key = (f"attention.layer_norm_{part}epsilon" for part in ("", "rms_"))
        if keys.get(eps_key) is None and keys.get(other_eps_key) is not None:
            eps_key = other_eps_key
        cls_key = "tokenizer.ggml.cls_token_id"
        if cls_key not in metadata:
            cls_key = "tokenizer.ggml.bos_token_id"
        max_tokens = keys.whole("decision.max_tokens", 1, MAX_TOKENS, DEFAULT_MAX_TOKENS)
        return cls(
            name=keys.text("general.name", name_as_text(path.stem) or "model"),
            n_layers=n_layers,
            n_decision_blocks=n_decision_blocks,
            d_model=d_model,
            n_heads=n_heads,
            n_decision_heads=n_decision_heads,
            d_ff=keys.feed_forward(n_layers, n_decision_blocks, d_model),
            vocab_size=vocab_size,
            norm_eps=keys.number(eps_key, most=1.0),
            window=window,
            layer_is_global=layer_is_global,
            rope_base_global=rope_base,
            rope_base_local=keys.number("rope.freq_base_swa", rope_base if stated else DEFAULT_ROPE_BASE_LOCAL),
            activation=BY_GGUF[activation].name,
            max_tokens=max_tokens,
            max_head_tokens=keys.whole("decision.max_head_tokens", 1, MAX_TOKENS),
            temperatures=keys.temperatures(),
            cls_id=keys.whole(cls_key, 0, vocab_size - 1),
            # the GGUF specification's own spelling
            sep_id=keys.whole("tokenizer.ggml.seperator_token_id", 0, vocab_size - 1),
            mask_id=keys.whole("tokenizer.ggml.mask_token_id", 0, vocab_size - 1),
            context_tokens=keys.context_tokens(max_tokens),
            option_layout=keys.option_layout(),
            architecture=keys.architecture,
        )

    @property
    def kind(self) -> str:
        """What messages call such a model."""
        return "a Laya model" if self.architecture == "s1" else f"an {self.architecture} model"

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the model and its shape, rows first, in the order of the forward pass, as the core says."""
        return tensor_shapes(
            d_model=self.d_model,
            d_ff=self.d_ff,
            n_vocab=self.vocab_size,
            n_layers=self.n_layers,
            n_decision_blocks=self.n_decision_blocks,
            architecture=self.architecture,
        )


def temperature_key(gguf_architecture: str) -> str:
    """What the keys of temperatures begin with in a file of this `general.architecture`."""
    return f"{gguf_architecture}.decision.temperature."


class _Keys:
    """Typed access to metadata. Names without a room of their own are the architecture's.

    Attributes:
        architecture: of the core; s1 where the file's own is none.
    """

    def __init__(self, metadata: Mapping[str, Any], path: Path, origins: Mapping[str, str]) -> None:
        self.metadata = metadata
        self.path = path
        self.origins = origins
        stated = metadata.get("general.architecture")
        self.architecture = _ARCHITECTURES.get(stated, "s1") if isinstance(stated, str) else "s1"

    def full(self, name: str) -> str:
        known = name.startswith(("general.", "tokenizer.", "split."))
        return name if known else f"{GGUF_ARCHITECTURES[self.architecture]}.{name}"

    def get(self, name: str) -> Any:
        return self.metadata.get(self.full(name))

    def fail(self, name: str, message: str) -> NoReturn:
        key = self.full(name)
        raise FormatError(f"{self.origins.get(key) or f'{self.path}: key {shown(key)}'}: {message}")

    def whole(self, name: str, least: int, most: int, default: int | None = None) -> int:
        value = self.get(name)
        if value is None:
            if default is None:
                self.fail(name, "is missing")
            return default
        if not _is_whole(value):
            self.fail(name, f"expected a whole number, found {_kind(value)}")
        if not least <= value <= most:
            self.fail(name, f"{value} is outside {least} to {most}")
        return int(value)

    def number(self, name: str, default: float | None = None, most: float = math.inf) -> float:
        """A finite number above zero."""
        value = self.get(name)
        if value is None:
            if default is None:
                self.fail(name, "is missing")
            return default
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            self.fail(name, f"expected a number, found {_kind(value)}")
        # what is stored as f64 has to survive as the f32 that everything computes with
        if not (LEAST_F32 <= value <= MOST_F32 and value <= most):
            self.fail(name, f"{value} is not a finite number above zero")
        return float(value)

    def context_tokens(self, least: int) -> int:
        """Only ever an upper bound to what `least` allows already, so a file need not have it right."""
        value = self.get("context_length")
        return min(max(value, least), MAX_TOKENS) if _is_whole(value) else least

    def text(self, name: str, default: str) -> str:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            self.fail(name, f"expected a string, found {_kind(value)}")
        return value

    def option_layout(self) -> str:
        name = "decision.option_layout"
        layout = self.text(name, "sequential")
        if layout not in OPTION_LAYOUTS:
            self.fail(name, f"{shown(layout)} is not supported ({' and '.join(OPTION_LAYOUTS)} are)")
        if self.architecture != "s1" and layout != "sequential":
            self.fail(name, f"{layout} is of models that have their options in one sequence, and this one has not")
        return layout

    def only(self, name: str, expected: bool | int | str) -> None:
        """A key that may be absent, and has one possible value."""
        value = self.get(name)
        if value is not None and (type(value) is not type(expected) or value != expected):
            found = _kind(value) if isinstance(value, list) else shown(str(value))
            self.fail(name, f"expected {expected}, found {found}")

    def list_of_whole(self, name: str, value: list[Any]) -> list[int]:
        if not all(_is_whole(one) for one in value):
            self.fail(name, "expected an array of whole numbers")
        return value

    def uniform(self, name: str, n_blocks: int, most: int) -> int:
        """One number, or an array that repeats it for each block."""
        value = self.get(name)
        if isinstance(value, list):
            numbers = self.list_of_whole(name, value)
            if len(numbers) != n_blocks or len(set(numbers)) != 1:
                self.fail(name, f"expected one number for all {n_blocks} blocks")
            value = numbers[0]
            if not 1 <= value <= most:
                self.fail(name, f"{value} is outside 1 to {most}")
            return value
        return self.whole(name, 1, most)

    def feed_forward(self, n_layers: int, n_decision_blocks: int, d_model: int) -> int:
        name = "feed_forward_length"
        value = self.get(name)
        if isinstance(value, list):
            widths = self.list_of_whole(name, value)
        else:
            widths = [self.whole(name, 1, MAX_D_FF)] * (n_layers + n_decision_blocks)
        if len(widths) != n_layers + n_decision_blocks:
            self.fail(name, f"{len(widths)} entries for {n_layers + n_decision_blocks} blocks")
        if len(set(widths[:n_layers])) != 1:
            self.fail(name, "the encoder blocks differ in width")
        if any(width != 4 * d_model for width in widths[n_layers:]):
            self.fail(name, f"a block of the decision head is not {4 * d_model} wide")
        if not 1 <= widths[0] <= MAX_D_FF:
            self.fail(name, f"{widths[0]} is outside 1 to {MAX_D_FF}")
        return widths[0]

    def vocab_size(self) -> int:
        tokens = self.get("tokenizer.ggml.tokens")
        if tokens is not None and not (isinstance(tokens, list) and are_strings(tokens)):
            self.fail("tokenizer.ggml.tokens", "expected an array of strings")
        size = self.whole("vocab_size", 1, MAX_VOCAB, len(tokens) if tokens else None)
        if tokens is not None and len(tokens) != size:
            self.fail("tokenizer.ggml.tokens", f"{len(tokens)} tokens for a vocabulary of {size}")
        return size

    def attention_spans(self, n_blocks: int, n_layers: int) -> tuple[int, tuple[bool, ...]]:
        """Tokens seen to each side in local layers, and which layers are global."""
        size = self.whole("attention.sliding_window", 0, 2 * MAX_TOKENS, 0)
        if size == 0:
            return 0, (True,) * n_layers
        name = "attention.sliding_window_pattern"
        pattern = self.get(name)
        if isinstance(pattern, list):
            # true where a block is local; llama.cpp writes an entry for the head's blocks too
            if len(pattern) not in (n_layers, n_blocks):
                self.fail(name, f"{len(pattern)} entries for {n_blocks} blocks")
            if not all(type(one) is bool or (_is_whole(one) and one in (0, 1)) for one in pattern):
                self.fail(name, "expected a whole number or an array of bools")
            return size // 2, tuple(not one for one in pattern[:n_layers])
        period = self.whole(name, 0, MAX_BLOCKS, DEFAULT_PERIOD)
        return size // 2, tuple(period != 0 and i % period == 0 for i in range(n_layers))

    def temperatures(self) -> dict[str, float]:
        """In the file's order, without names that no question type and number of options has."""
        out: dict[str, float] = dict.fromkeys(QUESTION_TYPES, 1.0)
        prefix = temperature_key(GGUF_ARCHITECTURES[self.architecture])
        for key in self.metadata:
            name = key.removeprefix(prefix)
            if name != key and name in TEMPERATURE_NAMES:
                out[name] = self.number(f"decision.temperature.{name}")
        return out


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _kind(value: object) -> str:
    return "an array" if isinstance(value, list) else f"a {type(value).__name__}"


def _check_dialect(keys: _Keys) -> None:
    """Refuse, by name, what is neither llama.cpp's form of a Laya model nor an s2 model."""

    def refuse(what: str) -> NoReturn:
        raise FormatError(f"{keys.path}: {what}; convert the original checkpoint with `skyinfer convert` instead")

    if any(key.startswith("ggmlc.") for key in keys.metadata):
        refuse("a Laya GGUF in the ggmlc format (a compiled graph), which only ggmlc runs")
    architecture = keys.text("general.architecture", "")
    if architecture == "laya":
        refuse('a Laya GGUF of architecture "laya" (ZeroDegress), which its own runtimes read')
    if not architecture:
        keys.fail("general.architecture", "is missing")
    if architecture not in _ARCHITECTURES:
        expected = " or ".join(GGUF_ARCHITECTURES.values())
        keys.fail("general.architecture", f"expected {expected}, found {shown(architecture)}")
    for other in GGUF_ARCHITECTURES.values():
        strange = next((key for key in keys.metadata if other != architecture and key.startswith(f"{other}.")), None)
        if strange is not None:
            keys.fail("general.architecture", f"is {architecture}, and key {shown(strange)} is {other}'s")
    if architecture == "modern-bert" and keys.get("decision.type") is None and keys.get("decision.block_count") is None:
        refuse(
            "a ModernBERT backbone without a decision head (key modern-bert.decision.type is "
            "missing; the head may lie beside it as laya-head.safetensors)"
        )
    if keys.get("decision.type") is None:
        keys.fail("decision.type", "is missing")
    kind, kinds = keys.get("decision.type"), DECISION_TYPES[keys.architecture]
    if kind not in kinds:
        keys.fail("decision.type", f"expected {' or '.join(kinds)}, found {shown(str(kind))}")
    if keys.whole("split.count", 0, 1 << 16, 1) > 1:
        keys.fail("split.count", "the file is one part of a split model; merge the parts first")
