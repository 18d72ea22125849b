/** Questions made ready once, for many states: only the state is tokenized in a call; as in Python's compiled.py. */

import { RequestError } from "./errors.js";
import { entriesOf, kindOf } from "./json.js";
import { faultyWeights, inOptionOrder, probabilities, response, toPlain } from "./runtime/answers.js";
import type { Engine, Work } from "./runtime/engine.js";
import { renderState, type Json, type ParsedQuestion, type Response } from "./schema.js";
import type { Prefix, Sequence, StateTokens } from "./text/sequence.js";

export interface DecideOptions {
  /** Overrides what the model was loaded with, for this call. */
  temperatureClamp?: boolean;
  /** Adds `micros`, the wall time of the call in microseconds. */
  timing?: boolean;
}

/** Typed questions, tokenized for one model. Made by `Model.compile`. */
export class CompiledQuestions {
  /** Question ids, in the order received. */
  readonly ids: readonly string[];
  /** Question i's options are `probabilities.slice(offsets[i], offsets[i + 1])`. */
  readonly offsets: Int32Array;
  /** What `step` wrote last, in the order of the options; a noul has two, (false, true). */
  readonly probabilities: Float32Array;
  private readonly prefixes: readonly Prefix[];

  /** `questions` as `parseQuestions` gives them. */
  constructor(
    private readonly engine: Engine,
    private readonly questions: readonly ParsedQuestion[],
  ) {
    this.prefixes = questions.map((question) => engine.builder.prefix(question));
    this.ids = questions.map((question) => question.id);
    this.offsets = new Int32Array(questions.length + 1);
    questions.forEach((question, i) => (this.offsets[i + 1] = this.offsets[i]! + question.options.length));
    this.probabilities = new Float32Array(this.offsets.at(-1)!);
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
  answer(state: Json, options: DecideOptions = {}): Map<string, unknown> {
    const sequences = this.sequences(state);
    const rows = this.engine.run(this.work(sequences));
    return this.respond(sequences, rows, options);
  }

  /**
   * Answers about each state, in order: bit by bit those of one call for each, in fewer forward passes.
   *
   * @throws RequestError as `decide`; its path then begins with "states" and the number of the faulty one. Or they are no
   *   list, but a text or an object.
   */
  many(states: Iterable<Json>, options: DecideOptions = {}): Response[] {
    if (typeof states === "string" || entriesOf(states) || typeof states?.[Symbol.iterator] !== "function")
      throw new RequestError(["states"], `must be a list of states, not ${kindOf(states)}`);
    const read = Array.from(states, (state, i) => {
      try {
        return this.sequences(state);
      } catch (error) {
        if (error instanceof RequestError) throw new RequestError(["states", i, ...error.loc.slice(1)], error.reason);
        throw error;
      }
    });
    const rows = this.engine.run(read.flatMap((sequences) => this.work(sequences)));
    const n = this.prefixes.length;
    return read.map(
      (sequences, i) => toPlain(this.respond(sequences, rows.slice(i * n, (i + 1) * n), options)) as Response,
    );
  }

  /** Raw scores by question id, in the order of the options, before temperature and softmax. */
  logits(state: Json): Record<string, Float32Array> {
    const rows = this.engine.run(this.work(this.sequences(state)));
    return Object.fromEntries(
      rows.map((row, i) => {
        if (!row.every(Number.isFinite)) throw faultyWeights();
        return [this.ids[i]!, Float32Array.from(inOptionOrder(this.questions[i]!, [...row]))];
      }),
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
    return this.steps({ ids: [...ids], keepTail });
  }

  private steps(tokens: StateTokens): Float32Array {
    const rows = this.engine.run(this.work(this.assembled(tokens)));
    rows.forEach((row, i) => {
      const question = this.questions[i]!;
      const p = probabilities(row, this.engine.temperatures.of(question.type, row.length));
      this.probabilities.set(inOptionOrder(question, p), this.offsets[i]);
    });
    return this.probabilities;
  }

  /** What the model reads for each question. */
  sequences(state: Json): Sequence[] {
    if (this.prefixes.length > 0) return this.assembled(this.engine.builder.state(state));
    if (state === null || state === undefined) renderState(state); // refused whatever is asked
    return [];
  }

  private assembled(tokens: StateTokens): Sequence[] {
    return this.prefixes.map((prefix) => this.engine.builder.assemble(prefix, tokens));
  }

  private work(sequences: readonly Sequence[]): Work[] {
    return sequences.map(({ ids, markers }, i) => ({ ids, markers, type: this.questions[i]!.type }));
  }

  private respond(sequences: Sequence[], rows: Float32Array[], options: DecideOptions): Map<string, unknown> {
    const nTokens = sequences.reduce((sum, { ids }) => sum + ids.length, 0);
    const temperatures = this.engine.temperaturesOf(options.temperatureClamp);
    return response(this.engine.config.name, this.questions, sequences, rows, temperatures, nTokens);
  }
}
