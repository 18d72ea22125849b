"""The training loop: the cross entropy goes down, in chunks that several threads compute, resumable at any step.

Each chunk runs on one thread and gradients are added in the chunks' order, so the same seed gives the same weights bit
by bit for any number of threads (on one machine and one version of torch). All randomness of a step follows from the
seed and the step's number: a snapshot is weights, the optimizer's moments and a count.
"""

from __future__ import annotations

import io
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import FormatError, SkyinferError
from ..files.whole_file import WholeFile
from .architectures import ARCHITECTURES
from .batches import Chunk, chunks_of
from .directory import SnapshotError
from .encoding import Drawn, Encoded
from .network import Batch, Encoder, Network
from .optimizer import Optimizer
from .set_batches import OptionChunk, StateChunk, laid_out
from .set_network import OptionBatch, SetNetwork, StateBatch

_Given = TypeVar("_Given")
_Found = TypeVar("_Found")

# Between two snapshots; of a large model, which take long, no more than this share of the time goes into them.
_SNAPSHOT_SECONDS, _SNAPSHOT_SHARE = 10.0, 0.05
_CLIP = 1.0  # norm of all gradients together


@dataclass(frozen=True)
class Plan:
    """How long and how hard to train.

    Attributes:
        n_steps: updates of the weights. batch_size: examples of one.
        lr: highest learning rate (AdamW's): reached after `warmup` of the steps, falling to 0 in a line from there on.
        weight_decay: of matrices.
        seed: of the order of examples, and of how they are varied.
        augmentation: what is varied, of `variants.AUGMENTATIONS`.
    """

    n_steps: int
    batch_size: int
    lr: float
    warmup: float
    weight_decay: float
    seed: int
    augmentation: tuple[str, ...] = ()

    def rate(self, step: int) -> float:
        """Learning rate of update number `step`, counted from 0."""
        rising = max(1, round(self.warmup * self.n_steps))
        if step < rising:
            return self.lr * (step + 1) / rising
        return self.lr * (self.n_steps - step) / max(1, self.n_steps - rising)


@dataclass
class Standing:
    """How far a training is: what a snapshot holds beside weights and moments."""

    step: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)


class Workers:
    """Threads that compute chunks, each with torch confined to it."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, "skyinfer-train", initializer=torch.set_num_threads, initargs=(1,))

    def map(self, work: Callable[[_Given], _Found], chunks: Iterable[_Given]) -> Iterator[_Found]:
        """Results in the order of `chunks`."""
        return self._pool.map(work, chunks)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


@contextmanager
def workers(threads: int) -> Iterator[Workers]:
    """Threads for the block; torch is left with the number of threads that it had."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    found = Workers(threads)
    try:
        yield found
    finally:
        found.close()
        torch.set_num_threads(before)


class Laid(NamedTuple):
    """A batch as it goes through the network: of s2 first its options, whose outcome is shared by all chunks."""

    options: list[OptionChunk]
    chunks: Sequence[Chunk | StateChunk]


class Computing(NamedTuple):
    """What computes an architecture: its network, and what lays examples out for that (`laid`)."""

    network: type[Encoder]
    laid: Callable[[Encoded, np.ndarray, np.ndarray, Drawn | None], Laid]


COMPUTING = {
    "s1": Computing(Network, lambda *given: Laid([], chunks_of(*given))),
    "s2": Computing(SetNetwork, lambda *given: Laid(*laid_out(*given))),
}


def laid(encoded: Encoded, examples: np.ndarray, weights: np.ndarray, drawn: Drawn | None) -> Laid:
    """`examples` as the network of their architecture takes them; arguments as those of `chunks_of`."""
    return COMPUTING[encoded.architecture].laid(encoded, examples, weights, drawn)


def batch_of(chunk: Chunk) -> Batch:
    arrays = (chunk.markers, chunk.options, chunk.kinds)
    return Batch(torch.from_numpy(chunk.ids), _keys(chunk), *map(torch.from_numpy, arrays))


