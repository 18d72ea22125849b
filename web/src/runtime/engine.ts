/**
 * What a loaded model computes with: the sequence builder, the packed weights in the core's memory, and its buffers; as in
 * Python's engine.py. Text is left to text/, answers to answers.ts.
 */

import { FormatError } from "../errors.js";
import { ACTIVATIONS, ARCHITECTURES, OPTION_LAYOUTS, configOf, matrixShape, type ModelConfig } from "../files/config.js";
import { Truncated, parseHeader, type GgufHeader, type TensorInfo } from "../files/gguf.js";
import { widenQ8 } from "../files/quants.js";
import type { ByteStream } from "../files/source.js";
import { Temperatures } from "../files/temperatures.js";
import { QUESTION_TYPES } from "../schema.js";
import { SequenceBuilder, longestGrown, type Prefix, type Sequence, type StateTokens } from "../text/sequence.js";
import { PromptTemplate } from "../text/template.js";
import { Tokenizer } from "../text/tokenizer.js";
import { faultyWeights, type Answered } from "./answers.js";
import { textIn, type Core, type Isa } from "./core.js";

type Three = [number, number, number];

export interface EngineOptions {
  temperatureClamp: boolean;
  tokenTableBytes: number;
  grow: boolean;
}

/** sky_dtype of the core. */
const DTYPES = { f32: 0, f16: 1, bf16: 2, q8_0: 0 } as const;
/** With a large vocabulary this tensor is much larger than any other; it is packed by so many rows. */
const EMBEDDING = "token_embd.weight";
const ROWS_AT_ONCE = 4096;
/** The first bytes that are looked at for a header, then twice as many. */
const FIRST_LOOK = 1 << 16;

export class Engine {
  /** As the model was loaded: clamped, or the file's own. */
  readonly temperatures: Temperatures;
  /** The instruction set that the model runs. */
  readonly isa: Isa;
  /** The address of the plan's address, which a run exchanges for a larger one where it has to. */
  private readonly plan: number;
  private freed = false;
  private readonly unused: FinalizationRegistry<number>;

  private constructor(
    readonly path: string,
    readonly core: Core,
    readonly config: ModelConfig,
    readonly builder: SequenceBuilder,
    private readonly model: number,
    options: EngineOptions,
  ) {
    this.temperatures = new Temperatures(config.temperatures, options.temperatureClamp);
    this.isa = core.textAt(core.exports.sky_web_model_isa(model)) as Isa;
    this.plan = core.alloc(4);
    this.unused = new FinalizationRegistry((questions) => core.exports.sky_web_questions_free(questions));
  }

  /** Clamped as the Laya runtime does, or the file's own; undefined: as the model was loaded. */
  temperaturesOf(clamp: boolean | undefined): Temperatures {
    return clamp === undefined ? this.temperatures : new Temperatures(this.config.temperatures, clamp);
  }

  /**
   * Reads a model while its bytes come in: each tensor is packed as soon as it is there, and then forgotten.
   *
   * @throws FormatError the file is faulty; names the key or tensor.
   */
  static async read(stream: ByteStream, core: Core, options: EngineOptions): Promise<Engine> {
    const header = await readHeader(stream);
    const config = configOf(header, (config) => tensorsOf(core, config));
    const tokenizer = Tokenizer.fromMetadata(header.metadata, config);
    const template = PromptTemplate.fromMetadata(header.metadata, tokenizer);
    header.metadata.clear(); // else it would be in memory beside the weights
    const grown = options.grow ? longestGrown(config.maxTokens, config.contextTokens) : null;
    const builder = new SequenceBuilder(tokenizer, template, config.maxTokens, config.maxHeadTokens, grown, config.architecture === "s2");
    const model = await pack(stream, core, header, config, options.tokenTableBytes, builder.longest);
    return new Engine(header.path, core, config, builder, model, options);
  }

  /** Bytes of packed weights and tables. */
  get modelBytes(): number {
    return this.core.exports.sky_web_model_bytes(this.model);
  }

