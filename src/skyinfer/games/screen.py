"""The picture of a flight in a terminal: the world in half blocks, and four lines about the model below it.

A Painter makes a canvas of a game, a Screen writes the rows that changed since the last frame, in one write. Every cell
is one column wide; there are three styles: blocks in colour, blocks, and ASCII. Time, keys, decisions: play.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from .flappy import DRONE_HEIGHT, DRONE_LENGTH, FRAMES_PER_SECOND, HEIGHT, MARGINS, WALL_LENGTH, Flappy

if TYPE_CHECKING:
    from blessed import Terminal

LEAST_COLUMNS, LEAST_ROWS = 76, 14
_MOST_COLUMNS, _MOST_ROWS = 132, 46

# the title above the world; the ground and four lines below it
_ABOVE, _BELOW = 1, 5

_NOSE_COLUMN = 20  # where the drone's nose is; a column is a unit wide
_EIGHTHS = " ▏▎▍▌▋▊▉█"

# style: colour, background (red, green, blue); sky and ground are looked up by name
_SKY, _WALL, _GROUND, _PANEL = (16, 24, 48), (46, 160, 110), (74, 58, 44), (12, 14, 20)
_COLOURS = {
    "sky": ((90, 110, 150), _SKY),
    "wall": (_WALL, _SKY),
    "rim": ((120, 220, 160), _SKY),
    "sky on wall": (_SKY, _WALL),
    "drone": ((255, 210, 80), _SKY),
    "nose": ((250, 250, 250), _SKY),
    "flame": ((255, 120, 50), _SKY),
    "crash": ((255, 80, 80), _SKY),
    "ground": ((120, 96, 70), _GROUND),
    "title": ((230, 235, 245), (30, 44, 84)),
    "text": ((190, 198, 210), _PANEL),
    "dim": ((110, 118, 132), _PANEL),
    "thrust": ((255, 170, 60), _PANEL),
    "danger": ((255, 90, 90), _PANEL),
    "good": ((90, 210, 130), _PANEL),
    "notice": ((20, 24, 32), (255, 210, 80)),
}


class Facts(NamedTuple):
    """What is written beside the picture.

    pilot: who flies. p_thrust, p_danger, p_margin: the model's answers, None where no model is asked.
    decision_ms: median, p99 and max; None before the first. notice: a text over the picture.
    """

    pilot: str
    seed: int
    thrust: bool
    p_thrust: float | None
    p_danger: float | None
    p_margin: Sequence[float] | None
    decision_ms: Mapping[str, float] | None
    missed: int
    frames: int
    notice: str | None
    keys: str


class Canvas:
    """Rows of characters and styles."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.characters = [[" "] * columns for _ in range(rows)]
        self.styles = [["text"] * columns for _ in range(rows)]

    def put(self, row: int, column: int, text: str, style: str) -> int:
        """Write text, cut at the edges. Returns the column after it."""
        end = column + len(text)
        if 0 <= row < self.rows:
            if column < 0:
                text, column = text[-column:], 0
            text = text[: max(0, self.columns - column)]
            self.characters[row][column : column + len(text)] = text
            self.styles[row][column : column + len(text)] = [style] * len(text)
        return end

    def fill(self, row: int, style: str, character: str = " ") -> None:
        self.put(row, 0, character * self.columns, style)


