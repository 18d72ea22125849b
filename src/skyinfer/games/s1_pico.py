"""Makes s1-pico, the model that comes with skyinfer: data from the teacher, training, GGUF file, and its scores.

    python -m skyinfer.games.s1_pico -o DIR

The same recipe with another architecture makes s2-pico (s2_pico.py).

The first rows are states of flights by the teacher, with random inputs now and then, so that they have recoveries and
crashes. In every further round the model flies, the teacher labels the states, and training continues with all rows
(DAgger: Ross, Gordon and Bagnell 2011). A finished step that DIR holds is not done again. DIR/report.json has the
scores.

Seeds of games: training uses those from 2**32 on; flights are scored on 0 to 199, states on flights from 1,000,000 on.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .. import convert, load
from ..errors import SkyinferError
from ..files.whole_file import WholeFile
from ..terminal import Progress
from ..train.rows import read_rows
from ..train.writing import AGENT
from .flappy import DIFFICULTIES, FRAMES_PER_SECOND, MARGINS, QUESTIONS, Flappy
from .judging import as_text, judge
from .pilots import Pilot, RememberingPilot, TeacherPilot, disturbed

TRAINING_SEEDS = (1 << 32, 1 << 63)

# The difference in cost that makes the better input e times as likely as the other; one frame makes about as much.
_PREFERENCE_COST = 100.0

# The fraction of a flight's frames that become rows: frames in sequence are nearly equal.
_KEPT = 1 / 3

# easy, normal and hard, by how often they are flown
_SHARES = (1, 1, 2)

Say = Callable[[str], None]


# ---------------------------------------------------------------------------------------------- data


def preference(game: Flappy) -> float:
    """The teacher's probability of thrust: 0 or 1 where one input survives longer, else by the costs of the flights."""
    (glide_frames, glide_cost), (thrust_frames, thrust_cost) = game.prospects()
    if glide_frames != thrust_frames:
        return float(thrust_frames > glide_frames)
    z = (glide_cost - thrust_cost) / _PREFERENCE_COST
    return 1 / (1 + math.exp(-z)) if z > -700 else 0.0


class Visits:
    """The teacher's answers by state text. Many states have the same text, whose answers are the means."""

    def __init__(self) -> None:
        self._by_text: dict[str, list[float]] = {}

    def __len__(self) -> int:
        return len(self._by_text)

    def __contains__(self, text: str) -> bool:
        return text in self._by_text

    def add(self, game: Flappy) -> None:
        found = self._by_text.setdefault(game.state_text(), [0, 0.0, 0.0, float(game.margin())])
        found[0] += 1
        found[1] += preference(game)
        found[2] += game.will_crash()

    def rows(self, others_every: int = 3) -> Iterator[dict[str, Any]]:
        """A row for each text, which asks for the input; every so many-th asks for danger and margin, too."""
        for number, (text, (n, thrust, danger, margin)) in enumerate(self._by_text.items()):
            p = round(thrust / n, 4)
            answers: dict[str, Any] = {"action": {"thrust": p, "glide": round(1 - p, 4)}}
            if number % others_every == 0:
                answers |= {"danger": round(danger / n, 4), "margin": MARGINS[int(margin)]}
            yield {"state": text, "questions": QUESTIONS, "answers": answers, "x_visits": int(n)}


def collect(
    pilot: Pilot,
    visits: Visits,
    n_states: int,
    rng: random.Random,
    progress: Callable[[str, int, int], None] | None = None,
) -> None:
    """Fly until `visits` has `n_states` texts."""
    while len(visits) < n_states:
        (difficulty,) = rng.choices(DIFFICULTIES, _SHARES)
        for game in disturbed(pilot, Flappy(rng.randrange(*TRAINING_SEEDS), difficulty), rng):
            if rng.random() < _KEPT:
                visits.add(game)
        if progress:
            progress("flying", min(len(visits), n_states), n_states)


def write_rows(path: Path, visits: Visits, others_every: int = 3) -> None:
    with WholeFile(path, replace=True).writing() as file:
        for row in visits.rows(others_every):
            file.write(json.dumps(row).encode() + b"\n")


# ------------------------------------------------------------------------------------------- rounds


@dataclass(frozen=True)
class Recipe:
    """What the model depends on: equal recipes make equal files (on one machine, with one version of torch).

    Attributes:
        architecture: of the model.
        seed: of everything.
        rounds: of flying and training.
        states: distinct texts of the first round; every further round adds half as many.
        others_every: danger and margin are asked about every so many-th text. They are learned much faster than the
            input, and to s1 every question is a sequence of its own.
        epochs: of the first round's training; further rounds have half as many.
        batch_size: examples of an update.
        lr: highest learning rate of the first round; half of it in further rounds.
    """

    architecture: str = "s1"
    seed: int = 0
    rounds: int = 2
    states: int = 150_000
    others_every: int = 3
    epochs: float = 3.0
    batch_size: int = 128
    lr: float = 3e-3

    @property
    def name(self) -> str:
        """What the model is called."""
        return f"{self.architecture}-pico"


