"""What a user should look at before trusting a model: warnings about rows, and about what a training came to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..files.temperatures import at_limit
from .encoding import Encoded
from .report import QuestionReport, Trial
from .rows import Dataset
from .trials import BEYOND, REMEDIES, drops

# Answers of a question below which an accuracy says little.
_FEW = 100


def about_rows(dataset: Dataset, encoded: Encoded, texts: Sequence[str]) -> Iterator[str]:
    """What the rows make a model learn that nobody may have wanted.

    Args:
        texts: what the states say (`variants.canonical`).
    """
    if encoded.n_cut:
        yield f"{encoded.n_cut} states are longer than the model reads, and were cut; see max_len"
    said: list[set[tuple[float, ...]]] = [set() for _ in encoded.prefixes]
    for number, target in zip(encoded.question.tolist(), encoded.targets, strict=True):
        if len(said[number]) < 2:
            said[number].add(target)
    against = contradicted(dataset, texts)
    for number, (prefix, targets) in enumerate(zip(encoded.prefixes, said, strict=True)):
        which = prefix.question.id
        if len(targets) == 1:
            yield f"question {which!r}: every answer is the same; nothing else can be learned"
        if prefix.options_distinct < len(prefix.question.options):
            yield (
                f"question {which!r}: options were cut until {len(prefix.question.options)} became "
                f"{prefix.options_distinct} different ones; see head_max_len"
            )
        if number in against:
            count, place = against[number]
            yield (
                f"question {which!r}: rows give different labels to the same state, for {count} "
                f"{'state' if count == 1 else 'states'} ({place}); their mean is learned"
            )


def contradicted(dataset: Dataset, texts: Sequence[str]) -> dict[int, tuple[int, str]]:
    """By question: how many states have rows with different labels, and where the first one is."""
    found: dict[int, dict[str, str]] = {}
    for (state, question), place in dataset.contradictions.items():
        found.setdefault(question, {}).setdefault(texts[state], place)
    labels: dict[tuple[str, int], tuple[float, ...]] = {}
    for example in dataset.examples:
        if max(example.target) == 1.0:
            key = texts[example.state], example.question
            if labels.setdefault(key, example.target) != example.target:
                place = f"a state of other words: {dataset.states[example.state].text[:60]}"
                found.setdefault(example.question, {}).setdefault(key[0], place)
    return {question: (len(states), next(iter(states.values()))) for question, states in found.items()}


def about_answers(
    questions: Mapping[str, QuestionReport], temperatures: Mapping[str, float], of: str = "held-out"
) -> Iterator[str]:
    """What the numbers on answers that were not learned from give reason to doubt."""
    for name, q in questions.items():
        if q.accuracy < q.base_accuracy:
            yield (
                f"question {name!r}: accuracy {q.accuracy:.3f} is below the {q.base_accuracy:.3f} of always giving the "
                f"most frequent {of} answer"
            )
        elif q.log_loss >= q.base_log_loss > 0:
            yield (
                f"question {name!r}: log loss {q.log_loss:.3f} is no better than the {q.base_log_loss:.3f} of always "
                f"saying how often each {of} answer occurs"
            )
        if q.n < _FEW:
            yield (
                f"question {name!r}: only {q.n} {of} answers; its accuracy lies between {q.accuracy_low:.3f} and "
                f"{q.accuracy_high:.3f} (95 %, Wilson)"
            )
    yield from at_limit(temperatures)


def about_trials(trials: Sequence[Trial], augmentation: Sequence[str]) -> Iterator[str]:
    """Each drop of more than five points."""
    for trial in drops(trials):
        remedy = REMEDIES.get(trial.change)
        hint = ""
        if remedy is not None and remedy not in augmentation:
            hint = f"; augment has {remedy!r} against it"
        elif trial.change == BEYOND:
            hint = "; learn from states of the whole range that it will meet"
        yield (
            f"question {trial.question!r}, {trial.change}: accuracy {trial.accuracy:.3f} in place of "
            f"{trial.accuracy_as_given:.3f}, at a mean confidence of {trial.confidence:.3f}{hint}"
        )
