"""Training from end to end: rows in, checkpoint directory and report out.

This file holds the order of things. rows.py reads, start.py makes what a training begins with, encoding.py lays out
sequences, fitting.py trains network.py, judging.py measures, writing.py writes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import FormatError, SkyinferError, faults_named, lacking
from ..files import places
from ..files.paths import checked_path
from ..runtime.cpus import available_cpus
from ..schema import QUESTION_TYPES
from .architectures import ARCHITECTURES
from .cautions import about_answers, about_rows, about_trials
from .directory import alone_in, snapshot_of
from .encoding import Drawn, Encoded, builder_of, encode, example_weights, halves, held_out_states
from .judging import by_question, judge, reports_of
from .options import Options, UnfinishedError, augmentations, check_whole
from .progress import ProgressCall, shown
from .reliability_plot import plot
from .report import PLOT_NAME, REPORT_NAME, Evaluation, QuestionReport, Report, Trial
from .rows import Dataset, gather, read_rows, with_questions
from .trials import Score, Teacher, Trials
from .variants import applicable, canonical, draw_of, varied
from .writing import (
    AGENT,
    ENCODER,
    SCRATCH,
    TOKENIZER,
    TRAINING,
    WEIGHTS,
    check_place,
    place,
    write_json,
    write_weights,
)

try:
    # writing.py needs it at the end of a training
    import safetensors.numpy  # noqa: F401
    import torch
except ImportError as error:
    raise lacking("training needs torch and safetensors: pip install 'skyinfer[train]'", error) from error

from .fitting import COMPUTING, Fit, Plan, kept, run, scores, workers
from .restoring import restore
from .start import Start, as_float16, from_checkpoint, new_model

if TYPE_CHECKING:
    from ..schema import Questions

# Goes into every fingerprint: a snapshot of another version's training is not continued.
_FORMAT = 2

_WEIGHT_DECAY, _WARMUP = 0.05, 0.05
# texts that a state is learned by, its own among them
_MOST_VIEWS = 16


def train_rows(
    rows: str | os.PathLike[str] | Iterable[Any],
    out: str | os.PathLike[str],
    *,
    questions: Questions | None = None,
    size: str = "pico",
    architecture: str | None = None,
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
    augment: bool | str | Iterable[str] = True,
    evaluate: str | os.PathLike[str] | Iterable[Any] | None = None,
    resume: bool = True,
    force: bool = False,
    progress: ProgressCall | bool | None = True,
) -> Report:
    """Train a model on rows and write it as a checkpoint directory, that of an s1 model a Laya one.

    Args:
        rows: a file of JSON Lines or CSV (by its name), or the rows themselves: objects with `state`, `questions`,
            `answers` (to any of the questions: see `rows.target_of`) and perhaps a positive `weight`.
        out: the directory to write. While training goes on it holds a snapshot to resume from, in `training`.
        questions: of rows that have none of their own, as in a request.
        size: a name of `SIZES`. Not used with `init`.
        architecture: "s1", a Laya model, or "s2", which reads a state once for all questions and knows no order of
            options. Default "s1", or that of `init`.
        vocab_size: tokens of the tokenizer, special ones included. It has fewer where the rows have no more to merge.
        max_len, head_max_len: longest sequence, and what question and options may take of it.
        epochs: passes over the examples, whole or not. By default as many as make 240,000 examples, from 3 to 60,
            and more where these are few.
        batch_size: examples (one question about one state) in an update. Default 128, less for few examples.
        lr: highest learning rate.
        held_out: fraction of the states that is kept back for temperatures and report. Default a tenth, at most 10,000
            states; 0 keeps none.
        seed: same seed, rows and options: same bytes, for any number of threads, on one machine and version of torch.
        threads: default the CPUs that the process may use.
        init: a model to start from, its weights, sizes and tokenizer: a checkpoint directory, a GGUF file that
            `skyinfer convert` wrote, or the name of one that comes with skyinfer or lies on the hub.
        augment: what is varied of the examples, so that the model answers by what is said and not by how: any of
            "options" (the order of a choice's), "keys" (their order in objects), "numbers" (57 and 57.0), "spaces" (in
            string states) and "extra" (a key that means nothing); True for all, False for none.
        evaluate: rows of one's own, as `rows`; the report tells what the model answers to them.
        resume: go on with an unfinished training of the same rows and options in `out`.
        force: replace a checkpoint in `out`, or an unfinished training of other rows or options.
        progress: True shows a bar on a terminal, and a line every minute where stderr is none; False shows nothing. Or
            a function, called with what is being done, steps done, and steps in all.

    Raises:
        RowsError: rows are faulty; tells all of them, before anything is trained.
        FormatError: `init` or a snapshot is faulty, or the snapshot is of other rows or options.
        FileExistsError: `out` holds a checkpoint, or an unfinished training that is not to be resumed.
        SkyinferError: there are too few states, another training is at work in `out`, or it holds files that are no
            part of a checkpoint.
        OptionError: an option is out of range, or `init` is of another architecture (a ValueError).
        OSError: something cannot be read or written.
    """
    options = Options(
        size, vocab_size, max_len, head_max_len, epochs, batch_size, lr, held_out, seed,
        None if init is None else checked_path(init, "a model"), augmentations(augment),
        architecture,
    )  # fmt: skip
    options.check()
    check_whole("threads", threads, 1, 256)
    threads = threads or available_cpus()
    place_of = checked_path(out, "a directory")
    check_place(place_of, force=force)
    with alone_in(place_of), shown(progress) as call:
        # again: one that has ended in between has left a checkpoint
        check_place(place_of, force=force)
        training = _Training(
            _dataset_of(rows, questions, "rows"), place_of, options, threads, call,
            None if evaluate is None else _dataset_of(evaluate, questions, "rows to evaluate"),
            rows.teacher if isinstance(rows, _Taught) else None,
        )  # fmt: skip
        return training.run(resume, force)


def _dataset_of(
    rows: str | os.PathLike[str] | Iterable[Any], questions: Mapping[Any, Any] | None, name: str
) -> Dataset:
    if isinstance(rows, (str, os.PathLike)):
        return gather(read_rows(rows, questions), os.fspath(rows))
    return gather(((f"row {number}", with_questions(row, questions)) for number, row in enumerate(rows, 1)), name)


def train(
    teacher: Callable[[Any], Mapping[Any, Any]],
    questions: Questions,
    states: Iterable[Any],
    out: str | os.PathLike[str],
    *,
    size: str = "pico",
    architecture: str | None = None,
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
    augment: bool | str | Iterable[str] = True,
    evaluate: str | os.PathLike[str] | Iterable[Any] | None = None,
    resume: bool = True,
    force: bool = False,
    progress: ProgressCall | bool | None = True,
) -> Report:
    """Train a model to answer as a function does.

    Args:
        teacher: gives the answers to a state, by question id: labels or distributions, as in a row.
        questions: as in a request.
        states: what to ask the teacher about.
        out: the directory to write. While training goes on it holds a snapshot to resume from, in `training`.
        size: a name of `SIZES`. Not used with `init`.
        architecture: "s1", a Laya model, or "s2", which reads a state once for all questions and knows no order of
            options. Default "s1", or that of `init`.
        vocab_size: tokens of the tokenizer, special ones included. It has fewer where the rows have no more to merge.
        max_len, head_max_len: longest sequence, and what question and options may take of it.
        epochs: passes over the examples, whole or not. By default as many as make 240,000 examples, from 3 to 60,
            and more where these are few.
        batch_size: examples (one question about one state) in an update. Default 128, less for few examples.
        lr: highest learning rate.
        held_out: fraction of the states that is kept back for temperatures and report. Default a tenth, at most 10,000
            states; 0 keeps none.
        seed: same seed, rows and options: same bytes, for any number of threads, on one machine and version of torch.
        threads: default the CPUs that the process may use.
        init: a model to start from, its weights, sizes and tokenizer: a checkpoint directory, a GGUF file that
            `skyinfer convert` wrote, or the name of one that comes with skyinfer or lies on the hub.
        augment: what is varied of the examples, so that the model answers by what is said and not by how: any of
            "options" (the order of a choice's), "keys" (their order in objects), "numbers" (57 and 57.0), "spaces" (in
            string states) and "extra" (a key that means nothing); True for all, False for none.
        evaluate: rows of one's own, as `rows`; the report tells what the model answers to them.
        resume: go on with an unfinished training of the same rows and options in `out`.
        force: replace a checkpoint in `out`, or an unfinished training of other rows or options.
        progress: True shows a bar on a terminal, and a line every minute where stderr is none; False shows nothing. Or
            a function, called with what is being done, steps done, and steps in all.

    Raises:
        RowsError: the teacher gave answers that are none; tells all of them.
        As `train_rows`, and whatever the teacher raises.
    """
    return train_rows(
        _Taught(teacher, questions, states),
        out,
        size=size,
        architecture=architecture,
        vocab_size=vocab_size,
        max_len=max_len,
        head_max_len=head_max_len,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        held_out=held_out,
        seed=seed,
        threads=threads,
        init=init,
        augment=augment,
        evaluate=evaluate,
        resume=resume,
        force=force,
        progress=progress,
    )


@dataclass(frozen=True)
class _Taught:
    """Rows that a teacher answers. It is asked again when the model is tried on states that it was not trained on."""

    teacher: Callable[[Any], Mapping[Any, Any]]
    questions: Questions
    states: Iterable[Any]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for state in self.states:
            yield {"state": state, "questions": self.questions, "answers": self.teacher(state)}


class _Training:
    def __init__(
        self,
        dataset: Dataset,
        out: Path,
        options: Options,
        threads: int,
        progress: ProgressCall,
        evaluate: Dataset | None,
        teacher: Teacher | None,
    ) -> None:
        self.dataset, self.out, self.options = dataset, out, options
        self.threads, self.progress = threads, progress
        self.evaluate, self.teacher = evaluate, teacher
        self.staged = out / SCRATCH / "checkpoint"
        self.augmentation = applicable(options.augment, dataset)
        # states that say the same are held out together
        self.texts = [canonical(state) for state in dataset.states]
        self.warnings: list[str] = []

    def run(self, resume: bool, force: bool) -> Report:
        held_back = self._split()
        if self.staged.exists():
            shutil.rmtree(self.staged)
        (self.staged / TOKENIZER).mkdir(parents=True)
        (self.staged / ENCODER).mkdir()
        start = self._start()
        architecture = start.shape.architecture
        builder, pad = builder_of(
            self.staged / TOKENIZER, start.shape.vocab_size, start.max_len, start.head_max_len, architecture
        )
        if not ARCHITECTURES[architecture].has_option_order:
            self.augmentation = tuple(kind for kind in self.augmentation if kind != "options")
        if ARCHITECTURES[architecture].reads_state_once:
            learned_states = [example.state for example in self.dataset.examples if not held_back[example.state]]
            self.options = self.options.for_states(len(learned_states), len(set(learned_states)))
        encoded = encode(self.dataset, builder, pad, start.max_len, self._views(held_back), architecture)
        own = None
        if self.evaluate is not None:
            own = encode(self.evaluate, builder, pad, start.max_len, architecture=architecture)
        self.warnings += about_rows(self.dataset, encoded, self.texts)
        is_held = held_back[encoded.state]
        learned, held = np.flatnonzero(~is_held), np.flatnonzero(is_held)
        plan = self._plan(len(learned))
        fingerprint = self._fingerprint(encoded, plan, start)
        network = COMPUTING[architecture].network(start.shape, start.weights)
        fit = Fit(network, encoded, learned, example_weights(encoded, learned), plan)
        self._take_up(fit, fingerprint, resume, force)
        with kept(fit, snapshot_of(self.out), fingerprint), workers(self.threads) as threads:
            run(fit, threads, snapshot_of(self.out), fingerprint, self.progress)
            # what is measured is what is written
            stored = {name: as_float16(name, values.detach().numpy()) for name, values in network.weights.items()}
            as_stored = {name: torch.from_numpy(values.astype(np.float32)) for name, values in stored.items()}
            network = COMPUTING[architecture].network(start.shape, as_stored)

            def score(some: Encoded, examples: np.ndarray, drawn: Drawn | None = None) -> dict[int, np.ndarray]:
                return scores(network, some, examples, threads, drawn)

            self.progress("judging", plan.n_steps, plan.n_steps)
            found = score(encoded, held)
            temperatures, questions = judge(encoded, by_question(encoded, found), halves(self.texts, self.options.seed))
            self.warnings += about_answers(questions, temperatures)
            trials = Trials(self.dataset, encoded, builder, held_back, temperatures, self.options.seed, score)
            tried = list(trials.run(found, self.teacher)) if len(held) else []
            self.warnings += about_trials(tried, self.augmentation)
            evaluation = None if own is None else self._evaluation(own, score, temperatures, held_back)
            report = self._report(
                start, fit, int(held_back.sum()), len(learned), temperatures, questions, tried, evaluation
            )
            return self._write(start, stored, report)

    # ------------------------------------------------------------------------------------ beginning

    def _split(self) -> np.ndarray:
        """bool [n_states]: which states are held out."""
        if len(set(self.texts)) == 1 and self.options.held_out != 0:
            raise SkyinferError(
                f"{self.dataset.source}: all rows are about one state; two are needed, one to learn from and one to "
                f"hold out (held_out=0 learns from all, and fits no temperature)"
            )
        return held_out_states(self.texts, self.options.held_out, self.options.seed)

    def _start(self) -> Start:
        if self.options.init is not None:
            place = places.find(str(self.options.init)).path
            if place.is_dir():
                return from_checkpoint(place, self.options, self.staged)
            with tempfile.TemporaryDirectory(prefix="skyinfer-") as directory:
                restore(place, Path(directory))
                return from_checkpoint(Path(directory), self.options, self.staged)
        self.progress("learning a tokenizer", 0, 1)
        return new_model(self.dataset, self.options, self.augmentation, self.staged)

    def _views(self, held_back: np.ndarray) -> Callable[[int], list[str]] | None:
        """Further texts of each state that is learned from. held_back: bool [n_states]."""
        states, options = self.dataset.states, self.options
        kinds = set(self.augmentation) - {"options"}
        n_learned = sum(not held_back[example.state] for example in self.dataset.examples)
        n_views = min(_MOST_VIEWS, options.passes_over(n_learned)) - 1
        if not kinds or n_views < 1:
            return None

        def texts(number: int) -> list[str]:
            if held_back[number]:
                return [states[number].text] * n_views
            return [varied(states[number], kinds, draw_of(states[number], i, options.seed)) for i in range(n_views)]

        return texts

    def _plan(self, n: int) -> Plan:
        options = self.options
        return Plan(
            options.steps_for(n), options.batch_size_for(n), options.highest_lr, _WARMUP, _WEIGHT_DECAY, options.seed,
            self.augmentation,
        )  # fmt: skip

    def _fingerprint(self, encoded: Encoded, plan: Plan, start: Start) -> str:
        """Of everything that the result depends on."""
        digest = hashlib.sha256()
        options = self.options
        stated = (_FORMAT, plan, start.shape, start.max_len, start.head_max_len, options.held_out, options.seed)
        digest.update(repr(stated).encode())
        digest.update(json.dumps([start.encoder, start.agent], sort_keys=True).encode())
        for file in sorted((self.staged / TOKENIZER).iterdir()):
            digest.update(file.name.encode() + file.read_bytes())
        for name, values in start.weights.items():
            digest.update(name.encode() + values.numpy().tobytes())
        for state in self.dataset.states:
            digest.update(repr(state).encode())
        # of the states' further views
        digest.update(encoded.ids.tobytes() + encoded.begins.tobytes())
        prefixes = [(prefix.option_ids or prefix.front, prefix.markers) for prefix in encoded.prefixes]
        digest.update(repr(prefixes).encode())
        for array in (encoded.state, encoded.question, encoded.weights):
            digest.update(array.tobytes())
        digest.update(repr(encoded.targets).encode())
        return digest.hexdigest()

    def _take_up(self, fit: Fit, fingerprint: str, resume: bool, force: bool) -> None:
        """Go on from a snapshot, where there is one. One that is forced out stays until another takes its place."""
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

    # --------------------------------------------------------------------------------------- ending

    def _evaluation(
        self, encoded: Encoded, score: Score, temperatures: Mapping[str, float], held_back: np.ndarray
    ) -> Evaluation:
        """The answers to rows of the user's own."""
        dataset = self.evaluate
        assert dataset is not None
        learned = {text for text, is_held in zip(self.texts, held_back.tolist(), strict=True) if not is_held}
        scored = by_question(encoded, score(encoded, np.arange(len(encoded.state)), None))
        questions = reports_of(encoded, scored, temperatures)
        self.warnings += about_answers(questions, {}, of=dataset.source)
        known = sum(canonical(state) in learned for state in dataset.states)
        return Evaluation(dataset.source, dataset.n_rows, len(dataset.states), known, questions)

    def _report(
        self,
        start: Start,
        fit: Fit,
        n_held_back: int,
        n_learned: int,
        temperatures: dict[str, float],
        questions: dict[str, QuestionReport],
        trials: list[Trial],
        evaluation: Evaluation | None,
    ) -> Report:
        losses = fit.standing.losses or [math.nan]
        last = losses[-min(100, max(1, len(losses) // 10)) :]
        return Report(
            path=str(self.out),
            size=self.options.size if self.options.init is None else None,
            parameters=sum(values.numel() for values in fit.network.weights.values()),
            vocab_size=start.shape.vocab_size,
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
            augmentation=list(self.augmentation),
            temperatures=temperatures,
            questions=questions,
            trials=trials,
            evaluation=evaluation,
            warnings=self.warnings,
            architecture=start.shape.architecture,
        )

    def _write(self, start: Start, stored: dict[str, np.ndarray], report: Report) -> Report:
        temperatures = report.temperatures
        agent = {key: value for key, value in start.agent.items() if key != TRAINING} | {
            "max_len": start.max_len,
            "head_max_len": start.head_max_len,
            "temperature": [temperatures[kind] for kind in QUESTION_TYPES],
            "temperature_by_options": {name: value for name, value in temperatures.items() if ":" in name},
        }
        if self.augmentation:
            agent[TRAINING] = {"augmentation": list(self.augmentation)}
        write_json(self.staged / ENCODER / "config.json", start.encoder)
        write_weights(self.staged / WEIGHTS, stored | start.unused)
        try:
            if report.questions:
                plot(report, self.staged / PLOT_NAME)
        except Exception as error:  # of another package, and no reason to lose what was trained
            report.warnings.append(f"the reliability plot could not be drawn: {error}")
        with faults_named(self.staged / REPORT_NAME):
            (self.staged / REPORT_NAME).write_text(report.as_json(), encoding="utf-8", newline="\n")
        write_json(self.staged / AGENT, agent)
        place(self.staged, self.out)
        snapshot_of(self.out).unlink(missing_ok=True)
        return report
