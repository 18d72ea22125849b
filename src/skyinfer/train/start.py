"""What a training begins with: a new model of one of the sizes, or an earlier checkpoint.

Both give configuration files, a tokenizer (written at once, because sequences are laid out with it) and weights.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import SkyinferError
from ..files.checkpoint.initial import read_initial
from ..text.template import PromptTemplate, laya_template
from .architectures import DEFAULT
from .encoding import texts_of
from .network import Shape, initial_weights
from .options import Options
from .rows import Dataset
from .sizes import SIZES
from .variants import draw_of, varied
from .vocabulary import ROLES, learn_tokenizer, tokenizer_config
from .writing import TOKENIZER, agent_config, encoder_config, write_json

# A tokenizer is learned from the examples of this many states.
_TOKENIZER_STATES = 20_000


@dataclass(frozen=True)
class Start:
    """What a training begins with.

    Attributes:
        shape: sizes of the network.
        weights: float32, by the checkpoint's names, in the shapes of `Shape.tensors`; training changes them in place.
        encoder, agent: contents of encoder/config.json and rl_agent_config.json.
        max_len, head_max_len: tokens of a sequence, and of question and options in it.
        unused: tensors of the checkpoint that no answer depends on, as they are written.
    """

    shape: Shape
    weights: dict[str, torch.Tensor]
    encoder: dict[str, Any]
    agent: dict[str, Any]
    max_len: int
    head_max_len: int
    unused: dict[str, np.ndarray]


def new_model(dataset: Dataset, options: Options, augmentation: tuple[str, ...], staged: Path) -> Start:
    """A model of `options.size` with a tokenizer that is learned from the rows, as given and varied by `augmentation`,
    written to `staged`."""
    size, architecture = SIZES[options.size], options.architecture or DEFAULT
    special = {role: ROLES[role] for role in ("cls", "sep", "mask")}
    template = PromptTemplate(laya_template(**special), **special)
    tokenizer = learn_tokenizer(
        _texts(dataset, template, augmentation, options.seed), options.vocab_size or size.vocab_size
    )
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    write_json(staged / TOKENIZER / "tokenizer.json", tokenizer)
    write_json(staged / TOKENIZER / "tokenizer_config.json", tokenizer_config(8192))
    encoder = encoder_config(
        d_model=size.d_model,
        n_layers=size.n_layers,
        n_heads=size.n_heads,
        d_ff=size.d_ff,
        vocab_size=max(ids.values()) + 1,
        special_ids={role: ids[content] for role, content in ROLES.items()},
    )
    shape = Shape(
        size.d_model, size.n_layers, size.n_heads, size.d_ff, size.n_decision_blocks, encoder["vocab_size"],
        layer_is_global=tuple(i % encoder["global_attn_every_n_layers"] == 0 for i in range(size.n_layers)),
        architecture=architecture,
    )  # fmt: skip
    agent, unused = agent_config(architecture, size.d_model, size.n_decision_blocks)
    return Start(
        shape,
        initial_weights(shape, options.seed),
        encoder,
        agent,
        options.max_len or size.max_len,
        options.head_max_len or size.head_max_len,
        unused,
    )


def from_checkpoint(directory: Path, options: Options, staged: Path) -> Start:
    """An earlier checkpoint, checked as `skyinfer.load` checks it; its tokenizer is copied to `staged`.

    Raises:
        FormatError: it is none, or a faulty one.
        OptionError: `options.head_max_len` is more than the model reads, or `options.architecture` is not the model's.
    """
    initial = read_initial(directory)
    config = initial.config
    options.check_init(config.architecture)
    max_len = options.max_len or config.max_tokens
    options.check_head(max_len, config.architecture)
    shape = Shape(
        config.d_model, config.n_layers, config.n_heads, config.d_ff, config.n_decision_blocks,
        config.vocab_size, config.norm_eps, config.window, config.layer_is_global, config.rope_base_global,
        config.rope_base_local, config.activation, config.architecture,
    )  # fmt: skip
    for file in initial.tokenizer_files:
        shutil.copyfile(file, staged / TOKENIZER / file.name)
    return Start(
        shape,
        {name: torch.from_numpy(initial.weights[name]) for name, _ in shape.tensors()},
        initial.encoder,
        initial.agent,
        max_len,
        options.head_max_len or config.max_head_tokens,
        {name: _smallest(values) for name, values in initial.unused.items()},
    )


def as_float16(name: str, values: np.ndarray) -> np.ndarray:
    """`values` rounded, as the tensor `name` is written; in any shape.

    Raises:
        SkyinferError: one is NaN or too large.
    """
    if not _fits_float16(values):
        raise SkyinferError(f"tensor {name}: a weight is too large for F16, or is NaN")
    return values.astype(np.float16)


def _fits_float16(values: np.ndarray) -> bool:
    return bool(np.abs(values).max(initial=0.0) < 65520.0)  # NaN is not


def _smallest(values: np.ndarray) -> np.ndarray:
    """float32 values of any shape as float16 where that holds them: nothing is computed with them."""
    return values.astype(np.float16) if _fits_float16(values) else values


def _texts(dataset: Dataset, template: PromptTemplate, augmentation: tuple[str, ...], seed: int) -> Iterator[str]:
    """What the tokenizer is learned from: the parts of every sequence, for a sample of the states, as given and, where
    training varies them, once more in other words."""
    asked = [texts_of(question, template) for question in dataset.questions]
    stride = -(-len(dataset.states) // _TOKENIZER_STATES)
    chosen = range(0, len(dataset.states), stride)
    counts = [0] * len(asked)
    for example in dataset.examples:
        if example.state % stride == 0:
            counts[example.question] += 1
    given = [dataset.states[i] for i in chosen]
    texts = [state.text for state in given]
    # further keys are letters by chance, and no words to learn
    kinds = set(augmentation) - {"options", "extra"}
    if kinds:
        texts += [varied(state, kinds, draw_of(state, 0, seed)) for state in given]
    states = (template.state(text) for text in texts)
    # a question that no state of the sample is asked about is there, too
    asked_texts = (text for texts, n in zip(asked, counts, strict=True) for _ in range(max(1, n)) for text in texts)
    return chain(states, asked_texts)
