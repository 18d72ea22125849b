/**
 * Temperatures by question type and number of options: their names in files, and the rules by which one applies; as in
 * Python's temperatures.py. The rules are the Laya runtime's (laya 0.4.15), or llama.cpp's where the clamp is off.
 */

import { QUESTION_TYPES, type QuestionType } from "../schema.js";

/** Bounds of the Laya runtime's clamp. */
const CLAMP = [0.5, 5.0] as const;
/** Numbers of options that share a temperature. */
export const BUCKETS: readonly string[] = ["2", "3_5", "6_10", "11"];

/** Every name that a temperature can have: "choice", "choice.2", and so on. */
export const TEMPERATURE_NAMES: ReadonlySet<string> = new Set(
  QUESTION_TYPES.flatMap((kind) => [kind, ...BUCKETS.map((name) => `${kind}.${name}`)]),
);

/** The option-count bucket that temperatures are fitted for; one option counts as two. */
export function bucket(nOptions: number): string {
  if (nOptions <= 5) return nOptions <= 2 ? "2" : "3_5";
  return nOptions <= 10 ? "6_10" : "11";
}

/** The temperature of a question by its type and number of options. `raw` is keyed "choice", "choice.2", and so on. */
export class Temperatures {
  constructor(
    private readonly raw: ReadonlyMap<string, number>,
    private readonly clamp: boolean,
  ) {}

  of(kind: QuestionType, nOptions: number): number {
    const value = this.raw.get(`${kind}.${bucket(nOptions)}`) ?? this.raw.get(kind) ?? 1;
    return this.clamp ? Math.min(CLAMP[1], Math.max(CLAMP[0], value)) : value;
  }
}
