"""The options of a training: their checks, and what is taken where one is not given.

No torch, so that the command line can refuse an option at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .architectures import ARCHITECTURES, DEFAULT
from .sizes import SIZES
from .variants import AUGMENTATIONS
from .vocabulary import LEAST_SIZE

_BATCH_SIZE, _LEAST_BATCH = 128, 32
# In s2 what is asked about a state comes together, and a batch about few states would say little: it has as many
# examples as are about this many states, within a limit.
_BATCH_STATES, _MOST_BATCH = 64, 2048
# Where the number of epochs is not given: as many as make this many examples, within limits; more where there are so
# few examples that this would be fewer updates than the least.
_EXAMPLES, _LEAST_EPOCHS, _MOST_EPOCHS = 240_000, 3, 60
_LEAST_STEPS, _MOST_EPOCHS_OF_FEW = 600, 200
# of a model that was trained before
_INIT_LR = 1e-3


class OptionError(ValueError):
    """An argument of `train_rows` is out of range."""


class UnfinishedError(FileExistsError):
    """The directory holds an unfinished training, and was to be neither resumed nor forced."""


@dataclass(frozen=True)
class Options:
    """The arguments of `train_rows` that results depend on."""

    size: str
    vocab_size: int | None
    max_len: int | None
    head_max_len: int | None
    epochs: float | None
    batch_size: int | None
    lr: float | None
    held_out: float | None
    seed: int
    init: Path | None
    augment: tuple[str, ...]
    architecture: str | None = None

    def check(self) -> None:
        """
        Raises:
            OptionError: one is out of range.
        """
        if self.size not in SIZES:
            raise OptionError(f"unknown size {self.size!r}; choose one of {', '.join(SIZES)}")
        if self.architecture is not None and self.architecture not in ARCHITECTURES:
            raise OptionError(f"unknown architecture {self.architecture!r}; choose one of {', '.join(ARCHITECTURES)}")
        check_whole("vocab_size", self.vocab_size, LEAST_SIZE + 1, 1 << 17)
        check_whole("max_len", self.max_len, 16, 8192)
        check_whole("head_max_len", self.head_max_len, 16, 8192)
        check_whole("batch_size", self.batch_size, 1, 1 << 20)
        check_whole("seed", self.seed, 0, (1 << 63) - 1)
        _check_real("epochs", self.epochs, 0.0, 1e6, "more than 0 and at most 1000000")
        _check_real("lr", self.lr, 0.0, 1.0, "more than 0 and at most 1")
        if self.held_out != 0:
            _check_real("held_out", self.held_out, 0.0, 0.9, "a fraction from 0 to 0.9")
        if self.init is not None and self.vocab_size is not None:
            raise OptionError("vocab_size: the tokenizer of init is used as it is; leave vocab_size out")
        # init's own length stands for max_len, and is not known before init is open
        if self.init is None or self.max_len is not None:
            self.check_head(self.max_len or SIZES[self.size].max_len, self.architecture or DEFAULT)

    def check_head(self, max_len: int, architecture: str) -> None:
        """Refuse a given `head_max_len` above the `max_len` that it is a part of; the default one may be cut, as in an
        answer."""
        if not ARCHITECTURES[architecture].head_is_part:
            return
        if self.head_max_len is not None and self.head_max_len > max_len:
            raise OptionError(f"head_max_len: expected at most max_len, which is {max_len}, got {self.head_max_len}")

    def check_init(self, architecture: str) -> None:
        """Refuse an `init` of another architecture than the one that is asked for."""
        if self.architecture not in (None, architecture):
            raise OptionError(
                f"architecture: {self.init} is an {architecture} model; no {self.architecture} model starts from it"
            )

    def batch_size_for(self, n: int) -> int:
        """Examples of an update, of `n` to learn from."""
        return self.batch_size or min(_BATCH_SIZE, max(_LEAST_BATCH, 1 << max(0, (n // 16).bit_length() - 1)))

    def for_states(self, n: int, n_states: int) -> Options:
        """With the batch size for `n` examples about `n_states` states, each read once, where none is given."""
        if self.batch_size is not None:
            return self
        states = min(_MOST_BATCH, round(_BATCH_STATES * n / n_states))
        return replace(self, batch_size=max(self.batch_size_for(n), states))

    def steps_for(self, n: int) -> int:
        """Updates for `n` examples to learn from."""
        return max(1, math.ceil(self._epochs_for(n) * n / min(self.batch_size_for(n), n)))

    def passes_over(self, n: int) -> int:
        """How often each of `n` examples is learned from, rounded up."""
        return math.ceil(self._epochs_for(n))

    def _epochs_for(self, n: int) -> float:
        if self.epochs is not None:
            return self.epochs
        epochs = min(_MOST_EPOCHS, max(_LEAST_EPOCHS, round(_EXAMPLES / n)))
        of_few = min(_MOST_EPOCHS_OF_FEW, math.ceil(_LEAST_STEPS * self.batch_size_for(n) / n))
        return max(epochs, of_few)

    @property
    def highest_lr(self) -> float:
        return self.lr or (SIZES[self.size].lr if self.init is None else _INIT_LR)


def augmentations(given: bool | str | Iterable[str]) -> tuple[str, ...]:
    """The kinds of variation that `augment` asks for, in the order of `AUGMENTATIONS`.

    Raises:
        OptionError: one is unknown.
    """
    if isinstance(given, bool):
        return AUGMENTATIONS if given else ()
    names = [name.strip() for name in given.split(",")] if isinstance(given, str) else list(given)
    if names == ["all"] or names == ["none"]:
        return augmentations(names == ["all"])
    if "all" in names or "none" in names:
        raise OptionError(f"augment: all and none stand alone; or choose of {', '.join(AUGMENTATIONS)}")
    for name in names:
        if name not in AUGMENTATIONS:
            raise OptionError(f"augment: unknown {name!r}; choose of {', '.join(AUGMENTATIONS)}; or all, or none")
    return tuple(name for name in AUGMENTATIONS if name in names)


def check_whole(name: str, value: Any, least: int, most: int) -> None:
    """
    Raises:
        OptionError: `value` is neither None nor a whole number from `least` to `most`.
    """
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most):
        raise OptionError(f"{name}: expected a whole number from {least} to {most}, got {value!r}")


def _check_real(name: str, value: Any, above: float, most: float, wanted: str) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not (is_number and above < value <= most):
        raise OptionError(f"{name}: expected {wanted}, got {value!r}")
