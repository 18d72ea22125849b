/**
 * Text to token ids, from what a model file says about its tokenizer; as in Python's tokenizer.py, and the same ids.
 *
 * It is the file's own `tokenizer.huggingface.json`, or one rebuilt from `tokenizer.ggml.*` where a file has no such key.
 */

import { FormatError, shown } from "../errors.js";
import { readPipeline, readTokenizerJson, type Pipeline } from "./tokenizer_json.js";

export const HUGGINGFACE_JSON = "tokenizer.huggingface.json";
const TOKENS = "tokenizer.ggml.tokens";
const TYPES = "tokenizer.ggml.token_type";
const MERGES = "tokenizer.ggml.merges";
const PRE = "tokenizer.ggml.pre";
const NORMALIZER = "skycmd.tokenizer.normalizer";
/** Values of token_type (the GGUF specification). */
const CONTROL = 3;
const USER_DEFINED = 4;
const UNUSED = 5;
/** What PRE may be for a tokenizer to be rebuilt. */
const REBUILT = ["modern-bert", "gpt-2", "mmbert"];

/** Words and texts that are remembered with their ids; all together take a few MB. */
const MOST_WORDS = 8192;
const LONGEST_WORD = 32;
const MOST_TEXTS = 1024;
const LONGEST_TEXT = 512;

export type Metadata = ReadonlyMap<string, unknown>;

export interface SpecialIds {
  vocabSize: number;
  clsId: number;
  sepId: number;
  maskId: number;
}

/** A text that holds half of a surrogate pair, which is not text. */
export class LoneSurrogateError extends Error {
  override name = "LoneSurrogateError";
  readonly code: number;

  constructor(code: number) {
    super(`holds the lone surrogate U+${code.toString(16).toUpperCase().padStart(4, "0")}, which is not text`);
    this.code = code;
  }
}

/** An immutable tokenizer and the three special tokens that a sequence is laid out with. */
export class Tokenizer {
  readonly clsId: number;
  readonly sepId: number;
  readonly maskId: number;
  readonly clsText: string;
  readonly sepText: string;
  readonly maskText: string;
  /** An option cut to a number of tokens keeps its last ones. Nearly always false. */
  readonly keepsTail: boolean;
  private readonly pipeline: Pipeline;
  private words = new Map<string, readonly number[]>();
  private texts = new Map<string, readonly number[]>();

  private constructor(pipeline: Pipeline, special: SpecialIds, source: string) {
    this.pipeline = pipeline;
    this.keepsTail = pipeline.keepsTail;
    if (pipeline.largestId < 0) throw new FormatError(`${source}: the vocabulary is empty`);
    if (pipeline.largestId >= special.vocabSize)
      throw new FormatError(
        `${source}: token id ${pipeline.largestId} lies outside the embedding table of ${special.vocabSize} rows`,
      );
    const textOf = (id: number, role: string): string => {
      const text = pipeline.textOf(id);
      if (!text) throw new FormatError(`${source}: the ${role} token, id ${id}, is not in the vocabulary`);
      return text;
    };
    this.clsId = special.clsId;
    this.sepId = special.sepId;
    this.maskId = special.maskId;
    this.clsText = textOf(special.clsId, "cls");
    this.sepText = textOf(special.sepId, "sep");
    this.maskText = textOf(special.maskId, "mask");
    if (special.maskId === special.clsId || special.maskId === special.sepId)
      throw new FormatError(`${source}: the mask token, id ${special.maskId}, has another role, too`);
  }

  /** The tokenizer of a model file. @throws FormatError no tokenizer there, or a faulty one; names the key. */
  static fromMetadata(metadata: Metadata, special: SpecialIds): Tokenizer {
    const text = metadata.get(HUGGINGFACE_JSON);
    if (text === undefined) return new Tokenizer(rebuilt(metadata, special.maskId), special, TOKENS);
    if (typeof text !== "string") throw new FormatError(`${HUGGINGFACE_JSON} must be a string`);
    return new Tokenizer(readTokenizerJson(text, HUGGINGFACE_JSON), special, HUGGINGFACE_JSON);
  }

  /**
   * Token ids of a text by itself: no special tokens are added, nothing is cut. Text that spells a special token gives that
   * token's id, as in the Laya runtime.
   *
   * @throws LoneSurrogateError, or FormatError where the tokenizer fails on this text.
   */
  encode(text: string): number[] {
    const lone = /\p{Cs}/u.exec(text);
    if (lone) throw new LoneSurrogateError(lone[0].charCodeAt(0));
    const { added, normalize } = this.pipeline;
    const ids: number[] = [];
    for (const piece of added[0].split(text)) {
      if ("id" in piece) {
        ids.push(piece.id);
        continue;
      }
      for (const part of added[1].split(normalize(piece.text)))
        if ("id" in part) ids.push(part.id);
        else this.encodeWords(part.text, piece.begin === 0 && part.begin === 0, ids);
    }
    return ids;
  }

  /** `encode` for texts that tend to come again (instructions, options), the last of which are remembered. */
  encodeRepeated(text: string): readonly number[] {
    const known = this.texts.get(text);
    if (known) return known;
    const ids = this.encode(text);
    if (text.length <= LONGEST_TEXT) {
      if (this.texts.size >= MOST_TEXTS) this.texts = new Map();
      this.texts.set(text, ids);
    }
    return ids;
  }

