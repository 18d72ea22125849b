/** Questions made ready once, for many states: only the state is tokenized in a call; as in Python's compiled.py. */

import { RequestError } from "./errors.js";
import { entriesOf, kindOf } from "./json.js";
import { faultyWeights, inOptionOrder, response, toPlain, type Answered } from "./runtime/answers.js";
import { offsetsOf, type Engine } from "./runtime/engine.js";
import { thresholdsOf, type Thresholds } from "./runtime/thresholds.js";
import type { Json, MinConfidence, ParsedQuestion, Response } from "./schema.js";
import { stateTokens, type Prefix, type Sequence, type StateTokens } from "./text/sequence.js";

export interface DecideOptions {
  /** Overrides what the model was loaded with, for this call. */
  temperatureClamp?: boolean;
  /** Marks answers that are less probable; a number, or thresholds by type and number of options (docs/requests.md). */
  minConfidence?: MinConfidence | null;
  /** Adds `micros`, the wall time of the call in microseconds. */
  timing?: boolean;
}

const FIELD = "minConfidence";

/** Typed questions, tokenized for one model. Made by `Model.compile`. */
export class CompiledQuestions {
  /** Question ids, in the order received. */
  readonly ids: readonly string[];
  /** Question i's options are `probabilities.slice(offsets[i], offsets[i + 1])`. */
  readonly offsets: Int32Array;
  /** What `step` wrote last, in the order of the options; a noul has two, (false, true). */
  readonly probabilities: Float32Array;
  private readonly prefixes: readonly Prefix[];
  /** Of the prepared questions in the core's memory. */
  private address: number;

  /** `questions` as `parseQuestions` gives them. */
  constructor(
    private readonly engine: Engine,
    private readonly questions: readonly ParsedQuestion[],
  ) {
    this.prefixes = questions.map((question) => engine.builder.prefix(question));
    this.ids = questions.map((question) => question.id);
    this.offsets = Int32Array.from(offsetsOf(questions.map(({ options }) => options)));
    this.probabilities = new Float32Array(this.offsets.at(-1)!);
    this.address = engine.prepare(this.prefixes, this);
  }

  /** Gives the memory back at once, which happens some time after the last use otherwise. They cannot be used after. */
  free(): void {
    if (this.address) this.engine.release(this.address, this);
    this.address = 0;
  }

  /**
   * Answers about one state, exactly as `Model.decide` gives them.
   *
   * @throws RequestError the state is null, or not text and not JSON.
   * @throws FormatError a score is NaN or infinite, so the model's weights are faulty.
   */
  decide(state: Json, options: DecideOptions = {}): Response {
    const start = performance.now();
    const result = toPlain(this.answer(state, options)) as Response;
    if (options.timing) result.micros = 1000 * (performance.now() - start);
    return result;
  }

  /** The same as a JSON object: Maps in the order received. */
  answer(state: Json, options: DecideOptions = {}, thresholds = thresholdsOf(options.minConfidence, FIELD)): Map<string, unknown> {
    const tokens = this.read(state);
    return this.respond(tokens, this.run([tokens])[0]!, options, thresholds);
  }

  /**
   * Answers about each state, in order: bit by bit those of one call for each, in fewer forward passes.
   *
   * @throws RequestError as `decide`; its path then begins with "states" and the number of the faulty one. Or they are no
   *   list, but a text or an object.
   */
  many(states: Iterable<Json>, options: DecideOptions = {}): Response[] {
    const thresholds = thresholdsOf(options.minConfidence, FIELD);
    const read = listOf(states).map((state, i) => {
      try {
        return this.read(state);
      } catch (error) {
        if (error instanceof RequestError) throw new RequestError(["states", i, ...error.loc.slice(1)], error.reason);
        throw error;
      }
    });
    return this.run(read).map((row, i) => toPlain(this.respond(read[i]!, row, options, thresholds)) as Response);
  }

  /** Raw scores by question id, in the order of the options, before temperature and softmax. */
  logits(state: Json): Record<string, Float32Array> {
    const row = this.run([this.read(state)])[0]!;
    if (!row.every(Number.isFinite)) throw faultyWeights();
    return Object.fromEntries(
      this.questions.map((question, i) => [question.id, inOptionOrder(question, row.slice(this.offsets[i], this.offsets[i + 1]))]),
    );
  }

  /** Writes every option's probability into `probabilities` and gives that array. Builds no answers. */
  step(state: Json): Float32Array {
    return this.steps(this.engine.builder.state(state));
  }

  /**
   * `step` for a state that is tokenized already: token ids of its text, without special tokens. `keepTail`: where it does
   * not fit, keep its end (as for a list of turns) and not its beginning.
   */
  runTokens(ids: readonly number[], keepTail = false): Float32Array {
    for (const id of ids) if ((id | 0) !== id) throw new RangeError(`${String(id)} is no token id`);
    return this.steps(stateTokens(ids, keepTail));
  }

  private steps(tokens: StateTokens): Float32Array {
    this.probabilities.set(this.answered(this.run([tokens])[0]!).p);
    return this.probabilities;
  }

  /** What the model reads for each question. */
  sequences(state: Json): Sequence[] {
    return this.laidOut(this.read(state));
  }

  /** A state that nothing is asked about is not looked at, but for null, which is refused. */
  private read(state: Json): StateTokens {
    if (this.prefixes.length === 0 && state !== null && state !== undefined) return stateTokens([], false);
    return this.engine.builder.state(state);
  }

  private run(states: readonly StateTokens[]): Float32Array[] {
    return this.engine.run(this.usable, this.probabilities.length, states);
  }

  private laidOut(tokens: StateTokens): Sequence[] {
    return this.prefixes.map((prefix, i) => this.engine.sequence(this.usable, i, prefix, tokens));
  }

  private answered(row: Float32Array, clamp?: boolean): Answered {
    const temperatures = this.engine.temperaturesOf(clamp);
    const own = Float64Array.from(this.questions, ({ type, options }) => temperatures.of(type, options.length));
    return this.engine.answers(this.usable, row, own);
  }

  private respond(tokens: StateTokens, row: Float32Array, options: DecideOptions, thresholds?: Thresholds): Map<string, unknown> {
    const answered = this.answered(row, options.temperatureClamp);
    return response(this.engine.config.name, this.questions, this.laidOut(tokens), this.offsets, answered, thresholds);
  }

  private get usable(): number {
    if (!this.address) throw new Error("the questions were freed");
    return this.address;
  }
}

/** States as a list. @throws RequestError they are a text, an object, or nothing to go through. */
export function listOf(states: Iterable<Json>): Json[] {
  if (typeof states === "string" || entriesOf(states) || typeof states?.[Symbol.iterator] !== "function")
    throw new RequestError(["states"], `must be a list of states, not ${kindOf(states)}`);
  return Array.from(states);
}
