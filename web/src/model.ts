/** The public face of a loaded model: open it, ask it; as in Python's model.py. */

import { CompiledQuestions, listOf, type DecideOptions } from "./compiled.js";
import { RequestError } from "./errors.js";
import type { Architecture, ModelConfig } from "./files/config.js";
import { openStream, type ModelInput, type Progress } from "./files/source.js";
import { JsonError, NotJsonError, entriesOf, parseJson, writeJson } from "./json.js";
import { Core, type CoreOptions, type Isa } from "./runtime/core.js";
import { Engine } from "./runtime/engine.js";
import { thresholdsOf } from "./runtime/thresholds.js";
import { parseQuestions, parseRequest, type Json, type Questions, type Response } from "./schema.js";
import type { Sequence } from "./text/sequence.js";

/** Holds the tables of small models. A much larger one would be read from memory for every token, for little. */
const TOKEN_TABLE_BYTES = 16 << 20;
/** Question sets that `decide` keeps tokenized, and characters of their JSON all together; the last one is kept in any case. */
const MOST_KEPT = 64;
const MOST_KEPT_LENGTH = 1 << 20;

/** Fields of a request's body that only skyinfer has: what `minConfidence` says, and what Python alone does. */
const THRESHOLDS = "x_min_confidence";
const LONG = "x_long";

export interface LoadOptions extends CoreOptions {
  /** Confine temperatures to [0.5, 5] as the Laya runtime does (the default); false takes the file's raw values. */
  temperatureClamp?: boolean;
  /** The first layer's queries, keys and values are tabulated at load where the table is not larger than this. */
  tokenTableBytes?: number;
  /** Answer questions whose options do not fit into the model's `max_tokens`, in a longer sequence. */
  grow?: boolean;
  /** Told of the bytes that have come in, and of all there will be where that is known. */
  onProgress?: Progress;
  /** Ends the reading of an address. */
  signal?: AbortSignal;
  /** An instance to load into, in place of a new one. */
  core?: Core;
}

/**
 * Opens a model: a GGUF file of llama.cpp's or skyinfer's converter, by its address or its bytes. Large ones are packed while
 * they come in.
 *
 * @throws FormatError the file is faulty; the message names the key or tensor.
 * @throws SkyinferError this browser cannot run the module.
 */
export async function load(input: ModelInput, options: LoadOptions = {}): Promise<Model> {
  const { temperatureClamp = true, tokenTableBytes = TOKEN_TABLE_BYTES, grow = false } = options;
  if (!Number.isSafeInteger(tokenTableBytes) || tokenTableBytes < 0)
    throw new RangeError(`tokenTableBytes: expected a whole number from 0 on, got ${String(tokenTableBytes)}`);
  const opening = openStream(input, options.onProgress, options.signal);
  try {
    const [core, stream] = await Promise.all([options.core ?? Core.open(options), opening]);
    return new Model(await Engine.read(stream, core, { temperatureClamp, tokenTableBytes, grow }));
  } catch (error) {
    // else the rest of a faulty file would go on coming in
    void opening.then((stream) => stream.cancel(), () => {});
    throw error;
  }
}

/** A decision model in memory. Calls return when the answer is there; in a page, a Worker keeps large models from blocking it. */
export class Model {
  readonly config: ModelConfig;
  private readonly engine: Engine;
  private readonly kept = new Map<string, CompiledQuestions>();
  private keptLength = 0;

  constructor(engine: Engine) {
    this.engine = engine;
    this.config = engine.config;
    try {
      this.warmUp();
    } catch (error) {
      engine.free();
      throw error;
    }
  }

  get name(): string {
    return this.config.name;
  }

  /** "s1" puts each question, its options and the state into one sequence; "s2" reads the state once for all. */
  get architecture(): Architecture {
    return this.config.architecture;
  }

  /** The instruction set that this model runs. */
  get isa(): Isa {
    return this.engine.isa;
  }

  /** The core's instance, for a game beside the model or for another model. */
  get core(): Core {
    return this.engine.core;
  }

  /**
   * Answers typed questions about a state. Recently seen questions are kept tokenized.
   *
   * `state`: a string, or anything that JSON can hold; a list is read as turns, newest last. What `parseJson` gives keeps
   * Python's spelling of numbers, an object of JavaScript's has lost it: 1.0 is 1.
   *
   * @throws RequestError what was asked cannot be answered; says where and what to change.
   * @throws FormatError a score is NaN or infinite, so the model's weights are faulty.
   */
  decide(state: Json, questions: Questions, options: DecideOptions = {}): Response {
    return this.compiled(questions).decide(state, options);
  }

