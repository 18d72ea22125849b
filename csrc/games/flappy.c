/* Flappy Drone's rules, and a pilot that searches over copies of the game. Units and contracts: flappy.h. */
#include "games/flappy.h"

#include <stddef.h>
#include <string.h>

/* Gaps keep this far from the floor and the ceiling, and lie this far apart or a multiple of it. In units. */
enum { EDGE = 4, GRID = 2 };

enum {
    TICKS = SKY_FLAPPY_TICKS,
    DRONE_TICKS = SKY_FLAPPY_DRONE_HEIGHT * TICKS,
    CEILING_TICKS = SKY_FLAPPY_HEIGHT * TICKS,
    PASSAGE_TICKS = (SKY_FLAPPY_WALL_LENGTH + SKY_FLAPPY_DRONE_LENGTH) * TICKS, /* nose in to tail out */
    FIRST_WALL = 36
};

static const sky_flappy_rules all_rules[] = {
    {"easy", 24, 56, 12, 8},
    {"normal", 20, 48, 18, 9},
    {"hard", 16, 40, 24, 10},
};

const sky_flappy_rules *sky_flappy_rules_at(int index)
{
    return index >= 0 && index < (int)(sizeof all_rules / sizeof *all_rules) ? &all_rules[index] : NULL;
}

const sky_flappy_rules *sky_flappy_rules_named(const char *name)
{
    for (int i = 0; sky_flappy_rules_at(i); i++)
        if (!strcmp(all_rules[i].name, name))
            return &all_rules[i];
    return NULL;
}

/* ---- rules ---- */

/* Uniform in [0, n): splitmix64 (Steele, Lea and Flood 2014), its upper half scaled. */
static int32_t draw(uint64_t *random, int32_t n)
{
    uint64_t z = *random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (int32_t)(((z >> 32) * (uint64_t)n) >> 32);
}

/* Offset in units of a gap from the one at `bottom`, uniform among those that are in reach and inside the world. */
static int32_t draw_offset(sky_flappy *game, int32_t bottom)
{
    const sky_flappy_rules *rules = game->rules;
    const int32_t lowest = EDGE, highest = SKY_FLAPPY_HEIGHT - EDGE - rules->gap;
    int32_t from = bottom - rules->reach, to = bottom + rules->reach;
    from = from < lowest ? lowest : from;
    to = to > highest ? highest : to;
    return from + GRID * draw(&game->random, (to - from) / GRID + 1) - bottom;
}

void sky_flappy_begin(sky_flappy *game, const sky_flappy_rules *rules, uint64_t seed)
{
    const int32_t middle = (SKY_FLAPPY_HEIGHT - rules->gap) / 2;
    *game = (sky_flappy){.rules = rules, .random = seed, .alive = 1};
    game->altitude = SKY_FLAPPY_HEIGHT / 2 * TICKS;
    game->distance = FIRST_WALL * TICKS;
    game->gap_bottom = middle + draw_offset(game, middle);
    game->next_offset = draw_offset(game, game->gap_bottom);
}

/* Ticks from the drone's edges to the gap's. */
static int32_t ticks_above(const sky_flappy *game)
{
    return (game->gap_bottom + game->rules->gap) * TICKS - game->altitude - DRONE_TICKS;
}

static int32_t ticks_below(const sky_flappy *game) { return game->altitude - game->gap_bottom * TICKS; }

static int crashed(const sky_flappy *game)
{
    if (game->altitude < 0 || game->altitude > CEILING_TICKS - DRONE_TICKS)
        return 1;
    return game->distance < 0 && (ticks_above(game) < 0 || ticks_below(game) < 0);
}

int sky_flappy_step(sky_flappy *game, int thrust)
{
    if (!game->alive)
        return 0;
    game->speed += (thrust ? SKY_FLAPPY_THRUST : 0) - SKY_FLAPPY_GRAVITY;
    if (game->speed > SKY_FLAPPY_FASTEST_RISE)
        game->speed = SKY_FLAPPY_FASTEST_RISE;
    if (game->speed < -SKY_FLAPPY_FASTEST_FALL)
        game->speed = -SKY_FLAPPY_FASTEST_FALL;
    game->altitude += game->speed;
    game->distance -= game->rules->speed;
    if (game->distance <= -PASSAGE_TICKS) {
        game->distance += game->rules->spacing * TICKS;
        game->gap_bottom += game->next_offset;
        game->next_offset = draw_offset(game, game->gap_bottom);
        game->n_gaps++;
    }
    if (crashed(game))
        return game->alive = 0;
    game->n_steps++;
    return 1;
}

/* ---- what is seen ---- */

static int32_t units(int32_t ticks) /* rounded down, below zero too */
{
    return ticks >= 0 ? ticks / TICKS : -((TICKS - 1 - ticks) / TICKS);
}

int sky_flappy_room_above(const sky_flappy *game) { return units(ticks_above(game)); }

int sky_flappy_room_below(const sky_flappy *game) { return units(ticks_below(game)); }

