/**
 * What a model is, read from GGUF keys and checked whole; as in Python's config.py, with the same limits. Nothing after this
 * looks at a raw key again, but for those of tokenizer and template.
 */

import { FormatError } from "../errors.js";
import { QUESTION_TYPES } from "../schema.js";
import { Float, shownName, type GgufHeader, type TensorInfo, type Value } from "./gguf.js";
import { TEMPERATURE_NAMES } from "./temperatures.js";

export type Architecture = "s1" | "s2";
/** In the order of sky_architecture. */
export const ARCHITECTURES: readonly Architecture[] = ["s1", "s2"];
/** `general.architecture` of each, which its keys begin with. */
const GGUF_ARCHITECTURES: readonly string[] = ["modern-bert", "skyinfer-s2"];
/** What `decision.type` may be in each. Of the two kinds of s1 llama.cpp would compute the second otherwise, and refuses it. */
const DECISION_TYPES: readonly (readonly unknown[])[] = [["laya", "skyinfer-laya"], ["skyinfer-s2"]];
/** What GGUF files and transformers call each sky_activation, in the order of the core. */
export const ACTIVATIONS: readonly (readonly string[])[] = [
  ["gelu", "gelu_python", "geglu"],
  ["silu", "swish", "swiglu"],
  ["gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_python_tanh", "gelu_accurate"],
  ["quick_gelu"],
  ["gelu_10"],
  ["relu", "reglu"],
  ["relu2"],
  ["relu6"],
  ["leaky_relu"],
  ["tanh"],
  ["sigmoid"],
  ["linear"],
  ["hardswish"],
  ["mish"],
];
/** In the order of sky_option_layout. */
export const OPTION_LAYOUTS: readonly string[] = ["sequential", "parallel"];
const DEFAULT_MAX_TOKENS = 512;
const DEFAULT_ROPE_BASE_GLOBAL = 160000;
const DEFAULT_ROPE_BASE_LOCAL = 10000;
const DEFAULT_PERIOD = 3;

const MAX_BLOCKS = 1024;
const MAX_WIDTH = 1 << 20;
const MAX_D_MODEL = 1 << 16;
const MAX_D_HEAD = 512; // SKY_MAX_D_HEAD of the core
const MAX_VOCAB = 1 << 24;
const MAX_TOKENS = 1 << 17;
const LEAST_F32 = 2 ** -126;
const MOST_F32 = (2 - 2 ** -23) * 2 ** 127;

/** Sizes and constants of a decision model. */
export interface ModelConfig {
  /** A Laya model has question, options and state in one sequence; s2 encodes the state once, and each option with its question. */
  architecture: Architecture;
  /** What the file calls itself, or its stem. */
  name: string;
  nLayers: number;
  nDecisionBlocks: number;
  dModel: number;
  nHeads: number;
  nDecisionHeads: number;
  /** Inner width of an encoder feed-forward; the head's is 4 * dModel. */
  dFf: number;
  vocabSize: number;
  /** Of the encoder's norms; the head's is 1e-5. */
  normEps: number;
  /** A local layer sees this many tokens to each side. */
  window: number;
  /** For each encoder block, whether it sees every token. */
  layerIsGlobal: boolean[];
  ropeBaseGlobal: number;
  ropeBaseLocal: number;
  /** Of the encoder's feed-forward, one of ACTIVATIONS. */
  activation: string;
  /** Options of a question one after another, or all at the same positions and none in sight of another. */
  optionLayout: string;
  /** Longest sequence, and tokens that question and options may take of it. */
  maxTokens: number;
  maxHeadTokens: number;
  /** Raw, by "choice", "choice.2", "choice.3_5" and so on. */
  temperatures: Map<string, number>;
  clsId: number;
  sepId: number;
  maskId: number;
  /** How long the encoder's sequences may get, by the file. */
  contextTokens: number;
}

/**
 * Reads and checks a header: every key, and every tensor's name and shape, which `tensorsOf` says for a configuration. Dimensions
 * of 1, which tools add and drop, may differ: the header's tensors get the shapes that are expected of them.
 *
 * @throws FormatError the message names the key or tensor, or the dialect where the file is one of the other things that are
 *   called a Laya GGUF.
 */
export function configOf(header: GgufHeader, tensorsOf: (config: ModelConfig) => ReadonlyMap<string, number[]>): ModelConfig {
  const config = readConfig(header);
  const expected = tensorsOf(config);
  for (const [name, shape] of expected) {
    const found = header.tensors.get(name);
    if (!found) throw new FormatError(`${header.path}: tensor ${name} is missing (expected [${shape.join(", ")}])`);
    if (String(withoutOnes(found.shape)) !== String(withoutOnes(shape)))
      throw new FormatError(`${header.path}: tensor ${name}: expected [${shape.join(", ")}], found [${found.shape.join(", ")}]`);
    found.shape = shape;
  }
  for (const name of header.tensors.keys())
    if (!expected.has(name))
      throw new FormatError(`${header.path}: tensor ${shownName(name)} is unknown to ${config.architecture === "s1" ? "a Laya" : "an s2"} model`);
  return config;
}

