/* Flappy Drone by itself, without Python: the rules against a recorded checksum, and what the header promises.
 *
 * The checksum was not recorded from this code: tests/test_flappy.py computes it from the rules, written again in Python.
 * Prints one line a check; exits 1 at the first fault.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "games/flappy.h"

/* of the texts that tests/test_flappy.py, too, hashes: 64-bit FNV-1a */
#define TRACE_HASH UINT64_C(0x6500811941e55aa8)

static uint32_t noise_state = 1;

static uint32_t noise(uint32_t n) /* in [0, n) */
{
    noise_state = noise_state * 1664525u + 1013904223u;
    return (noise_state >> 16) % n;
}

static void expect(int holds, const char *what, double figure)
{
    if (holds)
        return;
    printf("FAILED  games     %s (%g)\n", what, figure);
    exit(1);
}

static void check_trace(void)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    char text[SKY_FLAPPY_TEXT_BYTES];
    for (int level = 0; sky_flappy_rules_at(level); level++)
        for (uint64_t seed = 0; seed < 8; seed++) {
            sky_flappy game;
            uint32_t inputs = (uint32_t)seed + 1;
            sky_flappy_begin(&game, sky_flappy_rules_at(level), seed << 61 | seed);
            do {
                const int length = sky_flappy_text(&game, text);
                expect(length == (int)strlen(text) && length < SKY_FLAPPY_TEXT_BYTES, "a text of its own length", length);
                for (int i = 0; i <= length; i++)
                    hash = (hash ^ (uint8_t)text[i]) * UINT64_C(0x100000001b3);
                /* mostly towards the middle, else whatever comes */
                inputs = inputs * 1664525u + 1013904223u;
                sky_flappy_step(&game, inputs >> 29 ? 2 * sky_flappy_room_below(&game) + game.speed < game.rules->gap
                                                    : inputs >> 28 & 1);
            } while (game.alive && game.n_steps < 3000);
        }
    expect(hash == TRACE_HASH, "the recorded flights", 0);
    printf("ok      games     trace\n");
}

static void check_copies(void)
{
    char text[2][SKY_FLAPPY_TEXT_BYTES];
    for (int round = 0; round < 200; round++) {
        sky_flappy game, twin;
        sky_flappy_begin(&game, sky_flappy_rules_named("normal"), round);
        for (int i = 0; i < 40; i++)
            sky_flappy_step(&game, noise(3) == 0);
        twin = game;
        const sky_flappy before = game;
        for (int i = 0; i < 20; i++)
            sky_flappy_step(&twin, noise(2));
        expect(!memcmp(&game, &before, sizeof game), "a copy that went its own way", round);
        twin = game;
        for (int i = 0; i < 100; i++) {
            const int thrust = noise(3) == 0, alive = sky_flappy_step(&game, thrust);
            expect(sky_flappy_step(&twin, thrust) == alive && alive == game.alive, "the same steps alive", i);
            sky_flappy_text(&game, text[0]);
            sky_flappy_text(&twin, text[1]);
            expect(!strcmp(text[0], text[1]), "the same steps", i);
        }
    }
    printf("ok      games     copies\n");
}

/* A game that is over stays as it is; will_crash is what comes of gliding; margin is what the text says. */
static void check_truth(void)
{
    for (int round = 0; round < 500; round++) {
        sky_flappy game;
        sky_flappy_begin(&game, sky_flappy_rules_at(round % 3), 1000 + round);
        for (int i = noise(150); i > 0 && game.alive; i--)
            sky_flappy_step(&game, noise(3) == 0);
        for (int steps = 0; steps < 60; steps += 7) {
            sky_flappy ahead = game;
            int alive = game.alive;
            for (int i = 0; i < steps; i++)
                alive = sky_flappy_step(&ahead, 0);
            expect(sky_flappy_will_crash(&game, steps) == !alive, "a crash foretold", steps);
        }
        char text[SKY_FLAPPY_TEXT_BYTES];
        int vy, dx, up, dn, nxt, alt;
        sky_flappy_text(&game, text);
        expect(sscanf(text, "vy %d dx %d up %d dn %d nxt %d alt %d", &vy, &dx, &up, &dn, &nxt, &alt) == 6, "six numbers", 0);
        const int room = up < dn ? up : dn;
        expect(sky_flappy_margin(&game) == (room < 1 ? 0 : room < 4 ? 1 : 2), "margin", room);
        if (!game.alive) {
            const sky_flappy over = game;
            expect(!sky_flappy_step(&game, 1) && !memcmp(&game, &over, sizeof game), "a game that is over", 0);
        }
    }
    printf("ok      games     truth\n");
}

/* The pilot survives, and sees no more than the text: neither random numbers to come nor counts. */
static void check_pilot(void)
{
    for (int level = 0; sky_flappy_rules_at(level); level++)
        for (uint64_t seed = 0; seed < 4; seed++) {
            sky_flappy game;
            sky_flappy_begin(&game, sky_flappy_rules_at(level), seed);
            while (game.alive && game.n_steps < 1500) {
                sky_flappy_prospect seen[2], blind[2];
                sky_flappy other = game;
                other.random ^= UINT64_C(0x5555555555555555), other.n_gaps += 7, other.n_steps += 1000;
                sky_flappy_look_ahead(&game, seen);
                sky_flappy_look_ahead(&other, blind);
                expect(!memcmp(seen, blind, sizeof seen), "a pilot that sees what the text shows", (double)game.n_steps);
                sky_flappy_step(&game, sky_flappy_pilot(&game));
            }
            expect(game.alive, "a pilot that survives", (double)game.n_steps);
        }
    printf("ok      games     pilot\n");
}

/* The longest text: every number as long as its type allows. */
static void check_extremes(void)
{
    char text[SKY_FLAPPY_TEXT_BYTES];
    sky_flappy game;
    sky_flappy_begin(&game, sky_flappy_rules_at(0), UINT64_MAX);
    expect(sky_flappy_text(&game, text) == (int)strlen(text) && !strncmp(text, "vy 0 dx 36 up ", 14), "the first text", 0);
    game.speed = INT32_MIN, game.distance = INT32_MIN + 16, game.next_offset = INT32_MIN;
    sky_flappy_text(&game, text);
    expect(!strncmp(text, "vy -2147483648 dx -134217727 up ", 32), "the longest text", 0);
    expect(strstr(text, " nxt -2147483648 alt 32") != NULL, "the longest text", 1);
    expect(!sky_flappy_rules_at(-1) && !sky_flappy_rules_at(3) && !sky_flappy_rules_named(""), "rules that are none", 0);
    expect(sky_flappy_rules_named("hard") == sky_flappy_rules_at(2), "rules by name", 0);
    printf("ok      games     extremes\n");
}

int main(void)
{
    check_trace();
    check_copies();
    check_truth();
    check_pilot();
    check_extremes();
    return 0;
}
