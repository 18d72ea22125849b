"""`skyinfer play`: a pilot flies Flappy Drone, in a terminal at 60 frames a second, or without one as fast as it can.

Every frame asks all questions. A frame is missed where its work ends after the next one is due: in the terminal by the
clock, headless where the decision alone takes longer than a frame. The picture is made in screen.py.
"""

from __future__ import annotations

import gc
import os
import signal
import statistics
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import SkyinferError, lacking
from .flappy import FRAMES_PER_SECOND, Flappy
from .pilots import ModelPilot, Pilot, RandomPilot, TeacherPilot

if TYPE_CHECKING:
    from blessed import Terminal

    from ..model import Model
    from .screen import Facts

PILOTS = ("model", "teacher", "random")

FRAME = 1 / FRAMES_PER_SECOND

# A press of the key fires the rotors for so many frames.
_BURST = 5
# Frames between a crash and the next flight, between two looks at the latencies of the last so many frames, and between
# two lines on a terminal that cannot move its cursor. Where frames are late, every so many-th is drawn.
_PAUSE, _LOOK, _WINDOW, _LINE, _UNDRAWN = 2 * FRAMES_PER_SECOND, 15, 60 * FRAMES_PER_SECOND, 30, 6
# Seconds behind the clock from which the clock is set again: the process was stopped, or the machine suspended.
_LOST = 0.5

# any value but an empty one asks for no colours (no-color.org)
_NO_COLOR = "NO_COLOR"

_KEYS = {
    " ": "thrust", "w": "thrust", "KEY_UP": "thrust", "h": "hand over", "p": "pause", "n": "next", "q": "quit",
    "KEY_ESCAPE": "quit",
}  # fmt: skip


# ------------------------------------------------------------------------------------------- flights


class Episode(NamedTuple):
    """A flight that has ended, or was ended by a key.

    ending: "crashed", "time" or "broken off". latencies: seconds of each decision. danger: the model's probability and
    the truth in each frame; empty for other pilots.
    """

    seed: int
    frames: int
    gaps: int
    ending: str
    latencies: Sequence[float]
    missed: int
    p_danger: Sequence[float]
    danger: Sequence[int]


class Log:
    """What is recorded of a flight in each frame."""

    def __init__(self) -> None:
        self.latencies = array("d")
        self.p_danger = array("d")
        self.danger = array("b")
        self.missed = 0

    def decide(self, pilot: Pilot, game: Flappy) -> bool:
        """The pilot's input, with the time it takes; and of a model its probability of danger and the truth."""
        begin = time.perf_counter()
        thrust = pilot.thrust(game)
        self.latencies.append(time.perf_counter() - begin)
        if isinstance(pilot, ModelPilot):
            self.p_danger.append(pilot.p_danger)
            self.danger.append(game.will_crash())
        return thrust

    def episode(self, seed: int, game: Flappy, ending: str) -> Episode:
        return Episode(seed, game.frame, game.score, ending, self.latencies, self.missed, self.p_danger, self.danger)


@contextmanager
def collector_off() -> Iterator[None]:
    """No garbage collection inside: a frame makes no reference cycles, and what exists now is not scanned."""
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()


def make_pilot(name: str, model: Model | None, seed: int) -> Pilot:
    """The pilot of the flight with this seed."""
    if name == "teacher":
        return TeacherPilot()
    if name == "random":
        return RandomPilot(seed)
    assert model is not None
    pilot = ModelPilot(model)
    pilot.thrust(Flappy(seed))  # the first call sets up its buffers
    return pilot


def fly_headless(
    name: str, model: Model | None, difficulty: str, seeds: Sequence[int], frames: int
) -> Iterator[Episode]:
    """One flight for each seed, of at most `frames` frames."""
    for seed in seeds:
        pilot, game, log = make_pilot(name, model, seed), Flappy(seed, difficulty), Log()
        with collector_off():
            while game.alive and game.frame < frames:
                game.step(log.decide(pilot, game))
        log.missed = sum(latency > FRAME for latency in log.latencies)
        yield log.episode(seed, game, "time" if game.alive else "crashed")


# --------------------------------------------------------------------------------------------- table