  /**
   * The body of POST /v1/systemone to the body of its answer, both JSON texts: numbers, long integers and the order of names
   * are those of the text.
   *
   * @throws RequestError it is not JSON or not a request.
   */
  decideText(body: string, options: DecideOptions = {}): string {
    return writeJson(this.respond(body, options));
  }

  /** `decideText`'s answer as a JSON object: Maps in the order received. */
  respond(body: string, options: DecideOptions = {}): Map<string, unknown> {
    let parsed: unknown;
    try {
      parsed = parseJson(body);
    } catch (error) {
      if (error instanceof JsonError) throw new RequestError([], `not JSON: ${error.message}`);
      throw error;
    }
    const { state } = parseRequest(parsed);
    const request = parsed as Map<string, unknown>;
    if (request.get(LONG)) throw new RequestError([LONG], "a long state is not read in windows in a browser; remove it");
    const thresholds = options.minConfidence === undefined ? thresholdsOf(request.get(THRESHOLDS), THRESHOLDS) : undefined;
    const response = this.compiled(request.get("questions") as Questions).answer(state, options, thresholds);
    const ignored = [...request.keys()].filter((name) => name.startsWith("x_") && name !== THRESHOLDS && name !== LONG);
    return ignored.length ? response.set("x_ignored", ignored) : response;
  }

  /** Answers the same questions about each state: bit by bit what `decide` gives for one, in fewer forward passes. */
  decideMany(states: Iterable<Json>, questions: Questions, options: DecideOptions = {}): Response[] {
    const read = listOf(states); // by an iterator that may ask other questions itself, for which these would have to go
    return this.compiled(questions).many(read, options);
  }

  /** Tokenizes questions once, for a loop that asks them about one state after another. @throws RequestError */
  compile(questions: Questions): CompiledQuestions {
    return new CompiledQuestions(this.engine, parseQuestions(questions));
  }

  /** What the model would read, by question id: token ids, markers, what was cut. @throws RequestError */
  encode(state: Json, questions: Questions): Record<string, Sequence> {
    const compiled = this.compiled(questions);
    return Object.fromEntries(compiled.sequences(state).map((sequence, i) => [compiled.ids[i]!, sequence]));
  }

  /** Raw scores by question id, in the order of the options, before temperature and softmax. */
  logits(state: Json, questions: Questions): Record<string, Float32Array> {
    return this.compiled(questions).logits(state);
  }

  /** Gives the model's memory back; it cannot be used after. */
  free(): void {
    for (const questions of this.kept.values()) questions.free();
    this.kept.clear();
    this.engine.free();
  }

  private compiled(questions: Questions): CompiledQuestions {
    let key: string;
    try {
      key = writeJson(questions) + kinds(questions);
    } catch (error) {
      if (error instanceof NotJsonError) return this.compile(questions); // which says what is wrong with them
      throw error;
    }
    let found = this.kept.get(key);
    if (!found) {
      found = this.compile(questions);
      this.keptLength += key.length;
    }
    this.kept.delete(key);
    this.kept.set(key, found); // the last one used is the last one to go
    for (const [oldest, questions] of this.kept) {
      if ((this.kept.size <= MOST_KEPT && this.keptLength <= MOST_KEPT_LENGTH) || questions === found) break;
      this.kept.delete(oldest);
      this.keptLength -= oldest.length;
      questions.free();
    }
    return found;
  }

  /** A browser compiles the module's functions as they are first used, which makes the first calls slow. */
  private warmUp(): void {
    try {
      const compiled = this.compile({ warm: { type: "noul", instructions: "Is it?" } });
      for (let i = 0; i < 2; i++) compiled.step("a ".repeat(40));
      compiled.free();
    } catch (error) {
      if (!(error instanceof RequestError)) throw error; // a model may be too short for any question
    }
  }
}

/** Kinds of what is in lists, labels among it: JSON does not tell 1 from 1n, and an answer repeats its label as it was given. */
function kinds(value: unknown): string {
  if (Array.isArray(value)) return value.map((item) => typeof item).join();
  return entriesOf(value)?.map(([, item]) => kinds(item)).join("") ?? "";
}
