/* Flappy Drone: a drone that falls, an input that thrusts it upwards, and gaps in walls to fly through.
 *
 * Purpose   The rules, the text that a model reads, a look-ahead pilot, and the truth about crashes. No drawing, no clock.
 * Units     Lengths are in units of a world that is 64 high; inside they are counted in sixteenths of a unit ("ticks").
 *           A step is 1/60 s; speeds are ticks a step. Altitudes grow upwards.
 * Numbers   Integers only, so that a seed gives the same flight on every machine. Rooms and altitude in the text are
 *           rounded down to whole units.
 * State     A sky_flappy holds everything, its random numbers included: assignment copies a game. Nothing allocates.
 */
#ifndef SKY_FLAPPY_H
#define SKY_FLAPPY_H

#include <stdint.h>

#include "../strict_math.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SKY_FLAPPY_TICKS = 16,        /* in a unit */
    SKY_FLAPPY_HEIGHT = 64,       /* units from the floor to the ceiling; touching either ends the game */
    SKY_FLAPPY_DRONE_HEIGHT = 2,  /* units */
    SKY_FLAPPY_DRONE_LENGTH = 3,  /* units */
    SKY_FLAPPY_WALL_LENGTH = 8,   /* units: how deep a wall with a gap in it is */
    SKY_FLAPPY_GRAVITY = 1,       /* ticks a step, taken from the speed in every step */
    SKY_FLAPPY_THRUST = 3,        /* ticks a step, added to the speed in a step that thrusts */
    SKY_FLAPPY_FASTEST_RISE = 14, /* ticks a step */
    SKY_FLAPPY_FASTEST_FALL = 16, /* ticks a step */
    SKY_FLAPPY_HALF_SECOND = 30,  /* steps */
    SKY_FLAPPY_HORIZON = 96,      /* steps that the pilot looks ahead at most */
    SKY_FLAPPY_COMFORT = 4,       /* units of room above and below from which a margin is comfortable */
    SKY_FLAPPY_TEXT_BYTES = 80    /* the longest text with its closing zero is shorter */
};

/* What a difficulty sets, in units; walls are `spacing` apart from face to face. */
typedef struct {
    const char *name;
    int32_t gap;     /* height of the gaps */
    int32_t spacing;
    int32_t reach;   /* the most that a gap lies above or below the one before; a multiple of 2, as all offsets are */
    int32_t speed;   /* ticks a step */
} sky_flappy_rules;

typedef struct {
    const sky_flappy_rules *rules;
    uint64_t random;     /* state of the generator (splitmix64) */
    int64_t n_steps;     /* steps survived */
    int64_t n_gaps;      /* gaps flown through */
    int32_t altitude;    /* ticks: the drone's underside above the floor */
    int32_t speed;       /* ticks a step, upwards */
    int32_t distance;    /* ticks from the drone's nose to the next wall's face; below zero while between its edges */
    int32_t gap_bottom;  /* units */
    int32_t next_offset; /* units from this gap up to the one after it */
    int32_t alive;       /* 0 or 1 */
} sky_flappy;

/* The rules of "easy", "normal" or "hard", easiest first by index; NULL for any other name, and past the end. */
const sky_flappy_rules *sky_flappy_rules_named(const char *name);
const sky_flappy_rules *sky_flappy_rules_at(int index);

/* A new game: the drone at rest halfway up, 36 units before the first wall. */
void sky_flappy_begin(sky_flappy *game, const sky_flappy_rules *rules, uint64_t seed);

/* One sixtieth of a second: thrust (not 0) or glide (0). Gives `alive`; a game that is over does not change any more. */
int sky_flappy_step(sky_flappy *game, int thrust);

/* Room from the drone's edges to the gap's, in whole units rounded down; below zero where it would hit the wall. */
int sky_flappy_room_above(const sky_flappy *game);
int sky_flappy_room_below(const sky_flappy *game);

/* "vy 0 dx 36 up 9 dn 7 nxt 10 alt 32" into `text`, with a closing zero; gives the length. vy in ticks a step, all else in
 * units: dx to the next wall's face (below zero between its edges), room above and below, next_offset, altitude. */
int sky_flappy_text(const sky_flappy *game, char text[SKY_FLAPPY_TEXT_BYTES]);

/* Whether the drone crashes within the next `steps` steps if it glides in all of them. */
int sky_flappy_will_crash(const sky_flappy *game, int steps);

/* 0 none, 1 tight, 2 comfortable, by the smaller of the two rooms in the text: below 1, below SKY_FLAPPY_COMFORT, or more. */
int sky_flappy_margin(const sky_flappy *game);

/* What the best flight found after an input looks like. Where one crashes, it ends earlier than that of the other input. */
typedef struct {
    int32_t n_steps; /* survived, of as many as were looked ahead */
    int32_t cost;    /* summed over those steps: for coming close to an edge, and a little for leaving the middle */
} sky_flappy_prospect;

/* The best flights after holding glide ([0]) or thrust ([1]) for a moment: a search over copies of the game, each flown by
 * a rule that aims at a height in the next gap and changes to the gap after it at some place. It ends at the horizon or
 * behind the second gap, and depends on nothing but what the text shows, in ticks where the text has units. */
void sky_flappy_look_ahead(const sky_flappy *game, sky_flappy_prospect prospects[2]);

/* The pilot's input: survive longest, then cost least, then glide. */
int sky_flappy_pilot(const sky_flappy *game);

#ifdef __cplusplus
}
#endif

#endif