def option_batch(chunk: OptionChunk) -> OptionBatch:
    return OptionBatch(torch.from_numpy(chunk.ids), _keys(chunk), *map(torch.from_numpy, (chunk.markers, chunk.kinds)))


def state_batch(chunk: StateChunk) -> StateBatch:
    n_rows, counts = len(chunk.table_rows), chunk.row_counts
    has_row = np.arange(counts.max()) < counts[:, None]
    by_state, by_question = np.zeros(has_row.shape, np.int64), np.zeros(chunk.options.shape, np.int64)
    by_state[has_row] = by_question[chunk.options] = np.arange(n_rows)
    arrays = (
        chunk.table_rows, by_state, np.flatnonzero(has_row), by_question, chunk.options, np.flatnonzero(chunk.options)
    )  # fmt: skip
    return StateBatch(torch.from_numpy(chunk.ids), _keys(chunk), *map(torch.from_numpy, arrays))


def _keys(chunk: Chunk | OptionChunk | StateChunk) -> Tensor | None:
    length = chunk.ids.shape[1]
    padded = int(chunk.lengths.min()) < length
    return torch.from_numpy(np.arange(length) < chunk.lengths[:, None]) if padded else None


def logits_of(network: Encoder, chunk: Chunk | StateChunk, table: Tensor | None) -> Tensor:
    """[n, n_options] scores of a chunk. table: what the network makes of the options of an s2 batch."""
    if isinstance(chunk, StateChunk):
        assert isinstance(network, SetNetwork)
        assert table is not None
        return network.logits(state_batch(chunk), table)
    assert isinstance(network, Network)
    return network.logits(batch_of(chunk))


def cross_entropy(logits: Tensor, chunk: Chunk | StateChunk) -> Tensor:
    """Sum over the chunk of weight * cross entropy."""
    p = F.log_softmax(logits, -1).masked_fill(logits.isneginf(), 0.0)
    per_example = -(torch.from_numpy(chunk.targets) * p).sum(-1)
    return (torch.from_numpy(chunk.weights) * per_example).sum()