def build(out: Path, recipe: Recipe, say: Say, progress: Callable[[str, int, int], None] | None = None) -> Path:
    """Run the rounds in `out`. Returns the checkpoint directory of the last.

    Raises:
        SkyinferError: `out` holds steps of another recipe.
    """
    _keep_to(recipe, out / "recipe.json")
    from ..train import train_rows

    before: Path | None = None
    files: list[Path] = []
    for number in range(recipe.rounds):
        last = number == recipe.rounds - 1
        checkpoint = out / (recipe.name if last else f"round-{number}")
        files.append(out / f"rows-{number}.jsonl")
        if not files[-1].exists():
            pilot: Pilot = TeacherPilot() if before is None else RememberingPilot(load(before), {})
            visits, rng = Visits(), random.Random(f"{recipe.seed} {number}")
            collect(pilot, visits, recipe.states if before is None else recipe.states // 2, rng, progress)
            write_rows(files[-1], visits, recipe.others_every)
            say(f"round {number}: {len(visits):,} states")
        if not (checkpoint / AGENT).exists():
            report = train_rows(
                (row for file in files for _, row in read_rows(file)),
                checkpoint,
                # all that the result depends on, so that another default makes no other model
                size="pico",
                architecture=recipe.architecture,
                vocab_size=None if before else 1024,
                max_len=256,
                head_max_len=96,
                batch_size=recipe.batch_size,
                epochs=recipe.epochs if before is None else recipe.epochs / 2,
                lr=recipe.lr / (1 if before is None else 2),
                held_out=None,
                augment=False,
                seed=recipe.seed,
                init=before,
                progress=progress,
            )
            say(f"round {number}: trained in {report.seconds:.0f} s\n{report.as_text()}")
        before = checkpoint
    assert before is not None
    return before


def _keep_to(recipe: Recipe, path: Path) -> None:
    """Finished steps are not done again, so they have to be of this recipe."""
    ours = json.dumps(asdict(recipe))
    if path.exists():
        if path.read_text("utf-8").strip() != ours:
            raise SkyinferError(f"{path.parent} holds steps of another recipe ({path.name}); give another directory")
        return
    with WholeFile(path, replace=True).writing() as file:
        file.write(ours.encode() + b"\n")


def main(argv: Sequence[str] | None = None, default: Recipe | None = None) -> int:
    """The command; exit code 1 where a requirement is not met, 2 where the model cannot be made.

    `default`: what the options stand for that are not given.
    """
    default = Recipe() if default is None else default
    prog = f"python -m skyinfer.games.{default.name.replace('-', '_')}"
    parser = argparse.ArgumentParser(prog=prog, description=f"Makes {default.name}.gguf.")
    parser.add_argument("-o", "--out", metavar="DIR", required=True, type=Path, help="what is made, step by step")
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--rounds", metavar="N", type=int, default=default.rounds)
    parser.add_argument("--states", metavar="N", type=int, default=default.states, help="of the first round")
    parser.add_argument("--epochs", metavar="N", type=float, default=default.epochs, help="of the first round")
    parser.add_argument("--lr", metavar="RATE", type=float, default=default.lr)
    parser.add_argument("--flights", metavar="N", type=int, default=200, help="that are scored (default: 200)")
    parser.add_argument("--minutes", metavar="N", type=float, default=10.0, help="that a flight may last (default: 10)")
    options = parser.parse_args(argv)
    if min(options.rounds, options.states, options.flights) < 1 or options.minutes <= 0:
        parser.error("--rounds, --states, --flights and --minutes must be positive")
    begin = time.monotonic()

    def say(text: str) -> None:
        print(f"{(time.monotonic() - begin) / 60:5.1f} min  {text}", flush=True)

    given = {name: getattr(options, name) for name in ("seed", "rounds", "states", "epochs", "lr")}
    recipe = replace(default, **given)
    try:
        return _run(options.out, recipe, options.flights, options.minutes, say)
    except KeyboardInterrupt:
        print("interrupted; the same command continues from here", file=sys.stderr)
        return 130
    except (SkyinferError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def _run(out: Path, recipe: Recipe, n_flights: int, minutes: float, say: Say) -> int:
    out.mkdir(parents=True, exist_ok=True)
    with Progress(sys.stderr) as progress:
        checkpoint = build(out, recipe, say, progress.show_steps)
    file = convert(checkpoint, out / f"{recipe.name}.gguf", outtype="f16", name=recipe.name, force=True)
    say(f"{file}: {file.stat().st_size:,} bytes")
    seen = {row["state"] for n in range(recipe.rounds) for _, row in read_rows(out / f"rows-{n}.jsonl")}
    scores = judge(load(file), seen, n_flights, round(minutes * 60 * FRAMES_PER_SECOND), say)
    report = {"recipe": asdict(recipe), "bytes": file.stat().st_size, "states": len(seen)} | scores
    with WholeFile(out / "report.json", replace=True).writing() as stream:
        stream.write(json.dumps(report, indent=1).encode() + b"\n")
    say(as_text(scores))
    return 0 if all(scores["met"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
