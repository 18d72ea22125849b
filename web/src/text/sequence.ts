/**
 * From a state and a question to token ids and marker positions; as in Python's sequence.py, whose budgets are the Laya
 * runtime's. Prefixes are laid out here; the core puts states behind them.
 *
 *     [CLS] question [SEP] ([MASK] option)* [SEP] state [SEP]          s1
 *     [CLS] state [SEP], [CLS] question [SEP] [MASK] option [SEP]      s2, the second for each option
 *
 * Every part is tokenized by itself and the brackets are token ids put between them here, so no text can end its part.
 */

import { FormatError, RequestError, type PathPart } from "../errors.js";
import { renderState, type ParsedQuestion } from "../schema.js";
import type { PromptTemplate } from "./template.js";
import { LoneSurrogateError, type Tokenizer } from "./tokenizer.js";

/** Tokens of text that an option keeps, its marker not counted. */
const OPTION_TOKENS = 48;
/** Below this many tokens left for the question, options are shortened. */
const QUESTION_ROOM = 16;
const LEAST_OPTION = 4;
const LEAST_QUESTION = 8;
/** Tokens of an option's own sequence beside texts and marker: one [CLS], two [SEP]. */
const BRACKETS = 3;
/** As many options as the System One API knows; a sequence that may grow has room for them. */
const MOST_OPTIONS = 255;

/** What the model reads for one question, and what had to be left out. */
export interface Sequence {
  ids: number[];
  /** Positions in `ids`, in slot order (slot s shows option `option_order[s]`). */
  markers: number[];
  stateTokens: number;
  stateTokensUsed: number;
  options: number;
  optionsDistinct: number;
  /** The cap on an option's tokens, marker included, where options had to be shortened to fit. */
  tokensPerOption: number | null;
  /** The model's own `max_tokens`, where the sequence was allowed more for the sake of its options. */
  grownPast: number | null;
  /** Of s2 the sequence of each option, in slot order, where `markers` are; `ids` is the state's. */
  optionIds: number[][] | null;
  /** Whether the model does not see the whole state. */
  truncated: boolean;
}

/** The sequence up to and with the [SEP] in front of the state, for any state; in s2 the [CLS] alone. */
export interface Prefix {
  question: ParsedQuestion;
  ids: number[];
  optionIds: number[][] | null;
  markers: number[];
  optionsDistinct: number;
  tokensPerOption: number | null;
  /** Limits the whole sequence: the builder's own limit, or more where it had to grow. */
  maxTokens: number;
}

/** A tokenized state as the core takes it: how many tokens, 1 where what does not fit is cut from the front, the tokens. */
export type StateTokens = Int32Array;

export function stateTokens(ids: readonly number[], keepTail: boolean): StateTokens {
  return Int32Array.from([ids.length, Number(keepTail), ...ids]);
}

/** The most tokens of a sequence that may grow: up to the model's context as many as 255 options of any length take. */
export function longestGrown(maxTokens: number, contextTokens: number): number {
  const room = (size: number): number => maxTokens + MOST_OPTIONS * size + QUESTION_ROOM;
  return Math.max(room(LEAST_OPTION), Math.min(contextTokens, room(OPTION_TOKENS + 1)));
}

/** Lays out sequences for one model. */
export class SequenceBuilder {
  /**
   * `grown`: options beyond `maxTokens` are not refused; both limits grow for that question, at most so far. `isApart`: options
   * have sequences of their own, as in s2; then none takes another's room, and none is refused.
   */
  constructor(
    private readonly tokenizer: Tokenizer,
    private readonly template: PromptTemplate,
    private readonly maxTokens: number,
    private readonly maxHeadTokens: number,
    private readonly grown: number | null,
    private readonly isApart = false,
  ) {}

  /** Tokens of the longest sequence that is ever laid out. */
  get longest(): number {
    if (!this.isApart) return this.grown ?? this.maxTokens;
    return Math.max(this.maxTokens, Math.max(this.maxHeadTokens, LEAST_QUESTION + OPTION_TOKENS + 1) + BRACKETS);
  }

  /** The token that closes a sequence. */
  get sepId(): number {
    return this.tokenizer.sepId;
  }

  /** Renders and tokenizes a state, whole. @throws RequestError it cannot be. */
  state(state: unknown): StateTokens {
    const text = this.template.state(renderState(state));
    return stateTokens(tokensOf(() => this.tokenizer.encode(text), ["state"]), Array.isArray(state));
  }