function readConfig(header: GgufHeader): ModelConfig {
  const keys = new Keys(header);
  keys.checkDialect();
  const { architecture } = keys;
  const nBlocks = keys.whole("block_count", 1, MAX_BLOCKS);
  const nDecisionBlocks = keys.whole("decision.block_count", Number(architecture === "s2"), nBlocks - 1);
  const nLayers = nBlocks - nDecisionBlocks;
  const dModel = keys.whole("embedding_length", 2, MAX_D_MODEL);
  const nHeads = keys.uniform("attention.head_count", nBlocks, dModel);
  const dHead = dModel / nHeads;
  if (!Number.isInteger(dHead) || dHead % 2)
    keys.fail("attention.head_count", `${nHeads} heads do not divide ${dModel} into even parts`);
  if (dHead > MAX_D_HEAD)
    keys.fail("attention.head_count", `heads of ${dHead} values (at most ${MAX_D_HEAD} are possible)`);
  const nDecisionHeads = Math.max(1, Math.floor(dModel / 64));
  if (dModel % nDecisionHeads)
    keys.fail("embedding_length", `${dModel} does not divide into the head's ${nDecisionHeads} attention heads`);
  keys.only("attention.head_count_kv", nHeads);
  keys.only("attention.key_length", dHead);
  keys.only("attention.value_length", dHead);
  keys.only("attention.causal", false);
  keys.only("rope.dimension_count", dHead);
  keys.only("rope.scaling.type", "none");
  keys.only("tokenizer.ggml.token_type_count", QUESTION_TYPES.length);

  const vocabSize = keys.vocabSize();
  const [window, layerIsGlobal] = keys.attentionSpans(nBlocks, nLayers);
  const ropeBaseGlobal = keys.number("rope.freq_base", DEFAULT_ROPE_BASE_GLOBAL);
  // a file that states one base means it for both kinds of layers, as llama.cpp reads it
  const otherBase = keys.get("rope.freq_base") === undefined ? DEFAULT_ROPE_BASE_LOCAL : ropeBaseGlobal;
  const activation = keys.activation();
  // llama.cpp's converter knows norm_eps, ModernBERT's own spelling, by the other name only
  const epsKeys = ["attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"];
  const epsKey = epsKeys.find((key) => keys.get(key) !== undefined) ?? epsKeys[0]!;
  const clsKey = ["tokenizer.ggml.cls_token_id", "tokenizer.ggml.bos_token_id"].find((key) => keys.get(key) !== undefined);
  const maxTokens = keys.whole("decision.max_tokens", 1, MAX_TOKENS, DEFAULT_MAX_TOKENS);
  return {
    architecture,
    name: keys.text("general.name", stem(header.path) || "model"),
    nLayers,
    nDecisionBlocks,
    dModel,
    nHeads,
    nDecisionHeads,
    dFf: keys.feedForward(nLayers, nDecisionBlocks, dModel),
    vocabSize,
    normEps: keys.number(epsKey, undefined, 1),
    window,
    layerIsGlobal,
    ropeBaseGlobal,
    ropeBaseLocal: keys.number("rope.freq_base_swa", otherBase),
    activation,
    optionLayout: keys.optionLayout(),
    maxTokens,
    maxHeadTokens: keys.whole("decision.max_head_tokens", 1, MAX_TOKENS),
    temperatures: keys.temperatures(),
    clsId: keys.whole(clsKey ?? "tokenizer.ggml.bos_token_id", 0, vocabSize - 1),
    sepId: keys.whole("tokenizer.ggml.seperator_token_id", 0, vocabSize - 1), // the GGUF specification's own spelling
    maskId: keys.whole("tokenizer.ggml.mask_token_id", 0, vocabSize - 1),
    contextTokens: keys.contextTokens(maxTokens),
  };
}

function withoutOnes(shape: number[]): number[] {
  return shape.filter((n) => n !== 1);
}

/** Rows and columns of a tensor; a vector is one row. */
export function matrixShape(info: TensorInfo): [number, number] {
  return info.shape.length === 1 ? [1, info.shape[0]!] : [info.shape[0]!, info.shape[1]!];
}