class Fit:
    """A network in training."""

    def __init__(
        self, network: Encoder, encoded: Encoded, examples: np.ndarray, weights: np.ndarray, plan: Plan
    ) -> None:
        """`examples`: those to learn from; `weights`: [n_examples of `encoded`], what each counts in the loss."""
        self.network, self.plan, self.standing = network, plan, Standing()
        self._torn = False
        self._encoded, self._examples, self._weights = encoded, examples, weights
        self._parameters = list(network.weights.values())
        for parameter in self._parameters:
            parameter.requires_grad_(True)
        self._optimizer = Optimizer(network.weights, network.shape.d_model, plan.weight_decay)
        self._order: tuple[int, np.ndarray] = (-1, examples)
        self._table: Tensor | None = None  # what s2's network made of the options of the step that is under way

    @property
    def done(self) -> bool:
        return self.standing.step >= self.plan.n_steps

    def batch(self, step: int) -> np.ndarray:
        """The examples of one step: the next ones in an order that is drawn anew for every epoch."""
        n = len(self._examples)
        size = min(self.plan.batch_size, n)
        start = step * size
        parts = []
        while size:
            epoch, place = divmod(start, n)
            if self._order[0] != epoch:
                self._order = epoch, self._examples[self._in_order(np.random.default_rng([self.plan.seed, 1, epoch]))]
            part = self._order[1][place : place + size]
            parts.append(part)
            start, size = start + len(part), size - len(part)
        return np.concatenate(parts)

    def _in_order(self, draw: np.random.Generator) -> np.ndarray:
        """The places of the examples in one epoch's order: all about a state together where it is read once."""
        if not ARCHITECTURES[self._encoded.architecture].reads_state_once:
            return draw.permutation(len(self._examples))
        _, which = np.unique(self._encoded.state[self._examples], return_inverse=True)
        found: np.ndarray = np.argsort(draw.permutation(which.max() + 1)[which], kind="stable")
        return found

    def step(self, threads: Workers) -> float:
        """One update. Returns the batch's mean loss."""
        began = time.perf_counter()
        chosen = self.batch(self.standing.step)
        draw = np.random.default_rng([self.plan.seed, 2, self.standing.step])
        drawn = self._encoded.drawn(chosen, draw, options="options" in self.plan.augmentation)
        loss, *gradients = self._of_batch(laid(self._encoded, chosen, self._weights, drawn), threads)
        torch._foreach_div_(gradients, float(len(chosen)))
        mean = float(loss) / len(chosen)
        if not math.isfinite(mean):
            remedy = f"try a lower learning rate than {self.plan.lr:g}"
            if self.standing.step == 0:  # before any rate was applied
                remedy = "the model that training starts from cannot be learned from, its weights are too large"
            raise FloatingPointError(f"the loss is {mean} at step {self.standing.step + 1}; {remedy}")
        norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))
        if norm > _CLIP:
            torch._foreach_mul_(gradients, _CLIP / norm)
        self._torn = True
        self._optimizer.step(gradients, self.plan.rate(self.standing.step))
        self.standing.losses.append(mean)
        self.standing.step += 1
        self.standing.seconds += time.perf_counter() - began
        self._torn = False
        return mean

    def _of_batch(self, batch: Laid, threads: Workers) -> list[Tensor]:
        """[loss, gradient of each parameter], summed over the batch."""
        tables = list(threads.map(self._options, batch.options))
        self._table = torch.cat([own.detach() for own in tables]).requires_grad_(True) if tables else None
        total = _sum(threads.map(self._gradients, batch.chunks))
        if tables:
            # what the chunks together ask of the options, handed on to the weights that the options came from
            asked = torch.split(total.pop(), [len(own) for own in tables])
            own = threads.map(lambda pair: _gradients_of(*pair, self._parameters), zip(tables, asked, strict=True))
            torch._foreach_add_(total[1:], _sum(own))
        return total

    def _options(self, chunk: OptionChunk) -> Tensor:
        assert isinstance(self.network, SetNetwork)
        return self.network.options(option_batch(chunk))

    def _gradients(self, chunk: Chunk | StateChunk) -> list[Tensor]:
        """[loss, gradient of each parameter and of s2's table of options], summed over the chunk."""
        loss = cross_entropy(logits_of(self.network, chunk, self._table), chunk)
        wanted = self._parameters if self._table is None else [*self._parameters, self._table]
        return [loss.detach(), *_gradients_of(loss, None, wanted)]

    # ------------------------------------------------------------------------------------- snapshots

    def save(self, path: Path, fingerprint: str) -> None:
        """Write a snapshot: the old one is replaced by a whole new one. In the middle of an update there is nothing
        that could be gone on from, and the old one stays."""
        if self._torn or not self.standing.step:
            return
        content = {
            "fingerprint": fingerprint,
            "step": self.standing.step,
            "seconds": self.standing.seconds,
            "losses": self.standing.losses,
            "weights": {name: values.detach() for name, values in self.network.weights.items()},
            "optimizer": self._optimizer.state(),
        }
        buffer = io.BytesIO()
        torch.save(content, buffer)
        whole = WholeFile(path, replace=True)
        with whole.writing() as file, whole.faults_named():
            file.write(buffer.getbuffer())

    def restore(self, path: Path, fingerprint: str) -> None:
        """Go on where a snapshot was taken.

        Raises:
            SnapshotError: it is faulty, or of another training.
        """
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
            if content["fingerprint"] != fingerprint:
                raise SnapshotError(f"{path}: holds a training of other rows or options, which alone go on with it")
            standing = Standing(int(content["step"]), float(content["seconds"]), list(map(float, content["losses"])))
            self._check(standing, content["weights"])
            self._optimizer.check(content["optimizer"])
        except (FormatError, OSError, MemoryError):
            raise
        except Exception as error:
            # of an empty file torch says nothing
            reason = f" ({error})" if str(error) else ""
            raise SnapshotError(f"{path}: not a snapshot of a training{reason}") from error
        # everything fits: a snapshot that is refused has changed nothing
        self._torn = True
        with torch.no_grad():
            for name, values in content["weights"].items():
                self.network.weights[name].copy_(values)
        self._optimizer.restore(content["optimizer"])
        self.standing = standing
        self._torn = False

    def _check(self, standing: Standing, weights: Mapping[str, Tensor]) -> None:
        if not 0 < standing.step <= self.plan.n_steps or len(standing.losses) != standing.step:
            raise ValueError(f"step {standing.step} of {self.plan.n_steps}, {len(standing.losses)} losses")
        if weights.keys() != self.network.weights.keys():
            raise ValueError("its weights are those of another model")
        for name, mine in self.network.weights.items():
            if weights[name].shape != mine.shape or weights[name].dtype != mine.dtype:
                raise ValueError(f"tensor {name}: expected {list(mine.shape)}, found {list(weights[name].shape)}")


