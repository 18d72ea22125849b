/**
 * Flappy Drone: the game, and what a decision model is asked about it in every frame; as in Python's skyinfer.games.flappy.
 * The rules and the pilot are in C (csrc/games/flappy.h, which has the units): a seed and the inputs give the same flight
 * everywhere.
 */

import { textIn, type Core } from "../runtime/core.js";
import type { Questions } from "../schema.js";

export const FRAMES_PER_SECOND = 60;
export const DIFFICULTIES = ["easy", "normal", "hard"] as const;
export type Difficulty = (typeof DIFFICULTIES)[number];
/** Units of the world, which is HEIGHT high. */
export const HEIGHT = 64;
export const DRONE_HEIGHT = 2;
export const DRONE_LENGTH = 3;
export const WALL_LENGTH = 8;
/** Steps of half a second. */
export const HALF_SECOND = 30;
/** The levels of the question `margin`, by what `Flappy.margin()` gives. */
export const MARGINS = ["none", "tight", "comfortable"] as const;

export const QUESTIONS = {
  action: {
    type: "choice",
    instructions: "Which input keeps the drone flying through the next gap?",
    criteria: { thrust: "fire the rotors for an upward impulse", glide: "let gravity pull the drone down" },
  },
  danger: { type: "noul", instructions: "Will the drone crash within the next half second if it keeps gliding?" },
  margin: { type: "score", instructions: "How much room is left above and below the drone?", criteria: [...MARGINS] },
} as const satisfies Questions;

const TICKS = 16;
const TEXT_BYTES = 80;
/** Numbers of sky_web_game_numbers, in its order. */
const NUMBERS = ["alive", "frame", "score", "altitude", "distance", "gapBottom", "nextOffset", "gap", "spacing"] as const;

/** A game of Flappy Drone. */
export class Flappy {
  private address: number;

  /** `seed`: a whole number from 0 on, below 2^64. @throws RangeError no such difficulty, or a seed out of range. */
  constructor(
    private readonly core: Core,
    seed: number | bigint = 0,
    readonly difficulty: Difficulty = "hard",
  ) {
    const index = DIFFICULTIES.indexOf(difficulty);
    if (index < 0) throw new RangeError(`difficulty: expected one of ${DIFFICULTIES.join(", ")}, got ${String(difficulty)}`);
    if (typeof seed !== "bigint" && !Number.isSafeInteger(seed)) throw new RangeError(`seed: expected a whole number, got ${String(seed)}`);
    const bits = BigInt(seed);
    if (bits < 0n || bits >= 1n << 64n) throw new RangeError(`seed: expected at least 0 and below 2**64, got ${bits}`);
    this.address = core.alloc(core.exports.sky_web_game_bytes());
    core.exports.sky_web_game_begin(this.address, index, Number(bits & 0xffffffffn) | 0, Number(bits >> 32n) | 0);
  }

  /** One sixtieth of a second, with a thrust or gliding. Gives `alive`; a game that is over stays as it is. */
  step(thrust: boolean): boolean {
    return this.core.exports.sky_web_game_step(this.game, Number(thrust)) !== 0;
  }

  /** What a model reads: "vy 0 dx 36 up 9 dn 7 nxt 10 alt 32". */
  stateText(): string {
    const text = new Uint8Array(TEXT_BYTES);
    this.core.with((place) => this.core.exports.sky_web_game_text(this.game, place), text);
    return textIn(text);
  }

  /** Whether the drone crashes within the next `frames` steps if it glides in all of them. */
  willCrash(frames = HALF_SECOND): boolean {
    return this.core.exports.sky_web_game_will_crash(this.game, frames) !== 0;
  }

  /** Room above and below: 0 none, 1 tight, 2 comfortable, computed from up and dn in the text. */
  margin(): number {
    return this.core.exports.sky_web_game_margin(this.game);
  }

  /** The look-ahead pilot's input: true to thrust. */
  teacher(): boolean {
    return this.core.exports.sky_web_game_pilot(this.game) !== 0;
  }

  private number(name: (typeof NUMBERS)[number]): number {
    const numbers = new Int32Array(NUMBERS.length);
    this.core.with((place) => this.core.exports.sky_web_game_numbers(this.game, place), numbers);
    return numbers[NUMBERS.indexOf(name)]!;
  }

  get alive(): boolean {
    return this.number("alive") !== 0;
  }

  /** Steps survived. */
  get frame(): number {
    return this.number("frame");
  }

  /** Gaps flown through. */
  get score(): number {
    return this.number("score");
  }

  /** Units from the floor to the drone's underside. */
  get altitude(): number {
    return this.number("altitude") / TICKS;
  }

  /** Units from the drone's nose to the next wall's face; below zero while the drone is between its edges. */
  get distance(): number {
    return this.number("distance") / TICKS;
  }

  /** Units from a wall's face to the next one's. */
  get spacing(): number {
    return this.number("spacing");
  }

  /** Lower and upper edge, in units above the floor, of the next gap and of the one after it. */
  get gaps(): [[number, number], [number, number]] {
    const bottom = this.number("gapBottom");
    const after = bottom + this.number("nextOffset");
    const gap = this.number("gap");
    return [
      [bottom, bottom + gap],
      [after, after + gap],
    ];
  }

  /** Gives the game's memory back; it cannot be used after. */
  free(): void {
    this.core.free(this.address);
    this.address = 0;
  }

  private get game(): number {
    if (!this.address) throw new Error("the game was freed");
    return this.address;
  }
}
