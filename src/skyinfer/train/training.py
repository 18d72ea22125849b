"""Training from end to end: rows in, checkpoint directory and report out.

What is done where: rows.py reads, vocabulary.py learns a tokenizer, encoding.py lays out sequences, fitting.py trains
network.py, calibration.py measures, writing.py writes. This file holds the order of things, and the options.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import FormatError, SkyinferError
from ..files.config import ModelConfig
from ..files.paths import checked_path
from ..files.temperatures import bucket
from ..metrics import fit_temperature, measure
from ..runtime.cpus import available_cpus
from ..schema import QUESTION_TYPES
from ..text.template import PromptTemplate, laya_template
from .directory import alone_in, snapshot_of
from .encoding import Encoded, builder_of, encode, example_weights, held_out_states, texts_of
from .report import PLOT_NAME, REPORT_NAME, QuestionReport, Report, plot_reliability
from .rows import Dataset, gather, read_rows
from .sizes import SIZES
from .vocabulary import LEAST_SIZE, ROLES, learn_tokenizer, tokenizer_config
from .writing import (
    ACT_COSTS,
    AGENT,
    ENCODER,
    SCRATCH,
    TOKENIZER,
    WEIGHTS,
    bucket_name,
    check_place,
    encoder_config,
    place,
    unused_tensors,
    write_json,
    write_weights,
)

try:
    # writing.py uses it, after hours of training
    import safetensors.numpy  # noqa: F401
    import torch
except ImportError as error:
    raise ImportError("training needs torch and safetensors: pip install 'skyinfer[train]'", name=error.name) from error

from .fitting import Fit, Plan, run, scores, workers
from .network import Network, Shape, initial_weights

if TYPE_CHECKING:
    from ..schema import Questions

# Goes into every fingerprint: a snapshot of another version's training is not continued.
_FORMAT = 1

_BATCH_SIZE, _WEIGHT_DECAY, _WARMUP = 128, 0.05, 0.05
# Where the number of epochs is not given: as many as make this many examples, within limits.
_EXAMPLES, _LEAST_EPOCHS, _MOST_EPOCHS = 240_000, 3, 200
# A tokenizer is learned from the examples of this many states.
_TOKENIZER_STATES = 20_000
# A temperature is fitted to no fewer held-out answers; the type's own, or 1, serves otherwise.
_LEAST_TO_FIT = 30

ProgressCall = Callable[[str, int, int], None]


def train_rows(
    rows: str | os.PathLike[str] | Iterable[Any],
    out: str | os.PathLike[str],
    *,
    size: str = "pico",
    vocab_size: int | None = None,
    max_len: int | None = None,
    head_max_len: int | None = None,
    epochs: float | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    held_out: float | None = None,
    seed: int = 0,
    threads: int | None = None,
    init: str | os.PathLike[str] | None = None,
    resume: bool = True,
    force: bool = False,
    progress: ProgressCall | None = None,
) -> Report:
    """Train a model on rows and write it as a Laya checkpoint directory.

    Args:
        rows: a file of JSON Lines, or the rows themselves: objects with `state`, `questions`, `answers` (to any of the
            questions: see `rows.target_of`) and perhaps a positive `weight`.
        out: the directory to write. While training goes on it holds a snapshot to resume from, in `training`.
        size: a name of `SIZES`. Not used with `init`.
        vocab_size: tokens of the tokenizer, special ones included. It has fewer where the rows have no more to merge.
        max_len, head_max_len: longest sequence, and what question and options may take of it.
        epochs: passes over the examples, whole or not. By default as many as make 240,000 examples, from 3 to 200.
        batch_size: examples (one question about one state) in an update. Default 128, less for few examples.
        lr: highest learning rate.
        held_out: fraction of the states that is kept back for temperatures and report. Default a tenth, at most 10,000
            states; 0 keeps none.
        seed: same seed, rows and options: same bytes, for any number of threads, on one machine and version of torch.
        threads: default the CPUs that the process may use.
        init: a checkpoint directory to start from: its weights, sizes and tokenizer.
        resume: go on with an unfinished training of the same rows and options in `out`.
        force: replace a checkpoint in `out`, or an unfinished training of other rows or options.
        progress: called with what is being done, steps done, and steps in all.

    Raises:
        RowsError: rows are faulty; tells all of them, before anything is trained.
        FormatError: `init` or a snapshot is faulty, or the snapshot is of other rows or options.
        FileExistsError: `out` holds a checkpoint, or an unfinished training that is not to be resumed.
        SkyinferError: there are too few states, another training is at work in `out`, or it holds files that are no
            part of a checkpoint.
        OptionError: an option is out of range (a ValueError).
        OSError: something cannot be read or written.
    """
    options = _Options(
        size, vocab_size, max_len, head_max_len, epochs, batch_size, lr, held_out, seed,
        None if init is None else checked_path(init, "a directory"),
    )  # fmt: skip
    options.check()
    _whole("threads", threads, 1, 256)
    threads = threads or available_cpus()
    place_of = checked_path(out, "a directory")
    check_place(place_of, force=force)
    with alone_in(place_of):
        # again: one that has ended in between has left a checkpoint
        check_place(place_of, force=force)
        if isinstance(rows, (str, os.PathLike)):
            dataset = gather(read_rows(rows), os.fspath(rows))
        else:
            dataset = gather(((f"row {number}", row) for number, row in enumerate(rows, 1)), "rows")
        return _Training(dataset, place_of, options, threads, progress or (lambda *_: None)).run(resume, force)


def train(
    teacher: Callable[[Any], Mapping[Any, Any]],
    questions: Questions,
    states: Iterable[Any],
    out: str | os.PathLike[str],
    **options: Any,
) -> Report:
    """Train a model to answer as a function does.

    Args:
        teacher: gives the answers to a state, by question id: labels or distributions, as in a row.
        questions: as in a request.
        states: what to ask the teacher about.
        out, options: as for `train_rows`.

    Raises:
        RowsError: the teacher gave answers that are none; tells all of them.
        As `train_rows`, and whatever the teacher raises.
    """
    return train_rows(
        ({"state": state, "questions": questions, "answers": teacher(state)} for state in states), out, **options
    )


# --------------------------------------------------------------------------------------------- options


class OptionError(ValueError):
    """An argument of `train_rows` is out of range."""


class UnfinishedError(FileExistsError):
    """The directory holds an unfinished training, and was to be neither resumed nor forced."""


@dataclass(frozen=True)
class _Options:
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

    def check(self) -> None:
        if self.size not in SIZES:
            raise OptionError(f"unknown size {self.size!r}; choose one of {', '.join(SIZES)}")
        _whole("vocab_size", self.vocab_size, LEAST_SIZE + 1, 1 << 17)
        _whole("max_len", self.max_len, 16, 8192)
        _whole("head_max_len", self.head_max_len, 16, 8192)
        _whole("batch_size", self.batch_size, 1, 1 << 20)
        _whole("seed", self.seed, 0, (1 << 63) - 1)
        _real("epochs", self.epochs, 0.0, 1e6, "more than 0 and at most 1000000")
        _real("lr", self.lr, 0.0, 1.0, "more than 0 and at most 1")
        if self.held_out != 0:
            _real("held_out", self.held_out, 0.0, 0.9, "a fraction from 0 to 0.9")
        if self.init is not None and self.vocab_size is not None:
            raise OptionError("vocab_size: the tokenizer of init is used as it is; leave vocab_size out")
        # of init, whose own length stands for max_len, nothing is known yet
        if self.init is None or self.max_len is not None:
            self.check_head(self.max_len or SIZES[self.size].max_len)

    def check_head(self, max_len: int) -> None:
        """A head that was asked for has to fit; the default one may be cut as in an answer."""
        if self.head_max_len is not None and self.head_max_len > max_len:
            raise OptionError(f"head_max_len: expected at most max_len, which is {max_len}, got {self.head_max_len}")


def _whole(name: str, value: Any, least: int, most: int) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most):
        raise OptionError(f"{name}: expected a whole number from {least} to {most}, got {value!r}")


def _real(name: str, value: Any, above: float, most: float, wanted: str) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not (is_number and above < value <= most):
        raise OptionError(f"{name}: expected {wanted}, got {value!r}")


# -------------------------------------------------------------------------------------------- a training


@dataclass(frozen=True)
class _Base:
    """What a training begins with: its configuration files, and weights that it may change."""

    shape: Shape
    weights: dict[str, torch.Tensor]
    encoder: dict[str, Any]
    agent: dict[str, Any]
    max_len: int
    head_max_len: int
    unused: dict[str, np.ndarray]


class _Training:
    def __init__(self, dataset: Dataset, out: Path, options: _Options, threads: int, progress: ProgressCall) -> None:
        self.dataset, self.out, self.options = dataset, out, options
        self.threads, self.progress = threads, progress
        self.staged = out / SCRATCH / "checkpoint"
        self.warnings: list[str] = []

    def run(self, resume: bool, force: bool) -> Report:
        held_back = self._split()
        if self.staged.exists():
            shutil.rmtree(self.staged)
        (self.staged / TOKENIZER).mkdir(parents=True)
        (self.staged / ENCODER).mkdir()
        base = self._new() if self.options.init is None else self._from_init(self.options.init)
        builder, pad = builder_of(self.staged / TOKENIZER, base.shape.vocab_size, base.max_len, base.head_max_len)
        encoded = encode(self.dataset, builder, pad, base.max_len)
        self._look_at(encoded)
        is_held = held_back[encoded.state]
        learned, kept = np.flatnonzero(~is_held), np.flatnonzero(is_held)
        plan = self._plan(len(learned))
        fingerprint = self._fingerprint(encoded, plan, base)
        network = Network(base.shape, base.weights)
        fit = Fit(network, encoded, learned, example_weights(encoded, learned), plan)
        self._take_up(fit, fingerprint, resume, force)
        with workers(self.threads) as threads:
            run(fit, threads, snapshot_of(self.out), fingerprint, self.progress)
            # what is measured is what is written
            stored = {name: _float16(name, values.detach().numpy()) for name, values in network.weights.items()}
            network = Network(base.shape, {k: torch.from_numpy(v.astype(np.float32)) for k, v in stored.items()})
            found = scores(network, encoded, kept, threads)
        temperatures, questions = self._judge(encoded, found)
        return self._write(base, stored, temperatures, questions, fit, int(held_back.sum()), len(learned))

    # ------------------------------------------------------------------------------------ beginning

    def _split(self) -> np.ndarray:
        """bool [n_states]: which states are held out."""
        n = len(self.dataset.states)
        if n == 1 and self.options.held_out != 0:
            raise SkyinferError(
                f"{self.dataset.source}: all rows are about one state; two are needed, one to learn from and one to "
                f"hold out (held_out=0 learns from all, and fits no temperature)"
            )
        return held_out_states(self.dataset, self.options.held_out, self.options.seed)

    def _new(self) -> _Base:
        size, options = SIZES[self.options.size], self.options
        special = {role: ROLES[role] for role in ("cls", "sep", "mask")}
        template = PromptTemplate(laya_template(**special), **special)
        self.progress("learning a tokenizer", 0, 1)
        tokenizer = learn_tokenizer(self._texts(template), options.vocab_size or size.vocab_size)
        ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
        write_json(self.staged / TOKENIZER / "tokenizer.json", tokenizer)
        write_json(self.staged / TOKENIZER / "tokenizer_config.json", tokenizer_config(8192))
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
        )  # fmt: skip
        agent = {"encoder": "ModernBERT", "head_layers": size.n_decision_blocks, "act_costs": ACT_COSTS}
        return _Base(
            shape,
            initial_weights(shape, options.seed),
            encoder,
            agent,
            options.max_len or size.max_len,
            options.head_max_len or size.head_max_len,
            unused_tensors(size.d_model, len(ACT_COSTS) + 1),
        )

    def _from_init(self, directory: Path) -> _Base:
        """An earlier checkpoint, checked as `skyinfer.load` checks it."""
        from ..files.checkpoint import Checkpoint
        from ..files.safetensors import map_tensors

        if directory.is_dir() and not (directory / AGENT).exists():
            raise FormatError(f"{directory}: {AGENT} is missing; only a Laya checkpoint can be trained further")
        with Checkpoint.open(directory) as checkpoint:
            config = ModelConfig.from_source(checkpoint)
            self.options.check_head(self.options.max_len or config.max_tokens)
            shape = Shape(
                config.d_model, config.n_layers, config.n_heads, config.d_ff, config.n_decision_blocks,
                config.vocab_size, config.norm_eps, config.window, config.layer_is_global, config.rope_base_global,
                config.rope_base_local, config.activation,
            )  # fmt: skip
        single = directory / WEIGHTS
        files = [single] if single.exists() else sorted(directory.glob("*.safetensors"))
        stored = {
            name: _float32(tensor.data, tensor.dtype, tensor.shape)
            for file in files
            for name, tensor in map_tensors(file)
        }
        weights = {name: torch.from_numpy(stored.pop(name)) for name, _ in shape.tensors()}
        unused = {name: _float16(name, values) for name, values in stored.items()}
        for file in (directory / TOKENIZER).iterdir():
            if file.is_file():
                shutil.copyfile(file, self.staged / TOKENIZER / file.name)
        encoder = json.loads((directory / ENCODER / "config.json").read_text("utf-8"))
        agent = json.loads((directory / AGENT).read_text("utf-8"))
        return _Base(
            shape,
            weights,
            encoder,
            agent,
            self.options.max_len or config.max_tokens,
            self.options.head_max_len or config.max_head_tokens,
            unused,
        )

    def _texts(self, template: PromptTemplate) -> Iterator[str]:
        """What the tokenizer is learned from: the parts of every sequence, for a sample of the states."""
        dataset = self.dataset
        asked = [texts_of(question, template) for question in dataset.questions]
        stride = -(-len(dataset.states) // _TOKENIZER_STATES)
        chosen = range(0, len(dataset.states), stride)
        counts = [0] * len(asked)
        for example in dataset.examples:
            if example.state % stride == 0:
                counts[example.question] += 1
        states = (template.state(dataset.states[i].text) for i in chosen)
        # a question that no state of the sample is asked about is there, too
        asked_texts = (text for texts, n in zip(asked, counts, strict=True) for _ in range(max(1, n)) for text in texts)
        return chain(states, asked_texts)

    def _look_at(self, encoded: Encoded) -> None:
        """Note what the rows make a model learn that nobody may have wanted."""
        if encoded.n_cut:
            self.warnings.append(f"{encoded.n_cut} states are longer than the model reads, and were cut; see max_len")
        said: list[set[tuple[float, ...]]] = [set() for _ in encoded.prefixes]
        for number, target in zip(encoded.question.tolist(), encoded.targets, strict=True):
            if len(said[number]) < 2:
                said[number].add(target)
        for prefix, targets in zip(encoded.prefixes, said, strict=True):
            which = prefix.question.id
            if len(targets) == 1:
                self.warnings.append(f"question {which!r}: every answer is the same; nothing else can be learned")
            if prefix.options_distinct < len(prefix.question.options):
                self.warnings.append(
                    f"question {which!r}: options were cut until {len(prefix.question.options)} became "
                    f"{prefix.options_distinct} different ones; see head_max_len"
                )

    def _plan(self, n: int) -> Plan:
        options = self.options
        size = options.batch_size or min(_BATCH_SIZE, max(16, 1 << max(0, (n // 16).bit_length() - 1)))
        epochs = self._epochs(n)
        lr = options.lr or (SIZES[options.size].lr if options.init is None else 1e-3)
        n_steps = max(1, math.ceil(epochs * n / min(size, n)))
        return Plan(n_steps, size, lr, _WARMUP, _WEIGHT_DECAY, options.seed)

    def _epochs(self, n: int) -> float:
        if self.options.epochs is not None:
            return self.options.epochs
        return min(_MOST_EPOCHS, max(_LEAST_EPOCHS, round(_EXAMPLES / n)))

    def _fingerprint(self, encoded: Encoded, plan: Plan, base: _Base) -> str:
        """Of everything that the result depends on."""
        digest = hashlib.sha256()
        options = self.options
        stated = (_FORMAT, plan, base.shape, base.max_len, base.head_max_len, options.held_out, options.seed)
        digest.update(repr(stated).encode())
        digest.update(json.dumps([base.encoder, base.agent], sort_keys=True).encode())
        for file in sorted((self.staged / TOKENIZER).iterdir()):
            digest.update(file.name.encode() + file.read_bytes())
        for name, values in base.weights.items():
            digest.update(name.encode() + values.numpy().tobytes())
        for state in self.dataset.states:
            digest.update(repr(state).encode())
        digest.update(repr([(prefix.ids, prefix.markers) for prefix in encoded.prefixes]).encode())
        for array in (encoded.state, encoded.question, encoded.weights):
            digest.update(array.tobytes())
        digest.update(repr(encoded.targets).encode())
        return digest.hexdigest()

    def _take_up(self, fit: Fit, fingerprint: str, resume: bool, force: bool) -> None:
        """Go on from a snapshot, where there is one."""
        snapshot = snapshot_of(self.out)
        if not snapshot.exists():
            return
        if resume:
            try:
                fit.restore(snapshot, fingerprint)
                return
            except FormatError:
                if not force:
                    raise
        elif not force:
            raise UnfinishedError(
                errno.EEXIST, "holds an unfinished training; resume goes on with it, force starts over", str(self.out)
            )
        snapshot.unlink()

    # --------------------------------------------------------------------------------------- ending

    def _judge(
        self, encoded: Encoded, found: dict[int, np.ndarray]
    ) -> tuple[dict[str, float], dict[str, QuestionReport]]:
        """Temperatures by their names in the agent's configuration, and every question's numbers."""
        by_question: dict[int, list[int]] = {}
        for example in sorted(found):
            by_question.setdefault(int(encoded.question[example]), []).append(example)
        arrays = {
            number: (
                np.stack([found[example] for example in examples]).astype(np.float64),
                np.array([encoded.targets[example] for example in examples]),
                encoded.weights[examples],
            )
            for number, examples in by_question.items()
        }
        temperatures: dict[str, float] = {}
        for kind in QUESTION_TYPES:
            mine = {n: a for n, a in arrays.items() if encoded.prefixes[n].question.type == kind}
            buckets = {n: bucket(a[0].shape[1]) for n, a in mine.items()}
            temperatures[kind] = _fitted(list(mine.values()), 1.0)
            for name in dict.fromkeys(buckets.values()):
                some = [a for n, a in mine.items() if buckets[n] == name]
                if sum(len(a[0]) for a in some) >= _LEAST_TO_FIT:
                    temperatures[bucket_name(kind, name)] = _fitted(some, temperatures[kind])
        reports: dict[str, QuestionReport] = {}
        for number, (logits, targets, weights) in arrays.items():
            question = encoded.prefixes[number].question
            n_options = len(question.options)
            own = bucket_name(question.type, bucket(n_options))
            temperature = temperatures.get(own, temperatures[question.type])
            numbers = measure(question.type, logits, targets, weights, temperature)
            name = str(question.id)
            if name in reports:
                name = f"{name} ({number})"
            reports[name] = QuestionReport(question.type, n_options, len(logits), temperature, **numbers)
        return temperatures, reports

    def _write(
        self,
        base: _Base,
        stored: dict[str, np.ndarray],
        temperatures: dict[str, float],
        questions: dict[str, QuestionReport],
        fit: Fit,
        n_held_back: int,
        n_learned: int,
    ) -> Report:
        agent = base.agent | {
            "max_len": base.max_len,
            "head_max_len": base.head_max_len,
            "temperature": [temperatures[kind] for kind in QUESTION_TYPES],
            "temperature_by_options": {name: value for name, value in temperatures.items() if ":" in name},
        }
        losses = fit.standing.losses or [math.nan]
        last = losses[-min(100, max(1, len(losses) // 10)) :]
        report = Report(
            path=str(self.out),
            size=self.options.size if self.options.init is None else None,
            parameters=sum(values.size for values in stored.values()),
            vocab_size=base.shape.vocab_size,
            seed=self.options.seed,
            rows=self.dataset.n_rows,
            states=len(self.dataset.states),
            examples=self.dataset.n_examples,
            held_out_states=n_held_back,
            epochs=round(fit.plan.n_steps * min(fit.plan.batch_size, n_learned) / n_learned, 3),
            steps=fit.plan.n_steps,
            final_loss=math.fsum(last) / len(last),
            seconds=round(fit.standing.seconds, 1),
            threads=self.threads,
            torch=torch.__version__,
            temperatures=temperatures,
            questions=questions,
            warnings=self.warnings,
        )
        write_json(self.staged / ENCODER / "config.json", base.encoder)
        write_weights(self.staged / WEIGHTS, stored | base.unused)
        (self.staged / REPORT_NAME).write_text(report.as_json(), encoding="utf-8", newline="\n")
        try:
            plot_reliability(report, self.staged / PLOT_NAME)
        except Exception as error:  # of another package, and no reason to lose what was trained
            report.warnings.append(f"the reliability plot could not be drawn: {error}")
        write_json(self.staged / AGENT, agent)
        place(self.staged, self.out)
        snapshot_of(self.out).unlink(missing_ok=True)
        return report


def _fitted(arrays: list[tuple[np.ndarray, np.ndarray, np.ndarray]], default: float) -> float:
    """One temperature for several questions, which may differ in their number of options."""
    if sum(len(logits) for logits, _, _ in arrays) < _LEAST_TO_FIT:
        return default
    widest = max(logits.shape[1] for logits, _, _ in arrays)

    def padded(values: np.ndarray, fill: float) -> np.ndarray:
        return np.pad(values, ((0, 0), (0, widest - values.shape[1])), constant_values=fill)

    fitted = fit_temperature(
        np.concatenate([padded(logits, -np.inf) for logits, _, _ in arrays]),
        np.concatenate([padded(targets, 0.0) for _, targets, _ in arrays]),
        np.concatenate([weights for _, _, weights in arrays]),
    )
    # a GGUF file stores float32, and has to hold the very same number
    return round(fitted * 1024) / 1024


def _float16(name: str, values: np.ndarray) -> np.ndarray:
    """Rounded, as weights are written."""
    if not np.abs(values).max(initial=0.0) < 65520.0:  # NaN is not
        raise SkyinferError(f"tensor {name}: a weight is too large for F16, or is NaN")
    return values.astype(np.float16)


def _float32(data: np.ndarray, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """A tensor of a safetensors file that `Checkpoint.open` has passed, copied."""
    if dtype == "BF16":
        values = (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        values = data.view({"F16": "<f2", "F32": "<f4"}[dtype]).astype(np.float32)
    out: np.ndarray = values.reshape(shape).copy()
    return out