def summary(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Numbers over all episodes, as `--json` prints them."""
    frames = [episode.frames for episode in episodes]
    latencies = np.concatenate([np.array(episode.latencies) for episode in episodes]) * 1000
    seconds = [n / FRAMES_PER_SECOND for n in frames]
    result: dict[str, Any] = {
        "episodes": len(episodes),
        "frames": sum(frames),
        "gaps": sum(episode.gaps for episode in episodes),
        "seconds": {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)},
        "decision_ms": _spread(latencies),
        "missed": sum(episode.missed for episode in episodes),
        "danger": None,
    }
    p = np.concatenate([np.array(episode.p_danger) for episode in episodes])
    if len(p):
        from ..metrics import area_under_curve, expected_calibration_error, reliability

        true = np.concatenate([np.array(episode.danger, np.float64) for episode in episodes])
        weights = np.ones(len(p))
        result["danger"] = {
            "rate": float(true.mean()),
            "auc": area_under_curve(p, true, weights),
            "ece": expected_calibration_error(reliability(p, true, weights)),
        }
    return result


def _spread(values: np.ndarray) -> dict[str, float] | None:
    if not len(values):
        return None
    median, p99 = np.percentile(values, (50, 99))
    return {"median": float(median), "p99": float(p99), "max": float(values.max())}


def as_json(episodes: Sequence[Episode]) -> dict[str, Any]:
    return {
        "flights": [
            {
                "seed": episode.seed,
                "frames": episode.frames,
                "gaps": episode.gaps,
                "seconds": episode.frames / FRAMES_PER_SECOND,
                "ending": episode.ending,
                "missed": episode.missed,
                "decision_ms": _spread(np.array(episode.latencies) * 1000),
            }
            for episode in episodes
        ],
        **summary(episodes),
    }


TABLE_HEAD = "    seed   frames   gaps  seconds  ending      median ms    p99     max  missed"


def table_row(episode: Episode) -> str:
    ms = _spread(np.array(episode.latencies) * 1000)
    times = f"{ms['median']:9.3f} {ms['p99']:6.3f} {ms['max']:7.3f}" if ms else " " * 24
    return (
        f"{episode.seed:8} {episode.frames:8,} {episode.gaps:6,} {episode.frames / FRAMES_PER_SECOND:8.1f}  "
        f"{episode.ending:<11} {times} {episode.missed:7,}"
    )


def table_foot(episodes: Sequence[Episode]) -> str:
    found = summary(episodes)
    seconds, ms, danger = found["seconds"], found["decision_ms"], found["danger"]
    lines = [
        f"{found['episodes']} {'flight' if found['episodes'] == 1 else 'flights'}, {found['frames']:,} frames, "
        f"{found['gaps']:,} gaps; {found['missed']:,} frames were missed",
        f"  flown     median {seconds['median']:.1f} s, {seconds['min']:.1f} to {seconds['max']:.1f}",
    ]
    if ms:
        lines.append(f"  decision  median {ms['median']:.3f} ms, p99 {ms['p99']:.3f}, max {ms['max']:.3f}")
    if danger:
        auc = "" if danger["auc"] is None else f", AUC {danger['auc']:.4f}"
        lines.append(f"  danger    true in {100 * danger['rate']:.1f} % of frames{auc}, ECE {danger['ece']:.4f}")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------ terminal


def open_terminal() -> Terminal:
    """The terminal of stdout and stdin.

    Raises:
        SkyinferError: one of them is not a terminal, or blessed is not installed.
    """
    for stream, name in ((sys.stdout, "standard output"), (sys.stdin, "standard input")):
        if stream is None or not stream.isatty():
            raise SkyinferError(f"{name} is no terminal; --headless flies without one and prints a table")
    try:
        import blessed
    except ImportError as error:
        needs = (
            "to show the flight in a terminal, play needs blessed: pip install 'skyinfer[play]' "
            "(--headless needs nothing more)"
        )
        raise SkyinferError(str(lacking(needs, error))) from error
    # blessed takes NO_COLOR for a terminal that cannot even move its cursor, and an unknown terminal for xterm
    no_color = os.environ.pop(_NO_COLOR, None)
    try:
        return blessed.Terminal(force_styling=None if _is_dumb() else False)
    finally:
        if no_color is not None:
            os.environ[_NO_COLOR] = no_color


def _is_dumb() -> bool:
    return os.name == "posix" and os.environ.get("TERM", "") in ("", "dumb", "unknown")


class Show:
    """A session in a terminal."""

    def __init__(
        self,
        terminal: Terminal,
        name: str,
        model: Model | None,
        *,
        model_name: str | None,
        difficulty: str,
        seed: int,
        frames: int | None,
        episodes: int | None,
    ) -> None:
        from .screen import Painter, Screen

        self._terminal, self._name, self._model, self._model_name = terminal, name, model, model_name
        self._difficulty, self._seed, self._frames, self._most = difficulty, seed, frames, episodes
        colours = terminal.number_of_colors > 2 and not os.environ.get(_NO_COLOR)
        self._painter = Painter(blocks=_can_show("█▀▄░▏·"), colours=colours)
        self._screen = Screen(terminal, colours=colours)
        self._moves = bool(terminal.move_yx(0, 0))
        self._episodes: list[Episode] = []
        self._stopped = self._by_hand = self._paused = False
        self._burst = 0
        self._ms: dict[str, float] | None = None
        self._told: tuple[str | None, int, int] | None = None

    def run(self) -> list[Episode]:
        """Fly until the user quits or the episodes are over. Returns the flights."""
        with _stops_noticed(self._stop), ExitStack() as modes:
            self._modes = modes
            self._enter()
            seed = self._seed
            while (self._most is None or len(self._episodes) < self._most) and self._fly(seed):
                seed += 1
        return self._episodes

    def _enter(self) -> None:
        terminal = self._terminal
        self._modes.enter_context(terminal.cbreak())
        if self._moves:
            self._modes.enter_context(terminal.fullscreen())
            self._modes.enter_context(terminal.hidden_cursor())

    def _stop(self) -> None:
        self._stopped = True

    def _suspend(self) -> None:
        """Restore the terminal, stop the process, and set the terminal up again when the shell continues it."""
        self._stopped = False
        self._modes.close()
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._enter()
        self._screen.forget()

    # ------------------------------------------------------------------------------------- one flight

    def _fly(self, seed: int) -> bool:
        """One flight. False where the user quits."""
        pilot = make_pilot(self._name, self._model, seed)
        game, log = Flappy(seed, self._difficulty), Log()
        self._painter.new_flight()
        self._burst = 0
        ending, after, undrawn, thrust = "", 0, 0, False
        with collector_off():
            due = time.perf_counter() + FRAME
            while True:
                if ending:
                    after += 1
                elif not self._paused:
                    thrust = log.decide(pilot, game)
                    if self._by_hand:
                        thrust = self._burst > 0
                        self._burst = max(0, self._burst - 1)
                    game.step(thrust)
                    self._painter.advance(game)
                    if not game.alive or (self._frames and game.frame >= self._frames):
                        ending = "time" if game.alive else "crashed"
                # where frames are late, only some are drawn
                undrawn = undrawn + 1 if time.perf_counter() > due else 0
                if undrawn % _UNDRAWN == 0:
                    self._draw(game, log, self._facts(pilot, game, log, seed, thrust, ending))
                if not ending and not self._paused:
                    log.missed += time.perf_counter() > due
                key = self._wait(due)
                if self._stopped:
                    self._suspend()
                behind = time.perf_counter() - due
                due += FRAME if behind < _LOST else behind + FRAME
                if key in ("quit", "next") or after >= _PAUSE:
                    self._episodes.append(log.episode(seed, game, ending or "broken off"))
                    return key != "quit"

    def _wait(self, due: float) -> str | None:
        """Handle keys until the frame is over. Returns "quit" or "next" where the flight is to end."""
        found = None
        if due - time.perf_counter() > FRAME / 2:
            gc.collect(0)  # there is time, and drawing may have made reference cycles
        while True:
            left = due - time.perf_counter()
            try:
                key = self._terminal.inkey(timeout=max(0.0, left), esc_delay=0)
            except UnicodeDecodeError:  # a byte that is not text, of a paste or another keyboard encoding
                # blessed keeps it, and would fail at every later key
                decoder = getattr(self._terminal, "_keyboard_decoder", None)
                if decoder is not None:
                    decoder.reset()
                continue
            meaning = _KEYS.get(key.name or str(key).lower())
            if not key and left <= 0:
                return found
            if meaning == "thrust":
                self._by_hand, self._burst = True, _BURST
            elif meaning == "hand over":
                self._by_hand = not self._by_hand
            elif meaning == "pause":
                self._paused = not self._paused
            else:
                found = found or meaning

    # --------------------------------------------------------------------------------------- showing

    def _facts(self, pilot: Pilot, game: Flappy, log: Log, seed: int, thrust: bool, ending: str) -> Facts:
        from .screen import Facts

        if len(log.latencies) % _LOOK == 1 and not ending:
            self._ms = _spread(np.array(log.latencies[-_WINDOW:]) * 1000)
        asked = pilot if isinstance(pilot, ModelPilot) else None
        name = self._model_name if asked is not None and self._model_name else f"the {self._name} pilot"
        notice = "paused" if self._paused else {"": None, "time": "time is up", "crashed": "crashed"}[ending]
        return Facts(
            pilot="you" if self._by_hand else name,
            seed=seed,
            thrust=thrust,
            p_thrust=None if asked is None else asked.p_thrust,
            p_danger=None if asked is None else asked.p_danger,
            p_margin=None if asked is None else asked.p_margin,
            decision_ms=self._ms,
            missed=log.missed,
            frames=len(log.latencies),
            notice=notice,
            keys=f"space thrust   h {'hand back' if self._by_hand else 'take over'}   p pause   n next   q quit",
        )

    def _draw(self, game: Flappy, log: Log, facts: Facts) -> None:
        from .screen import LEAST_COLUMNS, LEAST_ROWS, as_line, too_small

        if self._moves:
            width, height = self._terminal.width, self._terminal.height
            enough = width >= LEAST_COLUMNS and height >= LEAST_ROWS
            canvas = self._painter.paint(game, facts, width, height) if enough else too_small(width, height)
            text = self._screen.text(canvas, width, height)
        else:
            told = (facts.notice, facts.seed, game.frame // _LINE)
            text = as_line(game, facts) + "\n" if told != self._told else ""
            self._told = told
        if text:
            self._terminal.stream.write(text)
            self._terminal.stream.flush()


def _can_show(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def _stops_noticed(notice: Callable[[], None]) -> Iterator[None]:
    """Call `notice` on Ctrl-Z, which would stop the process at once and leave the terminal without a cursor."""
    number = getattr(signal, "SIGTSTP", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, lambda *_: notice())
    try:
        yield
    finally:
        signal.signal(number, before)
