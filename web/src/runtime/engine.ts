/**
 * What a loaded model computes with: the sequence builder, the packed weights in the core's memory, and its buffers; as in
 * Python's engine.py. Text is left to text/, answers to answers.ts.
 */

import { FormatError } from "../errors.js";
import { ACTIVATIONS, configOf, matrixShape, type ModelConfig } from "../files/config.js";
import { Truncated, parseHeader, type GgufHeader, type TensorInfo } from "../files/gguf.js";
import { widenQ8 } from "../files/quants.js";
import type { ByteStream } from "../files/source.js";
import { Temperatures } from "../files/temperatures.js";
import { QUESTION_TYPES, type QuestionType } from "../schema.js";
import { SequenceBuilder, longestGrown } from "../text/sequence.js";
import { PromptTemplate } from "../text/template.js";
import { Tokenizer } from "../text/tokenizer.js";
import type { Core, Isa } from "./core.js";

/** What one forward pass takes of a sequence. */
export interface Work {
  ids: readonly number[];
  markers: readonly number[];
  type: QuestionType;
}

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
/** One forward pass takes at most this many tokens of a request. Splitting never changes an answer. */
const BATCH_TOKENS = 2048;
/** The first bytes that are looked at for a header, then twice as many. */
const FIRST_LOOK = 1 << 16;

interface Plan {
  address: number;
  /** Tokens, sequences, markers, tokens of the longest sequence. */
  sizes: readonly [number, number, number, number];
  /** Places of the batch and its scores. */
  buffer: number;
}

export class Engine {
  /** As the model was loaded: clamped, or the file's own. */
  readonly temperatures: Temperatures;
  /** The instruction set that the model runs. */
  readonly isa: Isa;
  private plan: Plan | undefined;
  private freed = false;

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
    const longest = options.grow ? longestGrown(config.maxTokens, config.contextTokens) : null;
    const builder = new SequenceBuilder(tokenizer, template, config.maxTokens, config.maxHeadTokens, longest);
    const model = await pack(stream, core, header, config, options.tokenTableBytes, longest ?? config.maxTokens);
    return new Engine(header.path, core, config, builder, model, options);
  }

  /** Bytes of packed weights and tables. */
  get modelBytes(): number {
    return this.core.exports.sky_web_model_bytes(this.model);
  }

  /** Raw scores of each sequence, one for each marker. */
  run(work: readonly Work[]): Float32Array[] {
    const rows: Float32Array[] = [];
    for (let first = 0; first < work.length; ) {
      let last = first + 1;
      let nTokens = work[first]!.ids.length;
      while (last < work.length && nTokens + work[last]!.ids.length <= BATCH_TOKENS) nTokens += work[last++]!.ids.length;
      rows.push(...this.pass(work.slice(first, last), nTokens));
      first = last;
    }
    return rows;
  }

  private pass(batch: readonly Work[], nTokens: number): Float32Array[] {
    const { core } = this;
    const n = batch.length;
    const nMarkers = batch.reduce((sum, { markers }) => sum + markers.length, 0);
    const plan = this.planFor(nTokens, n, nMarkers, Math.max(...batch.map(({ ids }) => ids.length)));
    const [mostTokens, mostSequences, mostMarkers] = plan.sizes;
    const ids = plan.buffer;
    const tokenOffsets = ids + 4 * mostTokens;
    const markers = tokenOffsets + 4 * (mostSequences + 1);
    const markerOffsets = markers + 4 * mostMarkers;
    const types = markerOffsets + 4 * (mostSequences + 1);
    const logits = types + 4 * mostSequences;
    const all = core.ints(ids, (logits - ids) / 4);
    let token = 0;
    let marker = 0;
    batch.forEach((work, i) => {
      all[(tokenOffsets - ids) / 4 + i] = token;
      all[(markerOffsets - ids) / 4 + i] = marker;
      all[(types - ids) / 4 + i] = QUESTION_TYPES.indexOf(work.type);
      all.set(work.ids, token);
      all.set(work.markers, (markers - ids) / 4 + marker);
      token += work.ids.length;
      marker += work.markers.length;
    });
    all[(tokenOffsets - ids) / 4 + n] = token;
    all[(markerOffsets - ids) / 4 + n] = marker;
    const status = core.exports.sky_web_run(plan.address, n, ids, tokenOffsets, markers, markerOffsets, types, logits);
    if (status !== 0) throw new RangeError(core.textAt(core.exports.sky_web_plan_error(plan.address)));
    const scores = core.floats(logits, nMarkers).slice();
    let at = 0;
    return batch.map((work) => scores.subarray(at, (at += work.markers.length)));
  }

  /** The buffers for such a batch: those of before where they are large enough, else larger ones. */
  private planFor(...wanted: [number, number, number, number]): Plan {
    if (this.freed) throw new Error("the model was freed");
    const { core } = this;
    if (this.plan?.sizes.every((size, i) => size >= wanted[i]!)) return this.plan;
    const steps = [256, 16, 64, 1];
    const least = [1, 1, 1, this.config.maxTokens];
    const sizes = wanted.map((size, i) =>
      Math.max(Math.ceil(size / steps[i]!) * steps[i]!, this.plan?.sizes[i] ?? 0, least[i]!),
    ) as [number, number, number, number];
    this.freePlan();
    const address = core.exports.sky_web_plan(this.model, ...sizes);
    const [mostTokens, mostSequences, mostMarkers] = sizes;
    if (!address || core.bytes[core.exports.sky_web_plan_error(address)]) {
      const message = address ? core.textAt(core.exports.sky_web_plan_error(address)) : "out of memory";
      core.exports.sky_web_plan_free(address);
      throw new RangeError(message);
    }
    const buffer = core.alloc(4 * (mostTokens + 3 * (mostSequences + 1) + 2 * mostMarkers));
    return (this.plan = { address, sizes, buffer });
  }

  private freePlan(): void {
    if (!this.plan) return;
    this.core.exports.sky_web_plan_free(this.plan.address);
    this.core.free(this.plan.buffer);
    this.plan = undefined;
  }

  /** Gives the core's memory back; the engine cannot be used after. */
  free(): void {
    if (this.freed) return;
    this.freePlan();
    this.core.exports.sky_web_model_free(this.model);
    this.freed = true;
  }
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
    0, // SKY_ARCH_S1
    config.dModel, config.dFf, config.vocabSize, config.nLayers, config.nHeads, config.nDecisionBlocks,
    config.nDecisionHeads, config.window, longest, ACTIVATIONS.findIndex(([name]) => name === config.activation),
  );
}

