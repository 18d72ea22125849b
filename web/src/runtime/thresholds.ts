/** Abstention: which answers fall below the least probability that a caller asks for; as in Python's thresholds.py. */

import { RequestError, type PathPart } from "../errors.js";
import { BUCKETS, bucket } from "../files/temperatures.js";
import { JsonNumber, entriesOf } from "../json.js";
import { QUESTION_TYPES, short, type QuestionType } from "../schema.js";

/** The least probability of an answer that is no abstention. */
export type Thresholds = (type: QuestionType, nOptions: number) => number;

const NAMES: readonly unknown[] = [
  ...QUESTION_TYPES.flatMap((type) => BUCKETS.map((name) => nameOf(type, name))), "default",
];

/**
 * What a caller gives: one threshold in [0, 1] for all, or some by name: "choice:2", "choice:3-5", "choice:6-10", "choice:11+",
 * likewise score and noul, and "default" for all others, which is 0 where it is not given. Nothing is undefined, and null.
 *
 * @throws RequestError at `field`, it is neither.
 */
export function thresholdsOf(value: unknown, field: string): Thresholds | undefined {
  if (value === null || value === undefined) return undefined;
  const entries = entriesOf(value);
  if (!entries) {
    const least = threshold(value, [field]);
    return () => least;
  }
  if (entries.length === 0)
    throw new RequestError([field], "must not be empty; give a number, or thresholds by name, as {'choice:3-5': 0.8}");
  const given = new Map(
    entries.map(([name, one]) => {
      if (!NAMES.includes(name)) throw new RequestError([field], `has the key ${short(name)}; there are ${NAMES.join(", ")}`);
      return [name, threshold(one, [field, name as string])];
    }),
  );
  return (type, nOptions) => given.get(nameOf(type, bucket(nOptions))) ?? given.get("default") ?? 0;
}

function nameOf(type: QuestionType, name: string): string {
  return `${type}:${name === "11" ? "11+" : name.replace("_", "-")}`;
}

function threshold(value: unknown, loc: PathPart[]): number {
  const number = value instanceof JsonNumber ? value.value : value;
  if (typeof number !== "number" || !(number >= 0 && number <= 1))
    throw new RequestError(loc, `must be a number from 0 to 1, not ${short(value)}`);
  return number;
}