  /**
   * Lays out the question and its options, in slot order, within `max_head_tokens`.
   *
   * Options keep 48 tokens of text each. Where that leaves fewer than 16 tokens for the question, all are cut to an even share
   * (at least 4, marker included); the question then gets what is left, at least 8 tokens. In s2 it gets what each option leaves.
   *
   * @throws RequestError a text cannot be tokenized, or a marker falls beyond `max_tokens` and may not.
   */
  prefix(question: ParsedQuestion): Prefix {
    const { tokenizer, template } = this;
    const { type } = question;
    const loc: PathPart[] = ["questions", question.id];
    const most = this.longest;
    const n = question.options.length;
    if (n >= most && !this.isApart)
      throw new RequestError([...loc, "criteria"], `${n} options do not fit in the model's ${most} tokens; use fewer options`);
    const encode = (text: string, at: PathPart[]) => tokensOf(() => tokenizer.encodeRepeated(text), at);
    const asked = encode(template.question(type, question.instructions), [...loc, "instructions"]);
    const order = question.optionOrder ?? question.options.map((_, i) => i);
    const options = order.map((i) => {
      const ids = encode(template.option(type, i, question.options[i]!), [...loc, ...placeOf(question, i)]);
      return [tokenizer.maskId, ...(tokenizer.keepsTail ? ids.slice(-OPTION_TOKENS) : ids.slice(0, OPTION_TOKENS))];
    });

    if (this.isApart) return this.layOutApart(question, asked, options);
    let found = this.layOut(question, asked, options, 0);
    if (found.markers.at(-1)! >= found.maxTokens && this.grown !== null) {
      // room for the whole options, and for as much of the question as any question may have
      const wanted = total(options) + Math.max(QUESTION_ROOM, Math.min(asked.length, this.maxHeadTokens));
      const grown = Math.min(wanted - this.maxHeadTokens, most - this.maxTokens);
      found = this.layOut(question, asked, options, Math.max(0, grown));
    }
    if (found.markers.at(-1)! >= found.maxTokens) {
      const fit = found.markers.filter((marker) => marker < found.maxTokens).length;
      throw new RequestError(
        [...loc, "criteria"],
        `only ${fit} of ${n} options fit in the model's ${found.maxTokens} tokens; use fewer options`,
      );
    }
    return found;
  }

  /** `prefix` for tokens, where both limits are `grown` tokens larger. A marker may lie beyond `maxTokens`. */
  private layOut(question: ParsedQuestion, asked: readonly number[], options: number[][], grown: number): Prefix {
    const maxHeadTokens = this.maxHeadTokens + grown;
    let room = maxHeadTokens - total(options);
    let tokensPerOption: number | null = null;
    if (room < QUESTION_ROOM) {
      const perOption = Math.max(LEAST_OPTION, Math.floor((maxHeadTokens - QUESTION_ROOM) / options.length));
      options = options.map((ids) => ids.slice(0, perOption));
      tokensPerOption = perOption;
      room = maxHeadTokens - total(options);
    }
    const { clsId, sepId } = this.tokenizer;
    const ids = [clsId, ...asked.slice(0, Math.max(LEAST_QUESTION, room)), sepId];
    const markers: number[] = [];
    for (const option of options) {
      markers.push(ids.length);
      ids.push(...option);
    }
    ids.push(sepId);
    return { question, ids, optionIds: null, markers, optionsDistinct: distinct(options), tokensPerOption, maxTokens: this.maxTokens + grown };
  }

  /** Each option with its question. */
  private layOutApart(question: ParsedQuestion, asked: readonly number[], options: number[][]): Prefix {
    const { maxTokens, maxHeadTokens } = this;
    const { clsId, sepId } = this.tokenizer;
    const fronts = options.map(({ length }) => [clsId, ...asked.slice(0, Math.max(LEAST_QUESTION, maxHeadTokens - length)), sepId]);
    const optionIds = options.map((option, i) => [...fronts[i]!, ...option, sepId]);
    const markers = fronts.map(({ length }) => length);
    return { question, ids: [clsId], optionIds, markers, optionsDistinct: distinct(optionIds), tokensPerOption: null, maxTokens };
  }

  /** The whole sequence, of whose state the core kept some tokens. */
  sequence(prefix: Prefix, ids: number[], nState: number, used: number): Sequence {
    return {
      ids,
      markers: [...prefix.markers],
      stateTokens: nState,
      stateTokensUsed: used,
      options: prefix.markers.length,
      optionsDistinct: prefix.optionsDistinct,
      tokensPerOption: prefix.tokensPerOption,
      optionIds: prefix.optionIds,
      grownPast: prefix.maxTokens > this.maxTokens ? this.maxTokens : null,
      truncated: used < nState,
    };
  }
}

function distinct(lists: readonly (readonly number[])[]): number {
  return new Set(lists.map(String)).size;
}

function total(options: readonly (readonly number[])[]): number {
  return options.reduce((sum, ids) => sum + ids.length, 0);
}

/** Where in a question the text of option `i` is given, of which it turned out that it is none. */
function placeOf(question: ParsedQuestion, i: number): PathPart[] {
  if (question.type !== "noul") return ["criteria", i];
  const option = question.options[i]!;
  return [/\p{Cs}/u.test(option.name) ? "labels" : "criteria", option.key as string];
}

function tokensOf<T>(encode: () => T, loc: PathPart[]): T {
  try {
    return encode();
  } catch (error) {
    if (error instanceof LoneSurrogateError || error instanceof FormatError) throw new RequestError(loc, error.message);
    throw error;
  }
}
