/**
 * From probabilities to typed answers and their envelope, all in float64 and unrounded; as in Python's answers.py. Softmax and
 * confidence are the core's. Answers are made as JSON objects (Maps), which keep any order of names; `toPlain` makes JavaScript's of them.
 */

import { FormatError } from "../errors.js";
import type { Label, ParsedQuestion } from "../schema.js";
import type { Sequence } from "../text/sequence.js";
import type { Thresholds } from "./thresholds.js";
import { JsonNumber, numberText } from "../json.js";

/** What the core makes of scores: probabilities in the order of the options; label, value and confidence of each question. */
export interface Answered {
  p: Float64Array;
  answers: Float64Array;
}

export function faultyWeights(): FormatError {
  return new FormatError("the model's scores are not finite: its weights are faulty");
}

/** Scores by slot, put back into the order in which the caller gave the options. */
export function inOptionOrder(question: ParsedQuestion, slots: Float32Array): Float32Array {
  const out = slots.slice();
  question.optionOrder?.forEach((option, slot) => (out[option] = slots[slot]!));
  return out;
}

/** A number that is a float in Python, so that it is written as one: 1.0 and not 1. */
function float(x: number): JsonNumber {
  return new JsonNumber(x);
}

function whole(n: number): JsonNumber {
  return new JsonNumber(String(n));
}

/** A label as a name in JSON. */
export function nameOf(label: Label): string {
  return typeof label === "number" ? numberText(label) : String(label);
}

/**
 * The typed answer to one question. `p`: the probability of each option, in their order; `found`: which one is the most probable,
 * the mean level of a score, and the confidence. `sequence` adds what had to be cut.
 */
function answer(
  question: ParsedQuestion,
  sequence: Sequence,
  p: Float64Array,
  found: Float64Array,
  thresholds: Thresholds | undefined,
): Map<string, unknown> {
  const { options, type } = question;
  const [label, value, confidence] = found as unknown as [number, number, number];
  const out = new Map<string, unknown>([["type", type]]);
  if (type === "noul") out.set("noul", float(value));
  else {
    if (type === "choice") out.set("choice", options[label]!.key);
    else {
      out.set("score", float(value));
      out.set("legend", new Map(options.map((option) => [option.key, option.description])));
    }
    out.set("probabilities", new Map(options.map((option, i) => [nameOf(option.key), float(p[i]!)])));
    out.set("confidence", float(confidence));
  }
  if (sequence.truncated)
    out.set("x_truncated", counts({ state_tokens: sequence.stateTokens, state_tokens_used: sequence.stateTokensUsed }));
  if (sequence.optionsDistinct < sequence.options)
    out.set("x_options", counts({ options: sequence.options, distinct: sequence.optionsDistinct }));
  if (sequence.grownPast !== null)
    out.set("x_grown", counts({ tokens: sequence.ids.length, max_tokens: sequence.grownPast }));
  if (question.ignored.length > 0) out.set("x_ignored", question.ignored);
  if (thresholds) {
    const least = thresholds(type, options.length);
    out.set("x_min_confidence", float(least));
    if (p.every((one) => one < least)) out.set("x_abstained", true);
  }
  return out;
}

function counts(of: Record<string, number>): Map<string, JsonNumber> {
  return new Map(Object.entries(of).map(([name, n]) => [name, whole(n)]));
}

/** The envelope: an answer by question id, in the order received, and the tokens read. `answers`: three numbers for each question. */
export function response(
  model: string,
  questions: readonly ParsedQuestion[],
  sequences: readonly Sequence[],
  offsets: Int32Array,
  { p, answers }: Answered,
  thresholds: Thresholds | undefined,
): Map<string, unknown> {
  const entries = questions.map((question, i): [string, unknown] => [
    question.id,
    answer(question, sequences[i]!, p.subarray(offsets[i], offsets[i + 1]), answers.subarray(3 * i), thresholds),
  ]);
  return new Map<string, unknown>([
    ["model", model],
    ["answers", new Map(entries)],
    ["usage", counts({ input_tokens: inputTokens(sequences), output_tokens: 0 })],
  ]);
}

/** Tokens that the model reads, now or beforehand; where options have sequences of their own, all questions share the state's. */
function inputTokens(sequences: readonly Sequence[]): number {
  let n = 0;
  sequences.forEach(({ ids, optionIds }, i) => {
    if (!optionIds || i === 0) n += ids.length;
    for (const { length } of optionIds ?? []) n += length;
  });
  return n;
}

/** Maps as objects, and the numbers that answers compute as JavaScript's. The label of a choice stays what the caller gave. */
export function toPlain(value: unknown): unknown {
  if (!(value instanceof Map)) return value instanceof JsonNumber ? value.value : value;
  const label = value.get("type") === "choice" ? "choice" : undefined; // a Map of probabilities has numbers only
  return Object.fromEntries([...value].map(([name, item]) => [name, name === label ? item : toPlain(item)]));
}
