/**
 * A tokenizer.json as the steps that it stands for: what the tokenizers package would do with it, or a FormatError.
 *
 * Known are byte-pair encoding, the normalizers NFC, NFD, NFKC, NFKD, Replace and Prepend, and the pre-tokenizers ByteLevel,
 * Metaspace and Split: those of ModernBERT and mmBERT. Everything else is refused by its name. The text is untrusted.
 */

import { FormatError, printable, shown } from "../errors.js";
import { AddedTokens, type AddedToken } from "./added_tokens.js";
import { Bpe } from "./bpe.js";
import { normalized } from "./unicode.js";
import { byteLevel, inTurn, metaspace, splitAt, undivided, type Behavior, type WordSplitter } from "./words.js";

/** A normalizer may put this many characters in place of one match, and all steps together lengthen a text so many times. */
const MAX_REPLACEMENT = 16;
const MAX_GROWTH = 1024;
const MAX_STEPS = 256;
const MAX_TOKENS = 1 << 22;

export interface Pipeline {
  /** Of the text as it is, and of the normalized text. */
  added: [AddedTokens, AddedTokens];
  normalize(text: string): string;
  words: WordSplitter;
  bpe: Bpe;
  /** The text of an id; undefined where there is none. */
  textOf(id: number): string | undefined;
  largestId: number;
  /** A text cut to a number of tokens keeps its end. */
  keepsTail: boolean;
}

type Part = Record<string, unknown>;

/** @throws FormatError it is not JSON, or not a tokenizer of a known kind; `source` names its key. */
export function readTokenizerJson(text: string, source: string): Pipeline {
  try {
    return readPipeline(JSON.parse(text), source);
  } catch (error) {
    if (error instanceof FormatError) throw error;
    // no JSON, or steps in steps for which the stack is too small
    throw new FormatError(`${source}: not a usable tokenizer (${printable((error as Error).message)})`);
  }
}

/** The same of what the text stands for. */
export function readPipeline(content: unknown, source: string): Pipeline {
  const reader = new Reader(source);
  const file = reader.object(content, "the file");
  const [normalize, growth] = reader.normalizer(file["normalizer"] ?? null);
  const [words, moreGrowth] = reader.preTokenizer(file["pre_tokenizer"] ?? null);
  if (growth * moreGrowth > MAX_GROWTH)
    throw new FormatError(`${source}: its normalizers can lengthen a text ${(growth * moreGrowth).toPrecision(3)} times, more than ${MAX_GROWTH}`);
  const bpe = reader.bpe(file["model"]);
  const truncation = file["truncation"] as Part | null | undefined;
  return {
    ...reader.addedTokens(file["added_tokens"] ?? [], bpe.vocab, normalize),
    normalize,
    words,
    bpe,
    keepsTail: truncation?.["direction"] === "Left",
  };
}

class Reader {
  constructor(private readonly source: string) {}

  fail(problem: string): never {
    throw new FormatError(`${this.source}: not a usable tokenizer (${problem})`);
  }

  object(value: unknown, what: string): Part {
    if (typeof value !== "object" || value === null || Array.isArray(value)) this.fail(`${what} must be an object`);
    return value as Part;
  }

  private text(part: Part, key: string): string {
    const value = part[key];
    if (typeof value !== "string") this.fail(`${key} must be a string`);
    return value;
  }

  private optionalText(part: Part, key: string): string | null {
    return part[key] === undefined || part[key] === null ? null : this.text(part, key);
  }

  private flag(part: Part, key: string, otherwise?: boolean): boolean {
    const value = part[key] ?? otherwise;
    if (typeof value !== "boolean") this.fail(`${key} must be a boolean`);
    return value;
  }

  private list(value: unknown, what: string): unknown[] {
    if (!Array.isArray(value)) this.fail(`${what} must be a list`);
    if (value.length > MAX_TOKENS) this.fail(`${what} has ${value.length} entries, more than ${MAX_TOKENS}`);
    return value;
  }

  private brief(part: Part, key: string): string {
    const text = this.text(part, key);
    if ([...text].length > MAX_REPLACEMENT) throw new FormatError(`${this.source}: a normalizer's ${key} has ${text.length} characters`);
    return text;
  }

  private pattern(part: Part): string {
    const pattern = this.object(part["pattern"], "pattern")["String"];
    if (typeof pattern !== "string" || pattern === "") this.fail("a pattern other than a text; regular expressions are not supported in a browser");
    return pattern;
  }

  /** The steps of a Sequence, or the part alone. */
  private steps(part: unknown, key: string, what: string): Part[] {
    if (part === null) return [];
    const step = this.object(part, what);
    if (step["type"] !== "Sequence") return [step];
    const all = this.list(step[key], key).flatMap((one) => this.steps(one, key, what));
    if (all.length > MAX_STEPS) this.fail(`more than ${MAX_STEPS} ${key}`);
    return all;
  }

  /** And how many times longer it can make a text. */
  normalizer(part: unknown): [(text: string) => string, number] {
    let growth = 1;
    const steps = this.steps(part, "normalizers", "normalizer").map((step): ((text: string) => string) => {
      const type = step["type"];
      switch (type) {
        case "NFC":
        case "NFD":
        case "NFKC":
        case "NFKD":
          growth *= { NFC: 3, NFD: 4, NFKC: 18, NFKD: 18 }[type];
          return (text) => normalized(text, type);
        case "Replace": {
          const pattern = this.pattern(step);
          const content = this.brief(step, "content");
          growth *= Math.max(1, content.length / pattern.length);
          return (text) => text.replaceAll(pattern, () => content);
        }
        case "Prepend": {
          const before = this.brief(step, "prepend");
          return (text) => (text ? before + text : text);
        }
        default:
          return this.fail(`the normalizer ${shown(type)} is not supported in a browser`);
      }
    });
    return [(text) => steps.reduce((sofar, step) => step(sofar), text), growth];
  }

