"""Flappy Drone: the rules are those that this file writes down once more, and the pilot flies by them."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import random
import re
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyinfer.games.flappy import DIFFICULTIES, HORIZON, MARGINS, QUESTIONS, Flappy

ROOT = Path(__file__).parents[1]
TEXT = re.compile(r"vy (-?\d+) dx (-?\d+) up (-?\d+) dn (-?\d+) nxt (-?\d+) alt (-?\d+)")
WORD = (1 << 64) - 1


def numbers(text: str) -> tuple[int, ...]:
    """vy, dx, up, dn, nxt and alt of a state."""
    match = TEXT.fullmatch(text)
    assert match, text
    return tuple(map(int, match.groups()))


class Rules:
    """The game, from its description in csrc/games/flappy.h: 16 ticks are a unit, integers throughout."""

    #                gap, spacing, reach, speed
    LEVELS = {"easy": (24, 56, 12, 8), "normal": (20, 48, 18, 9), "hard": (16, 40, 24, 10)}  # noqa: RUF012

    def __init__(self, seed: int, difficulty: str) -> None:
        self.gap, self.spacing, self.reach, self.forward = self.LEVELS[difficulty]
        self.random = seed
        self.altitude, self.speed, self.distance = 32 * 16, 0, 36 * 16
        self.alive, self.frame, self.score = True, 0, 0
        middle = (64 - self.gap) // 2
        self.bottom = middle + self.offset_from(middle)
        self.next = self.offset_from(self.bottom)

    def offset_from(self, bottom: int) -> int:
        choices = [
            offset
            for offset in range(-self.reach, self.reach + 1)
            if 4 <= bottom + offset <= 60 - self.gap and (bottom + offset) % 2 == 0
        ]
        self.random = (self.random + 0x9E3779B97F4A7C15) & WORD
        z = self.random
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & WORD
        z = (z ^ z >> 27) * 0x94D049BB133111EB & WORD
        z ^= z >> 31
        return choices[(z >> 32) * len(choices) >> 32]

    def rooms(self) -> tuple[int, int]:
        """Ticks above and below."""
        return (self.bottom + self.gap - 2) * 16 - self.altitude, self.altitude - self.bottom * 16

    def step(self, thrust: bool) -> bool:
        if not self.alive:
            return False
        self.speed = min(14, max(-16, self.speed - 1 + 3 * thrust))
        self.altitude += self.speed
        self.distance -= self.forward
        if self.distance <= -(8 + 3) * 16:
            self.distance += self.spacing * 16
            self.bottom += self.next
            self.next = self.offset_from(self.bottom)
            self.score += 1
        inside = 0 <= self.altitude <= (64 - 2) * 16
        self.alive = inside and (self.distance >= 0 or min(self.rooms()) >= 0)
        self.frame += self.alive
        return self.alive

    def text(self) -> str:
        up, dn = self.rooms()
        return (
            f"vy {self.speed} dx {self.distance // 16} up {up // 16} dn {dn // 16} "
            f"nxt {self.next} alt {self.altitude // 16}"
        )


def trace() -> Iterator[tuple[str, str]]:
    """The texts of the game and of the rules, on the flights of tests/c/flappy_test.c."""
    for difficulty in ("easy", "normal", "hard"):
        for seed in range(8):
            seed_bits = (seed << 61 | seed) & WORD
            game, rules, inputs = Flappy(seed_bits, difficulty), Rules(seed_bits, difficulty), seed + 1
            while True:
                yield game.state_text(), rules.text()
                inputs = (inputs * 1664525 + 1013904223) & 0xFFFFFFFF
                speed, dn = numbers(rules.text())[0], numbers(rules.text())[3]
                thrust = 2 * dn + speed < rules.gap if inputs >> 29 else bool(inputs >> 28 & 1)
                rules.step(thrust)
                game.step(thrust)
                assert (game.alive, game.frame, game.score) == (rules.alive, rules.frame, rules.score)
                if not rules.alive or rules.frame >= 3000:
                    break


def test_the_game_follows_the_rules_and_so_does_the_hash_in_c() -> None:
    hash_, count = 0xCBF29CE484222325, 0
    for ours, expected in trace():
        assert ours == expected
        count += 1
        for byte in expected.encode() + b"\0":
            hash_ = (hash_ ^ byte) * 0x100000001B3 & WORD
    assert count > 3000  # through walls, and into them
    source = (ROOT / "tests" / "c" / "flappy_test.c").read_text("utf-8")
    assert f"UINT64_C(0x{hash_:016x})" in source


def off_course(difficulty: str, n: int, seed: int) -> Iterator[Flappy]:
    """Games in the middle of flights that the pilot and chance share."""
    rng = random.Random(seed)
    for number in range(n):
        game = Flappy(rng.getrandbits(64), difficulty)
        steer = rng.random()
        for _ in range(rng.randrange(150)):
            before = game.copy()
            if not game.step(game.teacher() if rng.random() < steer else rng.random() < 0.3):
                game = before
                break
        assert game.alive, number
        yield game


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_the_text_is_of_the_form_that_models_read(difficulty: str) -> None:
    assert re.fullmatch(r"vy 0 dx 36 up -?\d+ dn -?\d+ nxt -?\d+ alt 32", Flappy(3, difficulty).state_text())
    for game in off_course(difficulty, 60, 1):
        vy, dx, up, dn, nxt, alt = numbers(game.state_text())
        gap = Rules.LEVELS[difficulty][0]
        assert up + dn in (gap - 2, gap - 3)  # less the drone; once more rounded down where it is between two units
        assert (-16 <= vy <= 14, -11 <= dx < 56, 0 <= alt <= 62, abs(nxt) <= 24) == (True,) * 4
        (bottom, top), (next_bottom, _) = game.gaps
        assert (alt - bottom, top - bottom, next_bottom - bottom) == (dn, gap, nxt)
        assert (int(game.altitude // 1), int(game.distance // 1)) == (alt, dx)


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_danger_is_what_comes_of_gliding(difficulty: str) -> None:
    seen = set()
    for game in off_course(difficulty, 100, 2):
        for frames in (0, 1, 7, 30, 100):
            ahead = game.copy()
            alive = all(ahead.step(False) for _ in range(frames))
            assert game.will_crash(frames) == (not alive)
        assert game.will_crash() == game.will_crash(30)
        seen.add(game.will_crash())
    assert seen == {False, True}


def test_margin_is_computed_from_the_text() -> None:
    seen = set()
    for game in off_course("hard", 150, 3):
        _, _, up, dn, _, _ = numbers(game.state_text())
        room = min(up, dn)
        expected = "none" if room < 1 else "tight" if room < 4 else "comfortable"
        assert MARGINS[game.margin()] == expected
        seen.add(expected)
    assert seen == set(MARGINS)


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_the_pilot_survives(difficulty: str) -> None:
    pairs = set()
    for seed in range(10):
        game = Flappy(10**12 + seed, difficulty)
        while game.frame < 1500:
            assert game.step(game.teacher()), game
            pairs.add(game.gaps)
    assert len(pairs) > 60  # every kind of way from one gap to the next


def test_the_pilot_saves_what_can_be_saved() -> None:
    """Wherever some flight through the next second is found by chance, the pilot's survives it, too."""
    rng = random.Random(4)
    saved = 0
    for game in off_course("hard", 100, 4):

        def survives(inputs: list[bool], game: Flappy = game) -> bool:
            ahead = game.copy()
            return all(ahead.step(thrust) for thrust in inputs)

        # inputs that change every few frames, as flights do
        tries = ([rng.random() < 0.4 for _ in range(10)] for _ in range(200))
        if not any(survives([one for one in some for _ in range(6)]) for some in tries):
            continue
        ahead = game.copy()
        alive = all(ahead.step(ahead.teacher()) for _ in range(60))
        saved += alive
        assert alive, (game, game.state_text())
    assert saved > 20