function stem(path: string): string {
  return (path.split(/[\\/]/).at(-1) ?? "").replace(/[?#].*$/, "").replace(/(.)\.[^.]*$/, "$1");
}

/** Typed access to metadata. Names without a room of their own are the architecture's. */
class Keys {
  /** s1 where the file's own is none. */
  readonly architecture: Architecture;
  private readonly index: number;

  constructor(private readonly header: GgufHeader) {
    const stated = header.metadata.get("general.architecture");
    this.index = Math.max(0, GGUF_ARCHITECTURES.findIndex((known) => known === stated));
    this.architecture = ARCHITECTURES[this.index]!;
  }

  private full(name: string): string {
    return /^(general|tokenizer|split)\./.test(name) ? name : `${GGUF_ARCHITECTURES[this.index]}.${name}`;
  }

  get(name: string): Value | undefined {
    return this.header.metadata.get(this.full(name));
  }

  fail(name: string, message: string): never {
    throw new FormatError(`${this.header.path}: key ${shownName(this.full(name))}: ${message}`);
  }

  private refuse(what: string): never {
    throw new FormatError(`${this.header.path}: ${what}; convert the original checkpoint with \`skyinfer convert\` instead`);
  }

  /** Refuses, by name, what is neither llama.cpp's form of a Laya model nor an s2 model. */
  checkDialect(): void {
    const names = [...this.header.metadata.keys()];
    if (names.some((key) => key.startsWith("ggmlc.")))
      this.refuse("a Laya GGUF in the ggmlc format (a compiled graph), which only ggmlc runs");
    const architecture = this.text("general.architecture", "");
    if (architecture === "laya") this.refuse('a Laya GGUF of architecture "laya" (ZeroDegress), which its own runtimes read');
    if (!architecture) this.fail("general.architecture", "is missing");
    if (!GGUF_ARCHITECTURES.includes(architecture))
      this.fail("general.architecture", `expected ${GGUF_ARCHITECTURES.join(" or ")}, found ${shownName(architecture)}`);
    for (const other of GGUF_ARCHITECTURES) {
      const strange = other === architecture ? undefined : names.find((key) => key.startsWith(`${other}.`));
      if (strange) this.fail("general.architecture", `is ${architecture}, and key ${shownName(strange)} is ${other}'s`);
    }
    if (this.architecture === "s1" && this.get("decision.type") === undefined && this.get("decision.block_count") === undefined)
      this.refuse(
        "a ModernBERT backbone without a decision head (key modern-bert.decision.type is missing; the head may lie beside it " +
          "as laya-head.safetensors)",
      );
    if (this.get("decision.type") === undefined) this.fail("decision.type", "is missing");
    const type = this.get("decision.type");
    const types = DECISION_TYPES[this.index]!;
    if (!types.includes(type)) this.fail("decision.type", `expected ${types.join(" or ")}, found ${shownName(String(type))}`);
    if (this.whole("split.count", 0, 1 << 16, 1) > 1)
      this.fail("split.count", "the file is one part of a split model; merge the parts first");
  }

  whole(name: string, least: number, most: number, otherwise?: number): number {
    const value = this.get(name) ?? otherwise;
    if (value === undefined) this.fail(name, "is missing");
    if (typeof value !== "number" && typeof value !== "bigint") this.fail(name, `expected a whole number, found ${kind(value)}`);
    if (value < least || value > most) this.fail(name, `${value} is outside ${least} to ${most}`);
    return Number(value);
  }

  /** A finite number above zero. */
  number(name: string, otherwise?: number, most = Infinity): number {
    const stored = this.get(name) ?? otherwise;
    if (stored === undefined) this.fail(name, "is missing");
    const value = stored instanceof Float ? stored.value : typeof stored === "bigint" ? Number(stored) : stored;
    if (typeof value !== "number") this.fail(name, `expected a number, found ${kind(stored)}`);
    // what is stored as f64 has to survive as the f32 that everything computes with
    if (!(LEAST_F32 <= value && value <= MOST_F32 && value <= most)) this.fail(name, `${value} is not a finite number above zero`);
    return value;
  }

  /** Only ever an upper bound to what `least` allows already, so a file need not have it right. */
  contextTokens(least: number): number {
    const value = this.get("context_length");
    return typeof value === "number" ? Math.min(Math.max(value, least), MAX_TOKENS) : least;
  }

  text(name: string, otherwise: string): string {
    const value = this.get(name) ?? otherwise;
    if (typeof value !== "string") this.fail(name, `expected a string, found ${kind(value)}`);
    return value;
  }

  activation(): string {
    const value = this.text("hidden_activation", "gelu");
    const known = ACTIVATIONS.find((names) => names.includes(value));
    if (!known)
      this.fail("hidden_activation", `${shownName(value)} is not supported (${ACTIVATIONS.flat().join(", ")} are)`);
    return known[0]!;
  }

  optionLayout(): string {
    const name = "decision.option_layout";
    const value = this.text(name, OPTION_LAYOUTS[0]!);
    if (!OPTION_LAYOUTS.includes(value))
      this.fail(name, `${shownName(value)} is not supported (${OPTION_LAYOUTS.join(" and ")} are)`);
    if (this.architecture !== "s1" && value !== OPTION_LAYOUTS[0])
      this.fail(name, `${value} is of models that have their options in one sequence, and this one has not`);
    return value;
  }

  /** A key that may be absent, and has one possible value. */
  only(name: string, expected: boolean | number | string): void {
    const value = this.get(name);
    if (value !== undefined && value !== expected) {
      const found = typeof value === "object" ? kind(value) : shownName(String(value));
      this.fail(name, `expected ${expected}, found ${found}`);
    }
  }

  private listOfWhole(name: string, value: Value[]): number[] {
    if (!value.every((one) => typeof one === "number")) this.fail(name, "expected an array of whole numbers");
    return value;
  }

  /** One number, or an array that repeats it for each block. */
  uniform(name: string, nBlocks: number, most: number): number {
    const value = this.get(name);
    if (!Array.isArray(value)) return this.whole(name, 1, most);
    const numbers = this.listOfWhole(name, value);
    const first = numbers[0];
    if (numbers.length !== nBlocks || first === undefined || numbers.some((n) => n !== first))
      this.fail(name, `expected one number for all ${nBlocks} blocks`);
    if (first < 1 || first > most) this.fail(name, `${first} is outside 1 to ${most}`);
    return first;
  }

  feedForward(nLayers: number, nDecisionBlocks: number, dModel: number): number {
    const name = "feed_forward_length";
    const value = this.get(name);
    const n = nLayers + nDecisionBlocks;
    const widths = Array.isArray(value)
      ? this.listOfWhole(name, value)
      : new Array<number>(n).fill(this.whole(name, 1, MAX_WIDTH));
    if (widths.length !== n) this.fail(name, `${widths.length} entries for ${n} blocks`);
    const dFf = widths[0]!;
    if (widths.slice(0, nLayers).some((width) => width !== dFf)) this.fail(name, "the encoder blocks differ in width");
    if (widths.slice(nLayers).some((width) => width !== 4 * dModel))
      this.fail(name, `a block of the decision head is not ${4 * dModel} wide`);
    if (dFf < 1 || dFf > MAX_WIDTH) this.fail(name, `${dFf} is outside 1 to ${MAX_WIDTH}`);
    return dFf;
  }

  vocabSize(): number {
    const name = "tokenizer.ggml.tokens";
    const tokens = this.get(name);
    if (tokens !== undefined && !(Array.isArray(tokens) && tokens.every((token) => typeof token === "string")))
      this.fail(name, "expected an array of strings");
    const size = this.whole("vocab_size", 1, MAX_VOCAB, tokens?.length || undefined);
    if (tokens !== undefined && tokens.length !== size) this.fail(name, `${tokens.length} tokens for a vocabulary of ${size}`);
    return size;
  }

  /** Tokens seen to each side in local layers, and which layers are global. */
  attentionSpans(nBlocks: number, nLayers: number): [number, boolean[]] {
    const size = this.whole("attention.sliding_window", 0, 2 * MAX_TOKENS, 0);
    if (size === 0) return [0, new Array<boolean>(nLayers).fill(true)];
    const name = "attention.sliding_window_pattern";
    const pattern = this.get(name);
    if (Array.isArray(pattern)) {
      // true where a block is local; llama.cpp writes an entry for the head's blocks too
      if (pattern.length !== nLayers && pattern.length !== nBlocks)
        this.fail(name, `${pattern.length} entries for ${nBlocks} blocks`);
      if (!pattern.every((one) => typeof one === "boolean" || one === 0 || one === 1))
        this.fail(name, "expected a whole number or an array of bools");
      return [Math.floor(size / 2), pattern.slice(0, nLayers).map((one) => !one)];
    }
    const period = this.whole(name, 0, MAX_BLOCKS, DEFAULT_PERIOD);
    const layers = Array.from({ length: nLayers }, (_, i) => period !== 0 && i % period === 0);
    return [Math.floor(size / 2), layers];
  }

  /** In the file's order. A name that no question looks up is nobody's temperature, and is left out. */
  temperatures(): Map<string, number> {
    const out = new Map<string, number>(QUESTION_TYPES.map((kind) => [kind, 1]));
    const stem = this.full("decision.temperature.");
    for (const key of this.header.metadata.keys()) {
      const name = key.startsWith(stem) ? key.slice(stem.length) : "";
      if (TEMPERATURE_NAMES.has(name)) out.set(name, this.number(`decision.temperature.${name}`));
    }
    return out;
  }
}

function kind(value: Value): string {
  if (Array.isArray(value)) return "an array";
  return { string: "a string", boolean: "a bool", object: "a float" }[typeof value as string] ?? "a whole number";
}
