/**
 * From raw scores to typed answers: temperature, softmax, confidence, envelope; as in Python's answers.py, all in float64 and
 * unrounded. Answers are made as JSON objects (Maps), which keep any order of names; `toPlain` makes JavaScript's of them.
 */

import { FormatError } from "../errors.js";
import type { Temperatures } from "../files/temperatures.js";
import type { Label, ParsedQuestion } from "../schema.js";
import type { Sequence } from "../text/sequence.js";
import { JsonNumber, floatText, numberText } from "../json.js";

export function faultyWeights(): FormatError {
  return new FormatError("the model's scores are not finite: its weights are faulty");
}

/** softmax(logits / temperature) in float64. @throws FormatError a score is NaN or infinite. */
export function probabilities(logits: ArrayLike<number>, temperature: number): number[] {
  let top = -Infinity;
  for (let i = 0; i < logits.length; i++) {
    if (!Number.isFinite(logits[i])) throw faultyWeights();
    top = Math.max(top, logits[i]!);
  }
  const exps = Array.from(logits, (z) => Math.exp((z - top) / temperature));
  const total = exps.reduce((sum, e) => sum + e, 0);
  return exps.map((e) => e / total);
}

/** How far the best is above chance: max(0, (p_max - 1/n) / (1 - 1/n)); 1 for one option. */
export function choiceConfidence(p: readonly number[]): number {
  const n = p.length;
  return n > 1 ? Math.max(0, (Math.max(...p) - 1 / n) / (1 - 1 / n)) : 1;
}

/** max(0, 1 - sum_i p_i |i - mode| / D), D = (1/n) sum_i |i - (n-1)/2|; 1 for one level. */
export function scoreConfidence(p: readonly number[]): number {
  const n = p.length;
  if (n === 1) return 1;
  const mode = p.indexOf(Math.max(...p));
  const spread = p.reduce((sum, value, i) => sum + value * Math.abs(i - mode), 0);
  const uniform = p.reduce((sum, _, i) => sum + Math.abs(i - (n - 1) / 2), 0) / n;
  return Math.max(0, 1 - spread / uniform);
}

/** Values by slot, put back into the order in which the caller gave the options. */
export function inOptionOrder<T>(question: ParsedQuestion, values: readonly T[]): T[] {
  if (!question.optionOrder) return [...values];
  const out = new Array<T>(values.length);
  question.optionOrder.forEach((option, slot) => (out[option] = values[slot]!));
  return out;
}

/** A number that is a float in Python, so that it is written as one: 1.0 and not 1. */
function float(x: number): JsonNumber {
  return new JsonNumber(floatText(x));
}

function whole(n: number): JsonNumber {
  return new JsonNumber(String(n));
}

/** A label as a name in JSON. */
export function nameOf(label: Label): string {
  return typeof label === "number" ? numberText(label) : String(label);
}

/**
 * The typed answer to one question, from the probabilities of its options in slot order. `sequence` adds what had to be cut;
 * null leaves that out.
 */
export function answer(question: ParsedQuestion, sequence: Sequence | null, slots: readonly number[]): Map<string, unknown> {
  const { options, type } = question;
  const p = inOptionOrder(question, slots);
  const out = new Map<string, unknown>([["type", type]]);
  if (type === "noul") out.set("noul", float(p[1]!));
  else {
    if (type === "choice") out.set("choice", options[p.indexOf(Math.max(...p))]!.key);
    else {
      out.set("score", float(p.reduce((sum, value, i) => sum + i * value, 0)));
      out.set("legend", new Map(options.map((option) => [option.key, option.description])));
    }
    out.set("probabilities", new Map(options.map((option, i) => [nameOf(option.key), float(p[i]!)])));
    out.set("confidence", float(type === "choice" ? choiceConfidence(p) : scoreConfidence(p)));
  }
  if (sequence?.truncated)
    out.set("x_truncated", counts({ state_tokens: sequence.stateTokens, state_tokens_used: sequence.stateTokensUsed }));
  if (sequence && sequence.optionsDistinct < sequence.options)
    out.set("x_options", counts({ options: sequence.options, distinct: sequence.optionsDistinct }));
  if (sequence && sequence.grownPast !== null)
    out.set("x_grown", counts({ tokens: sequence.ids.length, max_tokens: sequence.grownPast }));
  if (question.ignored.length > 0) out.set("x_ignored", question.ignored);
  return out;
}

function counts(of: Record<string, number>): Map<string, JsonNumber> {
  return new Map(Object.entries(of).map(([name, n]) => [name, whole(n)]));
}

/** The envelope: an answer by question id, in the order received, and the tokens read. `rows`: scores in slot order. */
export function response(
  model: string,
  questions: readonly ParsedQuestion[],
  sequences: readonly (Sequence | null)[],
  rows: readonly ArrayLike<number>[],
  temperatures: Temperatures,
  inputTokens: number,
): Map<string, unknown> {
  const answers = questions.map((question, i): [string, unknown] => {
    const p = probabilities(rows[i]!, temperatures.of(question.type, question.options.length));
    return [question.id, answer(question, sequences[i]!, p)];
  });
  return new Map<string, unknown>([
    ["model", model],
    ["answers", new Map(answers)],
    ["usage", counts({ input_tokens: inputTokens, output_tokens: 0 })],
  ]);
}

/** Maps as objects, and the numbers that answers compute as JavaScript's. A label stays what the caller gave. */
export function toPlain(value: unknown, key?: string): unknown {
  if (value instanceof Map) return Object.fromEntries([...value].map(([name, item]) => [name, toPlain(item, name as string)]));
  return value instanceof JsonNumber && key !== "choice" ? value.value : value;
}