def test_prospects_grade_the_inputs() -> None:
    for game in off_course("hard", 100, 5):
        glide, thrust = game.prospects()
        assert game.teacher() == ((-thrust[0], thrust[1]) < (-glide[0], glide[1]))
        assert max(glide[0], thrust[0]) <= HORIZON
    falling = Flappy(0)
    while falling.altitude > 6:
        falling.step(False)
    glide, thrust = falling.prospects()
    assert glide[0] < thrust[0]


def test_chance_crashes_soon() -> None:
    flights = []
    for seed in range(100):
        game, rng = Flappy(seed), random.Random(seed)
        while game.step(rng.random() < 0.5):
            pass
        flights.append(game.frame)
    assert statistics.median(flights) < 120


def test_a_game_that_is_over_stays_as_it_is() -> None:
    game = Flappy(1)
    while game.step(False):
        pass
    before = (game.state_text(), game.frame, game.score)
    assert not game.alive
    assert (game.step(True), game.will_crash(0)) == (False, True)
    assert (game.state_text(), game.frame, game.score) == before
    assert repr(game) == f"<Flappy hard, frame {game.frame}, score 0, crashed>"


@pytest.mark.parametrize("duplicate", [Flappy.copy, copy.copy, copy.deepcopy])
def test_copies_go_their_own_way(duplicate: type) -> None:
    game = Flappy(5)
    for _ in range(50):
        game.step(game.teacher())
    twin, before = duplicate(game), game.state_text()
    while twin.step(False):
        pass
    assert (game.alive, game.state_text()) == (True, before)
    twin = duplicate(game)
    for _ in range(500):
        thrust = game.teacher()
        assert game.step(thrust) == twin.step(thrust)
    assert game.state_text() == twin.state_text()


def test_what_is_refused() -> None:
    for seed in (-1, 1 << 64):
        with pytest.raises(ValueError, match=r"seed: expected at least 0 and below 2\*\*64"):
            Flappy(seed)
    for wrong in ("1", 1.0, None, True):
        with pytest.raises(TypeError, match="seed: expected an integer"):
            Flappy(wrong)  # type: ignore[arg-type]
    for difficulty in ("", "HARD", "hard\0", "h\N{LATIN SMALL LETTER A WITH DIAERESIS}rd", "\ud800"):
        with pytest.raises(ValueError, match="difficulty: expected one of easy, normal, hard"):
            Flappy(0, difficulty)
    with pytest.raises(TypeError):
        Flappy(0, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="frames: expected at least 0"):
        Flappy().will_crash(-1)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(Flappy())
    assert Flappy(WORD := (1 << 64) - 1).alive, WORD
    assert Flappy.__new__(Flappy).state_text().startswith("vy 0 dx 36 ")


def test_the_questions_are_those_of_the_example() -> None:
    request = json.loads((ROOT / "examples" / "request.json").read_text("utf-8"))
    assert request["questions"] == QUESTIONS
    assert list(QUESTIONS["action"]["criteria"]) == list(request["questions"]["action"]["criteria"])
    assert numbers(request["state"])


def test_stepping_takes_less_than_a_microsecond() -> None:
    game = Flappy(0)
    for _ in range(100):
        game.step(game.teacher())
    start = game.copy()

    def seconds() -> float:
        games = [start.copy() for _ in range(2000)]
        begin = time.perf_counter()
        for one in games:
            one.step(False)
            one.step(True)
        return time.perf_counter() - begin

    gc.disable()
    try:
        assert min(seconds() for _ in range(20)) / 4000 < 1e-6
    finally:
        gc.enable()