  preTokenizer(part: unknown): [WordSplitter, number] {
    let growth = 1;
    const steps = this.steps(part, "pretokenizers", "pre_tokenizer").map((step): WordSplitter => {
      switch (step["type"]) {
        case "ByteLevel":
          growth *= 4;
          return byteLevel(this.flag(step, "add_prefix_space"), this.flag(step, "use_regex", true));
        case "Metaspace": {
          const replacement = this.text(step, "replacement");
          if ([...replacement].length !== 1) this.fail("replacement must be one character");
          const legacy = this.flag(step, "add_prefix_space", true) ? "always" : "never";
          const scheme = this.optionalText(step, "prepend_scheme") ?? legacy;
          if (scheme !== "first" && scheme !== "never" && scheme !== "always") this.fail(`prepend_scheme ${shown(scheme)}`);
          return metaspace(replacement, scheme, this.flag(step, "split", true));
        }
        case "Split": {
          const behavior = this.text(step, "behavior") as Behavior;
          if (!["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"].includes(behavior))
            this.fail(`behavior ${shown(behavior)}`);
          return splitAt(this.pattern(step), behavior, this.flag(step, "invert", false));
        }
        default:
          return this.fail(`the pre-tokenizer ${shown(step["type"])} is not supported in a browser`);
      }
    });
    return [steps.length === 0 ? undivided : steps.length === 1 ? steps[0]! : inTurn(steps), growth];
  }

  bpe(part: unknown): Bpe {
    const model = this.object(part, "model");
    if ((model["type"] ?? "BPE") !== "BPE") this.fail(`the model ${shown(model["type"])} is not supported in a browser; BPE is`);
    if (model["dropout"]) throw new FormatError(`${this.source}: BPE dropout ${shown(model["dropout"])} would make token ids random; remove it`);
    const vocab = new Map<string, number>();
    for (const [token, id] of Object.entries(this.object(model["vocab"], "vocab"))) {
      if (typeof id !== "number" || !Number.isInteger(id) || id < 0 || id >= 2 ** 32) this.fail(`the id of ${shown(token)}`);
      vocab.set(token, id);
    }
    const merges = this.list(model["merges"], "merges").map((merge, i): [string, string] => {
      const pair: unknown = typeof merge === "string" ? merge.split(" ") : merge;
      if (!Array.isArray(pair) || pair.length !== 2 || typeof pair[0] !== "string" || typeof pair[1] !== "string")
        this.fail(`merge ${i} is not two tokens`);
      return [pair[0], pair[1]];
    });
    return new Bpe(
      {
        vocab,
        merges,
        unkToken: this.optionalText(model, "unk_token"),
        fuseUnk: this.flag(model, "fuse_unk", false),
        byteFallback: this.flag(model, "byte_fallback", false),
        ignoreMerges: this.flag(model, "ignore_merges", false),
        continuingPrefix: this.optionalText(model, "continuing_subword_prefix") ?? "",
        endSuffix: this.optionalText(model, "end_of_word_suffix") ?? "",
      },
      this.source,
    );
  }

  /** The tokens' ids are the model's where it has them, and follow it where not, whatever the file says. */
  addedTokens(
    value: unknown,
    vocab: Map<string, number>,
    normalize: (text: string) => string,
  ): Pick<Pipeline, "added" | "textOf" | "largestId"> {
    const ids = new Map<string, number>();
    const byId = new Map<number, AddedToken>();
    const special = new Map<string, AddedToken>();
    const plain: AddedToken[] = [];
    const tokens = this.list(value, "added_tokens").map((entry): AddedToken => {
      const token = this.object(entry, "an added token");
      if (this.flag(token, "single_word")) this.fail("added tokens that are single words are not supported in a browser");
      return {
        content: this.text(token, "content"),
        lstrip: this.flag(token, "lstrip"),
        rstrip: this.flag(token, "rstrip"),
        normalized: this.flag(token, "normalized"),
        special: this.flag(token, "special"),
      };
    });
    for (const token of tokens)
      if (token.special && token.content && !special.has(token.content)) special.set(token.content, token);
    let most = -1;
    for (const token of tokens) {
      const { content } = token;
      const known = ids.get(content);
      if (!content || (known !== undefined && isSame(byId.get(known)!, token))) continue;
      const id = known ?? vocab.get(content) ?? (most >= vocab.size || (vocab.size === 0 && most >= 0) ? most + 1 : vocab.size);
      most = Math.max(most, id);
      ids.set(content, id);
      byId.set(id, token);
      if (!special.has(content)) plain.push(token);
    }
    const all = [...special.values(), ...plain];
    const pattern = (token: AddedToken) => ({
      pattern: token.normalized ? normalize(token.content) : token.content,
      id: ids.get(token.content)!,
      token: byId.get(ids.get(token.content)!)!,
    });
    let largestId = most;
    for (const id of vocab.values()) if (id > largestId) largestId = id;
    return {
      added: [
        new AddedTokens(all.filter((token) => !token.normalized).map(pattern)),
        new AddedTokens(all.filter((token) => token.normalized).map(pattern)),
      ],
      largestId,
      textOf(id) {
        const token = byId.get(id)?.content;
        if (token !== undefined) return token;
        for (const [text, number] of vocab) if (number === id) return text;
        return undefined;
      },
    };
  }
}

function isSame(one: AddedToken, other: AddedToken): boolean {
  return (
    one.lstrip === other.lstrip && one.rstrip === other.rstrip && one.normalized === other.normalized && one.special === other.special
  );
}