static char *put(char *end, const char *name, int32_t value)
{
    char digits[12];
    int n = 0;
    uint32_t rest = value < 0 ? 0u - (uint32_t)value : (uint32_t)value;
    while (*name)
        *end++ = *name++;
    if (value < 0)
        *end++ = '-';
    do
        digits[n++] = (char)('0' + rest % 10);
    while (rest /= 10);
    while (n)
        *end++ = digits[--n];
    return end;
}

int sky_flappy_text(const sky_flappy *game, char text[SKY_FLAPPY_TEXT_BYTES])
{
    char *end = put(text, "vy ", game->speed);
    end = put(end, " dx ", units(game->distance));
    end = put(end, " up ", sky_flappy_room_above(game));
    end = put(end, " dn ", sky_flappy_room_below(game));
    end = put(end, " nxt ", game->next_offset);
    end = put(end, " alt ", units(game->altitude));
    *end = 0;
    return (int)(end - text);
}

int sky_flappy_will_crash(const sky_flappy *game, int steps)
{
    sky_flappy ahead = *game;
    while (steps-- > 0 && sky_flappy_step(&ahead, 0))
        ;
    return !ahead.alive;
}

int sky_flappy_margin(const sky_flappy *game)
{
    const int above = sky_flappy_room_above(game), below = sky_flappy_room_below(game);
    const int room = above < below ? above : below;
    return room < 1 ? 0 : room < SKY_FLAPPY_COMFORT ? 1 : 2;
}

/* ---- the pilot ---- */

/* A flight that is tried: aim at the middle of the next gap, `offset` ticks off; from `leave_at` ticks of distance on, between
 * the edges of its wall, aim at the middle of the gap after it. Offsets and places are tried in steps of these sizes. */
typedef struct {
    int32_t offset, leave_at;
} plan;

enum { FARTHEST_OFFSET = 6 * TICKS, OFFSET_STEP = 2 * TICKS };
enum { FIRST_LEAVE = -3 * TICKS, LAST_LEAVE = -11 * TICKS, LEAVE_STEP = 4 * TICKS };

/* The input in question is held for this many steps: one step alone changes too little to tell the two apart. */
enum { HOLD = 4 };

/* What a step costs: the square of the room that is missing to a comfortable one, and a little for being off the middle. */
static int32_t step_cost(const sky_flappy *game)
{
    int32_t above = ticks_above(game), below = ticks_below(game);
    const int32_t off_middle = above > below ? above - below : below - above;
    if (game->distance >= 0) {
        above = CEILING_TICKS - DRONE_TICKS - game->altitude;
        below = game->altitude;
    }
    const int32_t missing = SKY_FLAPPY_COMFORT * TICKS - (above < below ? above : below);
    return (missing > 0 ? missing * missing : 0) / 4 + off_middle / 4;
}

/* Where the drone would come to rest: gravity stops a climb, thrust a fall. */
static int32_t resting_altitude(const sky_flappy *game)
{
    const int32_t v = game->speed;
    return game->altitude + (v > 0 ? v * v / (2 * SKY_FLAPPY_GRAVITY)
                                   : -v * v / (2 * (SKY_FLAPPY_THRUST - SKY_FLAPPY_GRAVITY)));
}

static int32_t aim(const sky_flappy *game, const plan *plan)
{
    const int32_t middle = game->gap_bottom * TICKS + (game->rules->gap * TICKS - DRONE_TICKS) / 2;
    if (game->n_gaps)
        return middle;
    return middle + (game->distance < plan->leave_at ? game->next_offset * TICKS : plan->offset);
}

static sky_flappy_prospect follow(const sky_flappy *game, const plan *plan, int thrust)
{
    sky_flappy ahead = *game;
    sky_flappy_prospect found = {0, 0};
    ahead.n_gaps = 0;
    while (found.n_steps < SKY_FLAPPY_HORIZON) {
        if (!sky_flappy_step(&ahead, found.n_steps < HOLD ? thrust : resting_altitude(&ahead) < aim(&ahead, plan))
            || ahead.n_gaps == 2) /* the gap ahead is now one that the text did not show */
            break;
        found.cost += step_cost(&ahead);
        found.n_steps++;
    }
    return found;
}

static int is_better(const sky_flappy_prospect *a, const sky_flappy_prospect *b)
{
    return a->n_steps != b->n_steps ? a->n_steps > b->n_steps : a->cost < b->cost;
}

void sky_flappy_look_ahead(const sky_flappy *game, sky_flappy_prospect prospects[2])
{
    for (int input = 0; input < 2; input++) {
        prospects[input] = (sky_flappy_prospect){-1, 0};
        for (int32_t offset = -FARTHEST_OFFSET; offset <= FARTHEST_OFFSET; offset += OFFSET_STEP)
            for (int32_t leave_at = FIRST_LEAVE; leave_at >= LAST_LEAVE; leave_at -= LEAVE_STEP) {
                const plan plan = {offset, leave_at};
                const sky_flappy_prospect found = follow(game, &plan, input);
                if (is_better(&found, &prospects[input]))
                    prospects[input] = found;
            }
    }
}

int sky_flappy_pilot(const sky_flappy *game)
{
    sky_flappy_prospect prospects[2];
    sky_flappy_look_ahead(game, prospects);
    return is_better(&prospects[1], &prospects[0]);
}