/** sky_tensor: bytes of one, and where in it are its name's end, its number of dimensions, rows and columns. */
const TENSOR = { nBytes: 88, nDims: 64, rows: 72, cols: 80 };

/** Every tensor of such a model and its shape, rows first, by the core's own table. */
function tensorsOf(core: Core, config: ModelConfig): Map<string, number[]> {
  return core.with(sizesOf(config, config.maxTokens), (sizes) => {
    const n = core.exports.sky_web_tensors(sizes, 0, 0);
    return core.with(new Uint8Array(n * TENSOR.nBytes), (place) => {
      core.exports.sky_web_tensors(sizes, place, n);
      const view = new DataView(core.exports.memory.buffer);
      const tensors = new Map<string, number[]>();
      for (let at = place; at < place + n * TENSOR.nBytes; at += TENSOR.nBytes) {
        const [rows, cols] = [TENSOR.rows, TENSOR.cols].map((field) => Number(view.getBigInt64(at + field, true)));
        tensors.set(core.textAt(at), view.getInt32(at + TENSOR.nDims, true) === 1 ? [cols!] : [rows!, cols!]);
      }
      return tensors;
    });
  });
}

/** The model's message as an error about the file; "" where there is none. */
function messageOf(core: Core, model: number): string {
  return core.with(new Uint8Array(256), (text) => {
    core.exports.sky_web_model_error(model, text, 256);
    return core.textAt(text);
  });
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
  const model = core.with(sizesOf(config, longest), (sizes) =>
    core.with(constants, (numbers) =>
      core.with(Uint8Array.from(config.layerIsGlobal, Number), (isGlobal) =>
        exports.sky_web_model(sizes, numbers, isGlobal, Math.min(tokenTableBytes, 2 ** 32 - 1)),
      ),
    ),
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
      const status = core.with(name, (text) =>
        core.exports.sky_web_model_set(model, text, DTYPES[info.type], row, rows, nCols, place, Number(isPart)),
      );
      if (status !== 0) throw new FormatError(`${stream.path}: tensor ${messageOf(core, model)}`);
    }
  } finally {
    core.free(place);
  }
}