  /** Prefixes in the core, which puts states behind them and runs them; gives their address. They go with `owner`, or by `release`. */
  prepare(prefixes: readonly Prefix[], owner: object): number {
    const { core, builder } = this;
    const apart = prefixes.flatMap(({ optionIds }) => optionIds ?? []);
    const numbers = Int32Array.from([
      ...offsetsOf(prefixes.map(({ ids }) => ids)),
      ...offsetsOf(prefixes.map(({ markers }) => markers)),
      ...prefixes.map(({ question }) => QUESTION_TYPES.indexOf(question.type)),
      ...prefixes.map(({ maxTokens }) => maxTokens),
      ...prefixes.flatMap(({ ids }) => ids),
      ...prefixes.flatMap(({ markers }) => markers),
      ...prefixes.flatMap(({ question }) => question.optionOrder ?? [...question.options.keys()]),
      ...offsetsOf(apart),
      ...apart.flat(),
    ]);
    const questions = core.with((list) => core.exports.sky_web_questions(this.usable, prefixes.length, builder.sepId, list), numbers);
    const fault = core.textAt(core.exports.sky_web_questions_error(questions));
    if (fault) {
      core.exports.sky_web_questions_free(questions);
      throw new RangeError(fault);
    }
    this.unused.register(owner, questions, owner);
    return questions;
  }

  /** Frees what `prepare` gave to `owner`. */
  release(questions: number, owner: object): void {
    this.unused.unregister(owner);
    this.core.exports.sky_web_questions_free(questions);
  }

  /** Raw scores of all options of prepared questions about each state, in slot order. `nOptions`: about one state. */
  run(questions: number, nOptions: number, states: readonly StateTokens[]): Float32Array[] {
    const { core, usable } = this;
    const logits = new Float32Array(nOptions * states.length);
    const numbers = states.length === 1 ? states[0]! : Int32Array.from(states.flatMap((state) => [...state]));
    const status = core.with((list, out) => core.exports.sky_web_run(usable, this.plan, questions, states.length, list, out), numbers, logits);
    if (status !== 0) throw new RangeError(core.textAt(core.exports.sky_web_plan_error(this.planAddress)) || "out of memory");
    return states.map((_, i) => logits.subarray(i * nOptions, (i + 1) * nOptions));
  }

  /** What the model reads for question `i` of prepared ones. */
  sequence(questions: number, i: number, prefix: Prefix, state: StateTokens): Sequence {
    const ids = new Int32Array(prefix.maxTokens);
    const used = new Int32Array(1);
    const n = this.core.with((...places) => this.core.exports.sky_web_sequence(questions, i, ...(places as Three)), state, ids, used);
    return this.builder.sequence(prefix, [...ids.subarray(0, n)], state[0]!, used[0]!);
  }

  /** Probabilities and answers of prepared questions, from scores of all their options. @throws FormatError one is NaN or infinite. */
  answers(questions: number, logits: Float32Array, temperatures: Float64Array): Answered {
    const p = new Float64Array(logits.length);
    const answers = new Float64Array(3 * temperatures.length);
    const finite = this.core.with(
      (...places) => this.core.exports.sky_web_answers(questions, ...(places as [...Three, number])),
      logits, temperatures, p, answers,
    );
    if (!finite) throw faultyWeights();
    return { p, answers };
  }

  private get planAddress(): number {
    return new DataView(this.core.exports.memory.buffer).getUint32(this.plan, true);
  }

  private get usable(): number {
    if (this.freed) throw new Error("the model was freed");
    return this.model;
  }

  /** Gives the core's memory back; the engine cannot be used after. */
  free(): void {
    if (this.freed) return;
    const { core } = this;
    core.exports.sky_web_plan_free(this.planAddress);
    core.free(this.plan);
    core.exports.sky_web_model_free(this.model);
    this.freed = true;
  }
}

/** Where each list begins when all lie end to end, and where the last one ends. */
export function offsetsOf(lists: readonly { length: number }[]): number[] {
  let end = 0;
  return [0, ...lists.map(({ length }) => (end += length))];
}

async function readHeader(stream: ByteStream): Promise<GgufHeader> {
  for (let n = FIRST_LOOK; ; n *= 2) {
    const bytes = await stream.peek(n);
    try {
      return parseHeader(bytes, stream.path);
    } catch (error) {
      if (!(error instanceof Truncated) || bytes.length < n) throw error;
    }
  }
}

/** Sizes as exports.c takes them, for sequences of up to `longest` tokens. */
function sizesOf(config: ModelConfig, longest: number): Int32Array {
  return Int32Array.of(
    ARCHITECTURES.indexOf(config.architecture), config.dModel, config.dFf, config.vocabSize, config.nLayers, config.nHeads, config.nDecisionBlocks,
    config.nDecisionHeads, config.window, longest, ACTIVATIONS.findIndex(([name]) => name === config.activation),
    OPTION_LAYOUTS.indexOf(config.optionLayout),
  );
}

