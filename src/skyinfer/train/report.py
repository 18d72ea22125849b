"""What a training came to: numbers on rows that it never saw, as an object, JSON, a table, and a plot.

metrics.py computes the numbers from the scores of the very weights that were written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import FormatError
from ..files.paths import checked_path
from ..metrics import Bin
from ..terminal import printable
from .architectures import DEFAULT

REPORT_NAME = "training_report.json"
PLOT_NAME = "reliability.png"


@dataclass(frozen=True)
class QuestionReport:
    """One question on held-out states.

    Attributes:
        type: choice, score or noul.
        options: how many it has.
        n: held-out answers to it.
        temperature: that its scores are divided by.
        accuracy: how often the most probable option is the target's (one of its best, where it has several).
        accuracy_low, accuracy_high: where it lies with 95 % confidence (Wilson's interval, of the answers' weights).
        base_accuracy: of always answering what is right most often.
        confidence: mean probability of the option that is answered.
        log_loss: mean cross entropy in nats.
        base_log_loss: of always answering how often each option is right.
        ece: expected calibration error over `reliability`.
        reliability: of the option that was answered; of the probability of true for a noul.
        auc: area under the ROC curve, for a noul whose held-out answers are not all the same.
        mean_error: mean distance of the score from the target's, for a score.
    """

    type: str
    options: int
    n: int
    temperature: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    base_accuracy: float
    confidence: float
    log_loss: float
    base_log_loss: float
    ece: float
    reliability: list[Bin]
    auc: float | None = None
    mean_error: float | None = None


@dataclass(frozen=True)
class Trial:
    """One question about held-out states of which something is changed that should not change the answer.

    Attributes:
        change: what is changed.
        question: its id.
        n: answers.
        accuracy: with the change. accuracy_as_given: of the same answers without it.
        confidence: mean probability of the option that is answered, with the change.
    """

    change: str
    question: str
    n: int
    accuracy: float
    accuracy_as_given: float
    confidence: float


@dataclass(frozen=True)
class Evaluation:
    """Answers to rows of one's own.

    Attributes:
        source: where the rows come from. rows, states: what they held.
        known_states: states of them that were learned from.
        questions: by question id.
    """

    source: str
    rows: int
    states: int
    known_states: int
    questions: dict[str, QuestionReport]


@dataclass(frozen=True)
class Report:
    """A finished training.

    Attributes:
        path: the checkpoint directory that was written.
        size: name of the size, or None for one of `init`'s own.
        architecture: "s1" or "s2".
        parameters: that answers depend on.
        vocab_size: tokens of the tokenizer.
        seed: of initial weights, order and split.
        rows, states, examples: what the rows held; an example is one question about one state.
        held_out_states: how many of the states were kept back.
        epochs, steps: passes over the examples that were learned from, and updates of the weights.
        final_loss: mean training loss of the last steps (a tenth of them, at most 100).
        seconds: of training, those before an interruption included.
        threads: batches computed at a time.
        torch: version.
        augmentation: what was varied of the examples, of `variants.AUGMENTATIONS`; no more than the rows have.
        temperatures: by type, and by type and number of options ("choice:3-5").
        questions: by question id, on held-out states; empty where nothing was held out. Log loss, ECE and reliability
            of one half of the states are those with temperatures that were fitted to the other half.
        trials: what held-out states are answered when they are written in other ways.
        evaluation: on the rows that were given for it.
        warnings: what to look at.
    """

    path: str
    size: str | None
    parameters: int
    vocab_size: int
    seed: int
    rows: int
    states: int
    examples: int
    held_out_states: int
    epochs: float
    steps: int
    final_loss: float
    seconds: float
    threads: int
    torch: str
    augmentation: list[str]
    temperatures: dict[str, float]
    questions: dict[str, QuestionReport]
    trials: list[Trial] = field(default_factory=list)
    evaluation: Evaluation | None = None
    warnings: list[str] = field(default_factory=list)
    architecture: str = DEFAULT

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Report:
        """The report that a training has written: its file, or the directory that it lies in.

        Raises:
            FormatError: it is none, or of another version.
            OSError: it cannot be read.
        """
        file = checked_path(path)
        file = file / REPORT_NAME if file.is_dir() else file
        try:
            content = json.loads(file.read_bytes())
            content["questions"] = _questions_of(content["questions"])
            content["trials"] = [Trial(**trial) for trial in content["trials"]]
            if content["evaluation"] is not None:
                content["evaluation"]["questions"] = _questions_of(content["evaluation"]["questions"])
                content["evaluation"] = Evaluation(**content["evaluation"])
            return cls(**content)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FormatError(f"{file}: not a report of a training of this version ({error})") from error

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def as_json(self) -> str:
        return json.dumps(self.as_dict(), ensure_ascii=False, indent=1) + "\n"

    def as_text(self) -> str:
        """The tables that the command prints."""
        size = f"{self.size or 'as init'}{'' if self.architecture == DEFAULT else f', {self.architecture}'}"
        lines = [
            f"{printable(self.path)}: {size}, {self.parameters:,} parameters, {self.vocab_size} tokens",
            f"  learned from {self.states - self.held_out_states:,} states in {self.steps:,} steps ({self.epochs:g} "
            f"epochs, {self.seconds:.0f} s); {self.held_out_states:,} states were held out",
            f"  varied: {', '.join(self.augmentation) or 'nothing'}",
        ]
        if self.questions:
            lines += ["", *_question_table(self.questions)]
        if self.trials:
            lines += ["", *_trial_table(self.trials)]
        if self.evaluation is not None:
            own = self.evaluation
            known = f", {own.known_states:,} of them learned from" if own.known_states else ""
            lines += ["", f"  {printable(own.source)}: {own.rows:,} rows, {own.states:,} states{known}"]
            lines += _question_table(own.questions)
        for name, q in self.questions.items():
            said = "P(true)" if q.type == "noul" else "probability of the answer"
            lines += ["", f"  {printable(name)}: {said}, and how often it was so"]
            lines.append("     from    to        n    said   found")
            lines += [
                f"    {row.low:5.3f} {row.high:5.3f} {row.n:8,.0f}  {row.said:.4f}  {row.found:.4f}"
                for row in q.reliability
            ]
        if self.warnings:
            lines += ["", *(f"  warning: {printable(warning)}" for warning in self.warnings)]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.as_text()


def _questions_of(content: Any) -> dict[str, QuestionReport]:
    return {
        name: QuestionReport(**q | {"reliability": [Bin(**row) for row in q["reliability"]]})
        for name, q in content.items()
    }


def _question_table(questions: Mapping[str, QuestionReport]) -> list[str]:
    names = {name: printable(name) for name in questions}
    width = max(8, *map(len, names.values()))
    lines = [
        f"  {'question':<{width}}  {'type':<6}  {'n':>7}  accuracy   95 %            (base)  log loss  (base)     ECE"
        f"     AUC  temperature"
    ]
    for name, q in questions.items():
        auc = "" if q.auc is None else f"{q.auc:.4f}"
        lines.append(
            f"  {names[name]:<{width}}  {q.type:<6}  {q.n:>7,}  {q.accuracy:8.4f}  {q.accuracy_low:.4f}-"
            f"{q.accuracy_high:.4f}  ({q.base_accuracy:.3f})  {q.log_loss:8.4f}  ({q.base_log_loss:.3f})  {q.ece:.4f}  "
            f"{auc:>6}  {q.temperature:11.3f}"
        )
    return lines


def _trial_table(trials: Sequence[Trial]) -> list[str]:
    names = [printable(f"{trial.question}: {trial.change}") for trial in trials]
    width = max(8, *map(len, names))
    lines = [f"  {'written in other ways':<{width}}  {'n':>7}  accuracy  as given  confidence"]
    lines += [
        f"  {name:<{width}}  {one.n:>7,}  {one.accuracy:8.4f}  {one.accuracy_as_given:8.4f}  {one.confidence:10.4f}"
        for name, one in zip(names, trials, strict=True)
    ]
    return lines
