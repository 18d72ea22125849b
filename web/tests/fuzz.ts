/**
 * Mutated model files and requests: an error of its class each, or an answer; nothing else, and none takes long.
 *
 *     npm run fuzz -- MODEL.gguf [ROUNDS] [SEED]
 */

import { readFileSync } from "node:fs";
import { Core, FormatError, RequestError, load, parseJson, flappy, type Model } from "../src/index.js";
import { moduleBytes } from "./shipped.js";

const MOST_SECONDS = 10; // one round

/** Mulberry32: the same numbers from the same seed. */
export function randomFrom(seed: number): (n: number) => number {
  return (n) => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return Math.floor((((t ^ (t >>> 14)) >>> 0) / 2 ** 32) * n);
  };
}

/** A copy with some bytes other, gone, doubled or cut off; most changes fall into the header, where most can go wrong. */
export function mutated(bytes: Uint8Array, headerBytes: number, random: (n: number) => number): Uint8Array {
  let out = bytes.slice();
  for (let changes = 1 + random(3); changes > 0; changes--) {
    const at = random(random(8) ? Math.min(headerBytes, out.length) : out.length);
    switch (random(6)) {
      case 0:
        out = out.slice(0, at);
        break;
      case 1:
        out[at] = random(256);
        break;
      case 2:
        out[at]! ^= 1 << random(8);
        break;
      case 3:
        out.set([0, 255, 127, 128][random(4)]! ? [255, 255, 255, 255].slice(0, out.length - at) : [0].slice(0, out.length - at), at);
        break;
      case 4:
        out.copyWithin(at, random(out.length), random(out.length));
        break;
      default: {
        const gone = 1 + random(16);
        const shorter = new Uint8Array(Math.max(0, out.length - gone));
        shorter.set(out.subarray(0, Math.min(at, shorter.length)));
        if (at + gone < out.length) shorter.set(out.subarray(at + gone), at);
        out = shorter;
      }
    }
    if (out.length === 0) break;
  }
  return out;
}

export interface Tally {
  answered: number;
  refused: number;
  slowest: number;
}

async function timed(tally: Tally, what: () => Promise<void> | void, isRefusal: (error: unknown) => boolean): Promise<void> {
  const start = performance.now();
  try {
    await what();
    tally.answered++;
  } catch (error) {
    if (!isRefusal(error)) throw error;
    tally.refused++;
  }
  const seconds = (performance.now() - start) / 1000;
  tally.slowest = Math.max(tally.slowest, seconds);
  if (seconds > MOST_SECONDS) throw new Error(`a round took ${seconds} s`);
}

/** A size that a damaged file asks for is more than there is of memory: said so, too. */
const isFault = (error: unknown): boolean => error instanceof FormatError || (error instanceof RangeError && /out of memory/.test(error.message));

export async function fuzzFiles(bytes: Uint8Array, rounds: number, seed: number): Promise<Tally> {
  const random = randomFrom(seed);
  const tally = { answered: 0, refused: 0, slowest: 0 };
  const module = await WebAssembly.compile(moduleBytes("wasm128"));
  let core = await Core.open({ module });
  for (let i = 0; i < rounds; i++) {
    if (i % 200 === 199) core = await Core.open({ module }); // a memory that grew stays large
    const file = mutated(bytes, 26_144, random);
    await timed(tally, async () => {
      const model = await load(file, { core });
      try {
        model.decide("vy 0 dx 36 up 9 dn 7 nxt 10 alt 32", flappy.QUESTIONS);
      } catch (error) {
        if (!(error instanceof RequestError)) throw error; // such as a sequence too short for the options
      }
      model.free();
    }, isFault);
  }
  return tally;
}

export async function fuzzRequests(model: Model, rounds: number, seed: number): Promise<Tally> {
  const random = randomFrom(seed);
  const tally = { answered: 0, refused: 0, slowest: 0 };
  const body = JSON.stringify({ state: { a: [1, "two", null, -0.5e-7] }, questions: flappy.QUESTIONS, model: "x" });
  const parts = ['"', "\\", "{", "}", "[", "]", ",", ":", "null", "1e999", "-0", "\\ud800", "\ud800", "NaN", "[MASK]", "[SEP]", '"labels": {"true": "a", "false": "b"}', '"option_order": [1, 0]', '"type": "noul"', "[".repeat(3000), "9".repeat(5000), " word".repeat(3000), "\u0000", "\u0301", "\u{1f600}"];
  for (let i = 0; i < rounds; i++) {
    let text = body;
    for (let changes = 1 + random(4); changes > 0; changes--) {
      const at = random(text.length + 1);
      text = text.slice(0, at) + parts[random(parts.length)]! + text.slice(at + random(3) * random(12));
    }
    await timed(tally, () => void parseJson(model.decideText(text)), (error) => error instanceof RequestError);
  }
  return tally;
}

if (process.argv[1]?.endsWith("fuzz.js")) {
  const [path, rounds = "20000", seed = "0"] = process.argv.slice(2);
  const bytes = new Uint8Array(readFileSync(path!));
  console.log("files   ", await fuzzFiles(bytes, Number(rounds), Number(seed)));
  const model = await load(bytes, { module: moduleBytes("wasm128") });
  console.log("requests", await fuzzRequests(model, Number(rounds), Number(seed)));
}
