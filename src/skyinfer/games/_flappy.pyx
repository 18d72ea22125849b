# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The border to csrc/games/flappy.c, whose header has the rules, the units and the contracts."""

from libc.stdint cimport int32_t, int64_t, uint64_t


cdef extern from "games/flappy.h" nogil:
    enum:
        SKY_FLAPPY_TICKS
        SKY_FLAPPY_HEIGHT
        SKY_FLAPPY_DRONE_HEIGHT
        SKY_FLAPPY_DRONE_LENGTH
        SKY_FLAPPY_WALL_LENGTH
        SKY_FLAPPY_HALF_SECOND
        SKY_FLAPPY_HORIZON
        SKY_FLAPPY_TEXT_BYTES

    ctypedef struct sky_flappy_rules:
        const char *name
        int32_t gap
        int32_t spacing
        int32_t reach
        int32_t speed

    ctypedef struct sky_flappy:
        const sky_flappy_rules *rules
        int64_t n_steps
        int64_t n_gaps
        int32_t altitude
        int32_t speed
        int32_t distance
        int32_t gap_bottom
        int32_t next_offset
        int32_t alive

    ctypedef struct sky_flappy_prospect:
        int32_t n_steps
        int32_t cost

    const sky_flappy_rules *sky_flappy_rules_named(const char *name)
    const sky_flappy_rules *sky_flappy_rules_at(int index)
    void sky_flappy_begin(sky_flappy *game, const sky_flappy_rules *rules, uint64_t seed)
    int sky_flappy_step(sky_flappy *game, int thrust)
    int sky_flappy_text(const sky_flappy *game, char *text)
    int sky_flappy_will_crash(const sky_flappy *game, int steps)
    int sky_flappy_margin(const sky_flappy *game)
    void sky_flappy_look_ahead(const sky_flappy *game, sky_flappy_prospect *prospects)
    int sky_flappy_pilot(const sky_flappy *game)


TICKS = SKY_FLAPPY_TICKS
HEIGHT = SKY_FLAPPY_HEIGHT
DRONE_HEIGHT = SKY_FLAPPY_DRONE_HEIGHT
DRONE_LENGTH = SKY_FLAPPY_DRONE_LENGTH
WALL_LENGTH = SKY_FLAPPY_WALL_LENGTH
HALF_SECOND = SKY_FLAPPY_HALF_SECOND
HORIZON = SKY_FLAPPY_HORIZON


def difficulties() -> tuple[str, ...]:
    """The names of the difficulties, easiest first."""
    names = []
    while sky_flappy_rules_at(len(names)) != NULL:
        names.append(sky_flappy_rules_at(len(names)).name.decode())
    return tuple(names)


cdef class Flappy:
    """A game of Flappy Drone. One thread at a time may step it.

    A game depends on its seed and inputs alone, and is the same on every machine.

    Args:
        seed: at least 0 and below 2**64.
        difficulty: "easy", "normal" or "hard".

    Raises:
        ValueError: no such difficulty, or a seed out of range.
    """

    cdef sky_flappy game

    def __init__(self, seed=0, str difficulty not None="hard"):
        cdef bytes name = difficulty.encode("utf-8", "replace")
        cdef const sky_flappy_rules *rules = sky_flappy_rules_named(name)
        if rules == NULL or b"\0" in name:
            raise ValueError(f"difficulty: expected one of {', '.join(difficulties())}, got {difficulty!r}")
        if isinstance(seed, bool) or not hasattr(seed, "__index__"):
            raise TypeError(f"seed: expected an integer, got {type(seed).__name__}")
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"seed: expected at least 0 and below 2**64, got {seed}")
        sky_flappy_begin(&self.game, rules, seed)

    def __cinit__(self, *_, **__):
        sky_flappy_begin(&self.game, sky_flappy_rules_at(0), 0)  # valid even where __init__ never runs

    def __repr__(self) -> str:
        ending = "" if self.game.alive else ", crashed"
        return f"<Flappy {self.difficulty}, frame {self.game.n_steps}, score {self.game.n_gaps}{ending}>"

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memo):
        return self.copy()

    def __reduce__(self):
        raise TypeError("a Flappy cannot be pickled; make it again from its seed and inputs")

    def step(self, bint thrust) -> bool:
        """One sixtieth of a second, with a thrust or gliding. Returns `alive`; a game that is over does not change."""
        return bool(sky_flappy_step(&self.game, thrust))

    def state_text(self) -> str:
        """What a model reads: "vy 0 dx 36 up 9 dn 7 nxt 10 alt 32"."""
        cdef char text[SKY_FLAPPY_TEXT_BYTES]
        cdef int length = sky_flappy_text(&self.game, text)
        return text[:length].decode("ascii")

    def will_crash(self, int frames=SKY_FLAPPY_HALF_SECOND) -> bool:
        """Whether the drone crashes within the next `frames` steps if it glides in all of them."""
        if frames < 0:
            raise ValueError(f"frames: expected at least 0, got {frames}")
        return bool(sky_flappy_will_crash(&self.game, frames))

    def margin(self) -> int:
        """Room above and below: 0 none, 1 tight, 2 comfortable, computed from up and dn in the text."""
        return sky_flappy_margin(&self.game)

    def teacher(self) -> bool:
        """The look-ahead pilot's input: True to thrust."""
        cdef int thrust
        with nogil:
            thrust = sky_flappy_pilot(&self.game)
        return bool(thrust)

    def prospects(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The best flights found after gliding and after thrusting now: frames survived of HORIZON, and cost."""
        cdef sky_flappy_prospect found[2]
        with nogil:
            sky_flappy_look_ahead(&self.game, found)
        return (found[0].n_steps, found[0].cost), (found[1].n_steps, found[1].cost)

    def copy(self) -> Flappy:
        """An independent copy of the game."""
        cdef Flappy other = Flappy.__new__(Flappy)
        other.game = self.game
        return other

    @property
    def alive(self) -> bool:
        return bool(self.game.alive)

    @property
    def frame(self) -> int:
        """Steps survived."""
        return self.game.n_steps

    @property
    def score(self) -> int:
        """Gaps flown through."""
        return self.game.n_gaps

    @property
    def difficulty(self) -> str:
        return self.game.rules.name.decode()

    @property
    def altitude(self) -> float:
        """Units from the floor to the drone's underside."""
        return self.game.altitude / <double>SKY_FLAPPY_TICKS

    @property
    def distance(self) -> float:
        """Units from the drone's nose to the next wall's face; below zero while the drone is between its edges."""
        return self.game.distance / <double>SKY_FLAPPY_TICKS

    @property
    def spacing(self) -> int:
        """Units from a wall's face to the next one's."""
        return self.game.rules.spacing

    @property
    def gaps(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Lower and upper edge, in units above the floor, of the next gap and of the one after it."""
        cdef int bottom = self.game.gap_bottom, after = self.game.gap_bottom + self.game.next_offset
        cdef int gap = self.game.rules.gap
        return (bottom, bottom + gap), (after, after + gap)