class Painter:
    """Paints a game and the facts about it on a canvas.

    Args:
        blocks: whether block characters can be shown. Otherwise all is ASCII.
        colours: whether backgrounds can be. Otherwise a wall's edges lie on whole columns.
    """

    def __init__(self, *, blocks: bool, colours: bool) -> None:
        self._blocks, self._colours = blocks, colours
        self._trail: deque[tuple[float, float]] = deque(maxlen=64)  # distance flown, altitude
        self._flown = 0.0
        self._before: float | None = None

    def new_flight(self) -> None:
        self._trail.clear()
        self._before = None

    def advance(self, game: Flappy) -> None:
        """Record where the drone is, once a frame."""
        before = game.distance if self._before is None else self._before
        # where a wall was passed the distance grew by the spacing
        self._flown += (before - game.distance) % game.spacing
        self._before = game.distance
        self._trail.append((self._flown, game.altitude))

    def paint(self, game: Flappy, facts: Facts, columns: int, rows: int) -> Canvas:
        canvas = Canvas(min(columns, _MOST_COLUMNS), min(rows, _MOST_ROWS))
        self._title(canvas, game, facts)
        world = range(_ABOVE, canvas.rows - _BELOW)
        self._world(canvas, world, game, facts)
        if facts.notice:
            text = f"  {facts.notice}  "
            canvas.put(world[len(world) // 3], (canvas.columns - len(text)) // 2, text, "notice")
        self._panel(canvas, world.stop, game, facts)
        return canvas

    # ------------------------------------------------------------------------------------------ parts

    def _title(self, canvas: Canvas, game: Flappy, facts: Facts) -> None:
        canvas.fill(0, "title")
        canvas.put(0, 1, f"Flappy Drone   {game.difficulty}   seed {facts.seed}", "title")
        seconds = game.frame // FRAMES_PER_SECOND
        clock = f"{seconds // 60}:{seconds % 60:02}"
        right = f"{game.score} {'gap' if game.score == 1 else 'gaps'}   {clock} "
        canvas.put(0, canvas.columns - len(right), right, "title")

    def _world(self, canvas: Canvas, world: range, game: Flappy, facts: Facts) -> None:
        for row in world:
            canvas.fill(row, "sky")
        self._dots(canvas, world)
        left = _NOSE_COLUMN + game.distance
        (bottom, top), (next_bottom, next_top) = game.gaps
        self._wall(canvas, world, left, bottom, top)
        self._wall(canvas, world, left + game.spacing, next_bottom, next_top)
        self._drone(canvas, world, game, facts.thrust)
        canvas.fill(world.stop, "ground")
        ticks = int(self._flown)
        marks = "".join("'" if (column + ticks) % 6 == 0 else " " for column in range(canvas.columns))
        canvas.put(world.stop, 0, marks if self._colours else marks.replace(" ", "_"), "ground")

    def _half_rows(self, world: range, altitude: float) -> int:
        """Half rows of the world below an altitude, rounded."""
        return round(altitude / HEIGHT * 2 * len(world))

    def _dots(self, canvas: Canvas, world: range) -> None:
        """A dot where the drone was, every other unit."""
        dot = "·" if self._blocks else "."
        last = None
        for flown, altitude in reversed(self._trail):
            unit = int(flown // 2)
            column = _NOSE_COLUMN - DRONE_LENGTH - int(self._flown - flown)
            if unit != last and column >= 0:
                last = unit
                half = self._half_rows(world, altitude + DRONE_HEIGHT / 2)
                canvas.put(world.stop - 1 - min(half // 2, len(world) - 1), column, dot, "sky")

    def _wall(self, canvas: Canvas, world: range, left: float, bottom: int, top: int) -> None:
        first, end = int(left // 1), int((left + WALL_LENGTH) // 1)
        eighth = int((left - first) * 8)
        fine = self._blocks and self._colours
        solid = "█" if self._blocks else "#"
        low, high = self._half_rows(world, bottom), self._half_rows(world, top)
        for i, row in enumerate(reversed(world)):  # from the ground up
            lower, upper = not low <= 2 * i < high, not low <= 2 * i + 1 < high
            if not self._blocks:
                if lower or upper:
                    canvas.put(row, first, solid * WALL_LENGTH, "wall")
            elif lower and upper:
                if fine:
                    # the first column is wall on its right, the last one on its left
                    canvas.put(row, first, _EIGHTHS[eighth], "sky on wall")
                    canvas.put(row, first + 1, solid * (end - first - 1), "wall")
                    canvas.put(row, end, _EIGHTHS[eighth], "wall")
                else:
                    canvas.put(row, first, solid * WALL_LENGTH, "wall")
            elif lower or upper:
                canvas.put(row, first, ("▄" if lower else "▀") * WALL_LENGTH, "rim")

    def _drone(self, canvas: Canvas, world: range, game: Flappy, thrust: bool) -> None:
        low = max(0, self._half_rows(world, game.altitude))
        row, style = world.stop - 1 - low // 2, "drone" if game.alive else "crash"
        column = _NOSE_COLUMN - DRONE_LENGTH
        if not self._blocks:
            canvas.put(row, column, "o=>" if game.alive else "XXX", style)
        else:
            half = "▀" if low % 2 else "▄"
            at = canvas.put(row, column, half * (DRONE_LENGTH - 1), style)
            canvas.put(row, at, half, "nose" if game.alive else style)
        if thrust and game.alive and row + 1 < world.stop:
            canvas.put(row + 1, column + 1, '"', "flame")

    def _panel(self, canvas: Canvas, ground: int, game: Flappy, facts: Facts) -> None:
        for row in range(ground + 1, canvas.rows):
            canvas.fill(row, "text")
        width = max(8, (canvas.columns - 60) // 2 + 10)
        row = ground + 1
        if facts.p_thrust is None or facts.p_danger is None or facts.p_margin is None:
            canvas.put(row, 1, "thrust" if facts.thrust else "glide", "thrust" if facts.thrust else "text")
            canvas.put(row + 1, 1, game.state_text(), "dim")
        else:
            at = canvas.put(row, 1, "thrust ", "thrust" if facts.thrust else "text")
            at = self._bar(canvas, row, at, facts.p_thrust, width, "thrust")
            at = canvas.put(row, at + 3, "danger ", "danger" if facts.p_danger > 0.5 else "text")
            self._bar(canvas, row, at, facts.p_danger, width, "danger")
            at = canvas.put(row + 1, 1, "margin ", "text")
            best = max(range(len(MARGINS)), key=facts.p_margin.__getitem__)
            for i, (name, p) in enumerate(zip(MARGINS, facts.p_margin, strict=True)):
                style = ("danger", "thrust", "good")[i] if i == best else "dim"
                at = canvas.put(row + 1, at, f"{name} {p:.2f}", style) + 2
        right = f"{facts.pilot} flies "
        canvas.put(row + 1, canvas.columns - len(right), right, "good" if facts.pilot != "you" else "thrust")
        if facts.decision_ms:
            at = canvas.put(row + 2, 1, _times(facts.decision_ms), "text")
            missed = f"{facts.missed:,} of {facts.frames:,} frames missed "
            at = max(at + 2, canvas.columns - len(missed))
            canvas.put(row + 2, at, missed, "danger" if facts.missed else "text")
        canvas.put(row + 3, 1, facts.keys, "dim")

    def _bar(self, canvas: Canvas, row: int, column: int, p: float, width: int, style: str) -> int:
        """Returns the column after it."""
        eighths = round(p * width * 8)
        if self._blocks:
            full, rest = divmod(eighths, 8)
            text = "█" * full + (_EIGHTHS[rest] if rest else "")
            canvas.put(row, column, (text + "░" * (width - len(text)))[:width], style)
        else:
            full = eighths // 8
            canvas.put(row, column, "#" * full + "." * (width - full), style)
        return canvas.put(row, column + width, f" {p:.2f}", "text")


def _times(ms: Mapping[str, float]) -> str:
    return f"decided in {ms['median']:.3f} ms, p99 {ms['p99']:.3f}, max {ms['max']:.2f}"


def too_small(columns: int, rows: int) -> Canvas:
    """The canvas of a terminal that is too small."""
    canvas = Canvas(columns, rows)
    for row, text in enumerate((f"{LEAST_COLUMNS} x {LEAST_ROWS} needed,", f"{columns} x {rows} is here")):
        canvas.put(row, 0, text, "text")
    return canvas


def as_line(game: Flappy, facts: Facts) -> str:
    """The flight as a line, for a terminal that cannot move its cursor."""
    seconds = game.frame / FRAMES_PER_SECOND
    line = f"{seconds:6.1f} s  {game.score:4} gaps  alt {game.altitude:4.1f}  {facts.pilot} flies"
    if facts.p_thrust is not None and facts.p_danger is not None:
        line += f"  thrust {facts.p_thrust:.2f} danger {facts.p_danger:.2f}"
    if facts.decision_ms:
        line += f"  {facts.decision_ms['median']:.3f} ms"
    return f"{line}  {facts.notice}" if facts.notice else line


class Screen:
    """Writes canvases to a terminal: of each frame only the rows that changed."""

    def __init__(self, terminal: Terminal, *, colours: bool) -> None:
        self._terminal = terminal
        self._looks = dict.fromkeys(_COLOURS, "")
        if colours:
            self._looks = {
                name: str(terminal.color_rgb(*colour)) + str(terminal.on_color_rgb(*background))
                for name, (colour, background) in _COLOURS.items()
            }
        self._normal = str(terminal.normal) if colours else ""
        # synchronized output (DEC mode 2026): a frame is shown at once; other terminals with so many colours ignore it
        self._frame = ("\x1b[?2026h", "\x1b[?2026l") if colours and terminal.number_of_colors > 16 else ("", "")
        self._shown: list[str] = []
        self._size = (0, 0)

    def forget(self) -> None:
        """The terminal shows something else now, so that the next frame is written whole."""
        self._size = (0, 0)

    def text(self, canvas: Canvas, width: int, height: int) -> str:
        """What to write so that a terminal of this size shows the canvas."""
        out = []
        if (width, height) != self._size:
            self._size, self._shown = (width, height), []
            out.append(self._normal + str(self._terminal.home) + str(self._terminal.clear))
        rows = [
            self._row(characters, styles) for characters, styles in zip(canvas.characters, canvas.styles, strict=True)
        ]
        shown = self._shown + [""] * (len(rows) - len(self._shown))
        for number, (row, before) in enumerate(zip(rows, shown, strict=False)):
            if row != before:
                out.append(str(self._terminal.move_yx(number, 0)) + row + self._normal)
        self._shown = rows
        return "".join([self._frame[0], *out, self._frame[1]]) if out else ""

    def _row(self, characters: list[str], styles: list[str]) -> str:
        at, parts = 0, []
        for style, run in groupby(styles):
            end = at + sum(1 for _ in run)
            parts.append(self._looks[style] + "".join(characters[at:end]))
            at = end
        return "".join(parts)