/** sky_tensor: bytes of one, and where in it are its name's end, its number of dimensions, rows and columns. */
const TENSOR = { nBytes: 88, nDims: 64, rows: 72, cols: 80 };

/** Every tensor of such a model and its shape, rows first, by the core's own table. */
function tensorsOf(core: Core, config: ModelConfig): Map<string, number[]> {
  const sizes = sizesOf(config, config.maxTokens);
  const n = core.with((place) => core.exports.sky_web_tensors(place, 0, 0), sizes);
  const table = new Uint8Array(n * TENSOR.nBytes);
  core.with((place, out) => core.exports.sky_web_tensors(place, out, n), sizes, table);
  const view = new DataView(table.buffer);
  const tensors = new Map<string, number[]>();
  for (let at = 0; at < table.length; at += TENSOR.nBytes) {
    const [rows, cols] = [TENSOR.rows, TENSOR.cols].map((field) => Number(view.getBigInt64(at + field, true)));
    tensors.set(textIn(table.subarray(at)), view.getInt32(at + TENSOR.nDims, true) === 1 ? [cols!] : [rows!, cols!]);
  }
  return tensors;
}

/** The model's message as an error about the file; "" where there is none. */
function messageOf(core: Core, model: number): string {
  const text = new Uint8Array(256);
  core.with((place) => core.exports.sky_web_model_error(model, place, 256), text);
  return textIn(text);
}

/** Every tensor of the file, packed for sequences of up to `longest` tokens; gives the frozen model's address. */
async function pack(
  stream: ByteStream,
  core: Core,
  header: GgufHeader,
  config: ModelConfig,
  tokenTableBytes: number,
  longest: number,
): Promise<number> {
  const { exports } = core;
  const constants = Float32Array.of(config.normEps, config.ropeBaseGlobal, config.ropeBaseLocal);
  const isGlobal = Uint8Array.from(config.layerIsGlobal, Number);
  const model = core.with(
    (...addresses) => exports.sky_web_model(...(addresses as Three), Math.min(tokenTableBytes, 2 ** 32 - 1)),
    sizesOf(config, longest), constants, isGlobal,
  );
  if (!model) throw new RangeError("out of memory");
  try {
    const fault = messageOf(core, model);
    if (fault.startsWith("out of memory")) throw new RangeError(fault);
    if (fault) throw new FormatError(`${header.path}: ${fault}`);
    let at = 0;
    for (const info of [...header.tensors.values()].sort((one, other) => one.offset - other.offset)) {
      const what = `tensor ${info.name}`;
      await stream.skip(info.offset - at, what);
      await packTensor(stream, core, model, info, what);
      at = info.offset + info.nBytes;
    }
    if (exports.sky_web_model_freeze(model) !== 0) throw new FormatError(`${header.path}: ${messageOf(core, model)}`);
    return model;
  } catch (error) {
    exports.sky_web_model_free(model);
    throw error;
  }
}

async function packTensor(stream: ByteStream, core: Core, model: number, info: TensorInfo, what: string): Promise<void> {
  const [nRows, nCols] = matrixShape(info);
  const isPart = info.name === EMBEDDING;
  const step = isPart ? ROWS_AT_ONCE : nRows;
  const rowBytes = info.nBytes / nRows;
  const name = new TextEncoder().encode(`${info.name}\0`);
  const place = core.alloc(Math.min(step, nRows) * (info.type === "q8_0" ? 4 * nCols : rowBytes));
  try {
    for (let row = 0; row < nRows; row += step) {
      const rows = Math.min(step, nRows - row);
      const data = await stream.take(rows * rowBytes, what);
      if (info.type === "q8_0") widenQ8(data, core.floats(place, rows * nCols));
      else core.bytes.set(data, place);
      const status = core.with(
        (text) => core.exports.sky_web_model_set(model, text, DTYPES[info.type], row, rows, nCols, place, Number(isPart)),
        name,
      );
      if (status !== 0) throw new FormatError(`${stream.path}: tensor ${messageOf(core, model)}`);
    }
  } finally {
    core.free(place);
  }
}