  private encodeWords(text: string, isFirst: boolean, ids: number[]): void {
    const { words, bpe } = this.pipeline;
    for (const word of words.split(text, isFirst)) {
      let found = this.words.get(word);
      if (!found) {
        found = bpe.encode(words.spell(word));
        if (word.length <= LONGEST_WORD) {
          if (this.words.size >= MOST_WORDS) this.words = new Map(); // what is still in use comes back
          this.words.set(word, found);
        }
      }
      for (const id of found) ids.push(id);
    }
  }
}

// ---- without tokenizer.huggingface.json

/** The tokenizer that `tokenizer.ggml.*` stands for, by the name in `tokenizer.ggml.pre`. */
function rebuilt(metadata: Metadata, maskId: number): Pipeline {
  const tokens = stringList(metadata, TOKENS);
  const merges = stringList(metadata, MERGES);
  const types = metadata.get(TYPES);
  if (!Array.isArray(types) || types.length !== tokens.length)
    throw new FormatError(`${TYPES} must be a list of ${tokens.length} integers, one for each token`);
  const model = metadata.get("tokenizer.ggml.model") ?? "gpt2";
  const pre = metadata.get(PRE);
  if (model !== "gpt2" || !REBUILT.includes(pre as string))
    throw new FormatError(
      `${PRE} ${shown(pre)} (model ${shown(model)}) is not one that skyinfer can rebuild (${REBUILT.join(", ")}); ` +
        `convert the checkpoint with \`skyinfer convert\`, which writes ${HUGGINGFACE_JSON}`,
    );
  const isMetaspace = pre === "mmbert";

  const vocab: Record<string, number> = Object.create(null) as Record<string, number>;
  const seen = new Set<string>();
  tokens.forEach((token, i) => {
    if (types[i] === UNUSED) return;
    if (seen.has(token)) throw new FormatError(`${TOKENS}: token ${i} repeats another one's text`);
    seen.add(token);
    vocab[token] = i;
  });
  const pairs = merges.map((merge, i) => {
    const pair = merge.split(" ");
    if (pair.length !== 2 || !pair[0] || !pair[1])
      throw new FormatError(`${MERGES}: entry ${i} is not two tokens with one space between them`);
    return pair;
  });
  const normalizers: unknown[] = unicodeForm(metadata, pre === "modern-bert" ? "NFC" : "");
  if (isMetaspace) normalizers.push({ type: "Replace", pattern: { String: " " }, content: "\u2581" });
  const unknown = metadata.get("tokenizer.ggml.unknown_token_id");
  const unkToken = isMetaspace && typeof unknown === "number" ? tokens[unknown] : undefined;
  // neither GGUF nor llama.cpp says which tokens strip spaces; both known families strip on the left of the mask token
  const lstrip = idSet(metadata, "lstrip", tokens.length) ?? new Set(pre === "gpt-2" ? [] : [maskId]);
  const rstrip = idSet(metadata, "rstrip", tokens.length) ?? new Set();
  const added = tokens.flatMap((content, i) =>
    types[i] === CONTROL || types[i] === USER_DEFINED
      ? [
          {
            content,
            special: types[i] === CONTROL,
            normalized: types[i] === USER_DEFINED && !isMetaspace,
            lstrip: lstrip.has(i),
            rstrip: rstrip.has(i),
            single_word: false,
          },
        ]
      : [],
  );
  return readPipeline(
    {
      added_tokens: added,
      normalizer: { type: "Sequence", normalizers },
      pre_tokenizer: isMetaspace
        ? { type: "Metaspace", replacement: "\u2581", prepend_scheme: "always", split: true }
        : { type: "ByteLevel", add_prefix_space: false, use_regex: true },
      model: { vocab, merges: pairs, unk_token: unkToken ?? null, fuse_unk: unkToken !== undefined, byte_fallback: isMetaspace },
    },
    TOKENS,
  );
}

function stringList(metadata: Metadata, key: string): string[] {
  const value = metadata.get(key);
  if (value === undefined) throw new FormatError(`${key} is missing, and so is ${HUGGINGFACE_JSON}: the file has no tokenizer`);
  if (!Array.isArray(value) || !value.every((one) => typeof one === "string"))
    throw new FormatError(`${key} must be a list of strings`);
  return value as string[];
}

function unicodeForm(metadata: Metadata, otherwise: string): unknown[] {
  const type = metadata.get(NORMALIZER) ?? otherwise;
  if (type === "") return [];
  if (!["NFC", "NFD", "NFKC", "NFKD"].includes(type as string))
    throw new FormatError(`${NORMALIZER} ${shown(type)} must be NFC, NFD, NFKC, NFKD or empty`);
  return [{ type }];
}

function idSet(metadata: Metadata, side: string, nTokens: number): Set<number> | undefined {
  const key = `skycmd.tokenizer.${side}`;
  const value = metadata.get(key);
  if (value === undefined) return undefined;
  if (!Array.isArray(value) || !value.every((i) => Number.isInteger(i) && i >= 0 && i < nTokens))
    throw new FormatError(`${key} must be a list of token ids below ${nTokens}`);
  return new Set(value as number[]);
}