def _gradients_of(outcome: Tensor, asked: Tensor | None, wanted: list[Tensor]) -> list[Tensor]:
    """`asked`: the gradient of what is to be least by `outcome`; None where it is that itself."""
    found = torch.autograd.grad(outcome, wanted, asked, allow_unused=True, materialize_grads=True)
    return list(found)


def _sum(found: Iterator[list[Tensor]]) -> list[Tensor]:
    """In the order in which they come, whatever the number of threads."""
    total = next(found)
    for one in found:
        torch._foreach_add_(total, one)
    return total


@contextmanager
def kept(fit: Fit, snapshot: Path, fingerprint: str) -> Iterator[None]:
    """Take a snapshot of what was learned when an exception such as Ctrl-C's ends the block; none where the same would
    happen again. Whoever kills the process loses what came after the last snapshot."""
    try:
        yield
    except (FloatingPointError, SkyinferError):
        raise
    except BaseException:
        try:
            fit.save(snapshot, fingerprint)
        except OSError as error:
            # what ended the training is worth more than this
            warnings.warn(f"no snapshot could be written: {error}", RuntimeWarning, stacklevel=3)
        raise


def run(
    fit: Fit,
    threads: Workers,
    snapshot: Path,
    fingerprint: str,
    progress: Callable[[str, int, int], None],
) -> None:
    """Train to the end, and take a snapshot now and then."""
    pause, last = _SNAPSHOT_SECONDS, time.monotonic()
    while not fit.done:
        loss = fit.step(threads)
        progress(f"loss {loss:.4f}", fit.standing.step, fit.plan.n_steps)
        now = time.monotonic()
        if now - last >= pause and not fit.done:
            fit.save(snapshot, fingerprint)
            last = time.monotonic()
            pause = max(_SNAPSHOT_SECONDS, (last - now) / _SNAPSHOT_SHARE)


def scores(
    network: Encoder, encoded: Encoded, examples: np.ndarray, threads: Workers, drawn: Drawn | None = None
) -> dict[int, np.ndarray]:
    """float32 [n_options] logits by example, in the order of the question's options however they are shown."""

    batch = laid(encoded, examples, np.ones(len(encoded.weights)), drawn)

    def prepared(chunk: OptionChunk) -> Tensor:
        assert isinstance(network, SetNetwork)
        with torch.inference_mode():
            return network.options(option_batch(chunk))

    tables = list(threads.map(prepared, batch.options))
    with torch.inference_mode():
        table = torch.cat(tables) if tables else None

    def compute(chunk: Chunk | StateChunk) -> Tensor:
        with torch.inference_mode():
            return logits_of(network, chunk, table)

    orders = {} if drawn is None or drawn.orders is None else dict(zip(examples.tolist(), drawn.orders, strict=True))
    found = {}
    for chunk, logits in zip(batch.chunks, threads.map(compute, batch.chunks), strict=True):
        for example, row, options in zip(chunk.examples.tolist(), logits.numpy(), chunk.options, strict=True):
            shown = row[options]
            if example in orders:
                own = np.empty_like(shown)
                own[orders[example][: len(shown)]] = shown
                shown = own
            found[example] = shown
    return found
