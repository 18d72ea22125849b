/**
 * What a request may be and what comes back: the public types and all validation of requests; as in Python's schema.py.
 *
 * Every value is rendered to the text that the model reads; what cannot be is a RequestError that says where and what to
 * change. Building the sequence is left to text/sequence.ts, numbers to runtime/answers.ts.
 */

import { RequestError, type PathPart } from "./errors.js";
import { JsonNumber, NotJsonError, entriesOf, kindOf, numberText, writeJson } from "./json.js";

export type QuestionType = "choice" | "score" | "noul";
/** In the order of the type embedding's rows. */
export const QUESTION_TYPES: readonly QuestionType[] = ["choice", "score", "noul"];

/** Anything that JSON can hold: JavaScript's own values, or those of `parseJson`. */
export type Json = unknown;
/** What an answer calls an option of a choice: the label as it was given. */
export type Label = string | number | boolean | bigint | JsonNumber;

interface AnyOrder {
  /** Slot s of the sequence shows option `option_order[s]`. */
  option_order?: readonly number[];
}

/** One of several labels. `criteria`: label -> description, or a list of labels. */
export interface ChoiceQuestion extends AnyOrder {
  type: "choice";
  instructions: Json;
  criteria: Record<string, Json> | Map<string, Json> | readonly Label[];
}

/** A level on a scale. `criteria`: descriptions of the levels, lowest first. */
export interface ScoreQuestion extends AnyOrder {
  type: "score";
  instructions: Json;
  criteria: readonly Json[];
}

/** Does a statement hold? */
export interface NoulQuestion extends AnyOrder {
  type: "noul";
  instructions: Json;
  /** Descriptions of "true" and "false", either or both. */
  criteria?: { true?: Json; false?: Json } | null;
  /** The two words that the model reads instead of "true" and "false". */
  labels?: { true: string; false: string } | null;
}

export type Question = ChoiceQuestion | ScoreQuestion | NoulQuestion;
/** By question id. A Map keeps any order; an object moves ids that look like integers to the front. */
export type Questions = Record<string, Question> | ReadonlyMap<string, unknown>;

/** One threshold in [0, 1], or some by name, as { "choice:3-5": 0.8, default: 0.5 }. */
export type MinConfidence = number | Record<string, number> | ReadonlyMap<string, number>;

interface Extras {
  /** The state did not fit: tokens it has, tokens the model read. */
  x_truncated?: { state_tokens: number; state_tokens_used: number };
  /** Options became identical when they were cut: how many there are, how many differ. */
  x_options?: { options: number; distinct: number };
  /** The options took more room than the model's sequences have: tokens read, and what the model was made for. */
  x_grown?: { tokens: number; max_tokens: number };
  /** Fields of the question that mean nothing to skyinfer. */
  x_ignored?: string[];
  /** Where a least confidence was asked for: the one of this answer, and whether its probability is less. */
  x_min_confidence?: number;
  x_abstained?: true;
}

export interface ChoiceAnswer extends Extras {
  type: "choice";
  choice: Label;
  probabilities: Record<string, number>;
  confidence: number;
}

export interface ScoreAnswer extends Extras {
  type: "score";
  score: number;
  legend: Record<string, string>;
  probabilities: Record<string, number>;
  confidence: number;
}

export interface NoulAnswer extends Extras {
  type: "noul";
  noul: number;
}

export type Answer = ChoiceAnswer | ScoreAnswer | NoulAnswer;

export interface Response {
  model: string;
  answers: Record<string, Answer>;
  usage: { input_tokens: number; output_tokens: number };
  /** Wall time of the call in microseconds, where it was asked for. */
  micros?: number;
  /** Fields of a request's body that begin with x_, as skyinfer's own do, and mean nothing. */
  x_ignored?: string[];
}

/**
 * One option, all texts rendered: what the model reads, before the template joins it.
 *
 * `key`: what the answer calls it; `name`: the key as the prompt shows it; `description`: null where none was given.
 */
export interface Option {
  key: Label;
  name: string;
  description: string | null;
}

/** A validated question; `instructions` is text and `options` are in the caller's order. */
export interface ParsedQuestion {
  id: string;
  type: QuestionType;
  instructions: string;
  options: Option[];
  optionOrder: number[] | null;
  /** Names of the fields that mean nothing to skyinfer. */
  ignored: string[];
}

export interface ParsedRequest {
  state: Json;
  questions: ParsedQuestion[];
  model: string | null;
}

type Members = Map<unknown, unknown>;

const EXAMPLE = '{"any id": {"type": ..., "instructions": ...}}';

/**
 * Validates the body of a request. Unknown top-level fields are ignored.
 *
 * @throws RequestError with the path to the faulty part.
 */
export function parseRequest(body: unknown): ParsedRequest {
  const members = membersOf(body);
  if (!members) throw new RequestError([], `a request must be an object, not ${kindOf(body)}`);
  for (const key of ["state", "questions"])
    if (!members.has(key)) throw new RequestError([key], `is missing; add ${repr(key)}`);
  const model = members.get("model") ?? null;
  if (model !== null && typeof model !== "string")
    throw new RequestError(["model"], `must be a string, not ${kindOf(model)}`);
  const state = members.get("state");
  if (state === null) throw nullState();
  return { state, questions: parseQuestions(members.get("questions")), model };
}

/**
 * Validates questions, an object of id -> definition, and renders their texts, in the order received.
 *
 * @throws RequestError with a path such as `["questions", "action", "criteria", 2]`.
 */
export function parseQuestions(questions: unknown): ParsedQuestion[] {
  const members = membersOf(questions);
  if (!members) throw new RequestError(["questions"], `must be an object of id -> question, ${EXAMPLE}, not ${kindOf(questions)}`);
  const type = members.get("type");
  const isQuestion = (QUESTION_TYPES as readonly unknown[]).includes(type) || members.has("instructions") || members.has("criteria");
  if (typeof type === "string" && isQuestion)
    throw new RequestError(["questions"], `is one question without an id; give it one: ${EXAMPLE}`);
  return [...members].map(([id, question]) => parseQuestion(id, question));
}

/**
 * The state as text: a string as it is, anything else as JSON.
 *
 * @throws RequestError null, or not JSON (circular, too deep, or of another type).
 */
export function renderState(state: unknown): string {
  if (state === null || state === undefined) throw nullState();
  return render(state, ["state"]);
}

function nullState(): RequestError {
  return new RequestError(["state"], "must not be null; give a string, an object or a list");
}

function membersOf(value: unknown): Members | undefined {
  const entries = entriesOf(value);
  return entries && new Map(entries);
}

function parseQuestion(id: unknown, question: unknown): ParsedQuestion {
  if (typeof id !== "string" || !strip(id))
    throw new RequestError(["questions", short(id)], `a question id must be a non-empty string, not ${short(id)}`);
  const loc = ["questions", id];
  const members = membersOf(question);
  if (!members) throw new RequestError(loc, `a question must be an object, not ${kindOf(question)}`);
  const type = members.get("type") as QuestionType;
  const parse = QUESTION_TYPES.includes(type) ? PARSERS[type] : undefined;
  if (!parse) throw new RequestError([...loc, "type"], `must be choice, score or noul, not ${short(type ?? null)}`);

  const instructions = parseInstructions(members.get("instructions"), [...loc, "instructions"]);
  const options = parse(members, loc);
  const optionOrder = members.has("option_order") ? parseOrder(members.get("option_order"), options.length, loc) : null;
  if (members.has("labels") && type !== "noul")
    throw new RequestError([...loc, "labels"], "only a noul question has labels; remove it");
  return { id, type, instructions, options, optionOrder, ignored: ignoredFields(members) };
}

const FIELDS: ReadonlySet<unknown> = new Set(["type", "instructions", "criteria", "option_order", "labels"]);

/** Fields that no question has, most often one that is misspelt, and descriptions that another one replaced. */
function ignoredFields(question: Members): string[] {
  const found = [...question.keys()].filter((field) => !FIELDS.has(field)).map((field) => (typeof field === "string" ? field : short(field)));
  const criteria = membersOf(question.get("criteria"));
  if (question.get("type") !== "noul" || !criteria) return found;
  const last = new Map([...criteria.keys()].map((key) => [lowerCase(key), key]));
  for (const key of criteria.keys()) if (last.get(lowerCase(key)) !== key) found.push(`criteria.${String(key)}`);
  return found;
}

/** A key of noul criteria as it is compared; a Map's may be anything. */
function lowerCase(key: unknown): string {
  return typeof key === "object" ? "" : String(key).toLowerCase();
}

function parseInstructions(value: unknown, loc: PathPart[]): string {
  if (typeof value === "string") {
    if (!strip(value)) throw new RequestError(loc, "must not be blank; say what to decide");
    return value;
  }
  if (value === null || value === undefined) throw new RequestError(loc, "is missing; say what to decide");
  const size = Array.isArray(value) ? value.length : entriesOf(value)?.length;
  if (size === undefined && !isNumber(value) && typeof value !== "boolean")
    throw new RequestError(loc, `must be a string, an object or a list, not ${kindOf(value)}`);
  if (size === 0) throw new RequestError(loc, "must not be empty; say what to decide");
  return render(value, loc);
}

function parseChoice(question: Members, loc: PathPart[]): Option[] {
  loc = [...loc, "criteria"];
  const criteria = question.get("criteria");
  const members = membersOf(criteria);
  if (members) {
    if (members.size === 0) throw new RequestError(loc, "must not be empty; a choice needs at least one option");
    return [...members].map(([label, value], i) => {
      if (typeof label !== "string") throw badLabel(label, [...loc, i]);
      return { key: label, name: label, description: description(value, [...loc, label]) };
    });
  }
  if (!Array.isArray(criteria))
    throw new RequestError(loc, `must be an object of label -> description, or a list of labels, not ${kindOf(criteria ?? null)}`);
  if (criteria.length === 0) throw new RequestError(loc, "must not be empty; a choice needs at least one option");
  const seen = new Map<unknown, number>();
  return Array.from(criteria as unknown[], (label, i) => {
    if (typeof label !== "string" && typeof label !== "boolean" && !isNumber(label)) throw badLabel(label, [...loc, i]);
    const identity = labelIdentity(label);
    const first = seen.get(identity);
    if (first !== undefined)
      throw new RequestError(
        [...loc, i],
        `label ${short(label)} repeats label ${first}; give every option its own (1, 1.0 and true count as one)`,
      );
    seen.set(identity, i);
    return { key: label, name: strOf(label), description: null };
  });
}

function parseScore(question: Members, loc: PathPart[]): Option[] {
  loc = [...loc, "criteria"];
  const levels = question.get("criteria");
  if (!Array.isArray(levels)) throw new RequestError(loc, `must be a list of level descriptions, lowest first, not ${kindOf(levels ?? null)}`);
  if (levels.length === 0) throw new RequestError(loc, "must not be empty; a score needs at least one level");
  return Array.from(levels as unknown[], (value, i) => {
    if (value === null || value === undefined) throw new RequestError([...loc, i], "must not be null; describe every level");
    return { key: String(i), name: String(i), description: render(value, [...loc, i]) };
  });
}

const NOUL_KEYS = ["false", "true"] as const;

function parseNoul(question: Members, loc: PathPart[]): Option[] {
  const criteria = question.get("criteria") ?? null;
  const described = new Map<string, unknown>();
  if (criteria !== null) {
    const at = [...loc, "criteria"];
    const members = membersOf(criteria);
    if (!members) throw new RequestError(at, "must be an object with descriptions of true and false, or absent");
    for (const [key, value] of members) {
      const name = lowerCase(key);
      if (name !== "true" && name !== "false")
        throw new RequestError(at, `has the key ${short(key)}; use only true and false, and \`labels\` for words`);
      described.set(name, value);
    }
  }
  const labels = question.get("labels") ?? null;
  const names = labels === null ? NOUL_KEYS : noulLabels(labels, [...loc, "labels"]);
  return NOUL_KEYS.map((key, i) => ({
    key,
    name: names[i]!,
    description: description(described.get(key) ?? null, [...loc, "criteria", key]),
  }));
}

const PARSERS: Record<QuestionType, (question: Members, loc: PathPart[]) => Option[]> = {
  choice: parseChoice,
  score: parseScore,
  noul: parseNoul,
};

/** The words for false and true. */
function noulLabels(labels: unknown, loc: PathPart[]): readonly string[] {
  const members = membersOf(labels);
  const words = NOUL_KEYS.map((key) => members?.get(key));
  if (members?.size === 2 && words.every((word): word is string => typeof word === "string")) {
    const [no, yes] = words.map(strip);
    if (no && yes && no !== yes) return [no, yes];
  }
  throw new RequestError(loc, "must give false and true two different words that are not blank");
}

function parseOrder(order: unknown, n: number, loc: PathPart[]): number[] {
  const places = Array.isArray(order) ? Array.from(order as unknown[], wholeNumber) : [];
  const isPermutation = places.length === n && new Set(places).size === n && places.every((i) => i >= 0 && i < n);
  if (!isPermutation)
    throw new RequestError([...loc, "option_order"], `must hold each of 0 to ${n - 1} once, one for each option`);
  return places;
}

/** The value of an integer; -1 for anything else, 1.0 among them where its text is known. */
function wholeNumber(value: unknown): number {
  if (value instanceof JsonNumber) return value.isInteger ? value.value : -1;
  return Number.isSafeInteger(value) || typeof value === "bigint" ? Number(value) : -1;
}

// ---- values as text

/** null and "" are no description; 0, false, [] and {} are. */
function description(value: unknown, loc: PathPart[]): string | null {
  return value === null || value === undefined || value === "" ? null : render(value, loc);
}

function render(value: unknown, loc: PathPart[]): string {
  if (typeof value === "string") return value;
  try {
    return writeJson(value);
  } catch (error) {
    if (error instanceof NotJsonError) throw new RequestError(loc, error.message);
    throw error;
  }
}

function badLabel(label: unknown, loc: PathPart[]): RequestError {
  return new RequestError(loc, `a label must be a string, a number or a boolean, not ${kindOf(label)}`);
}

function isNumber(value: unknown): value is number | bigint | JsonNumber {
  return typeof value === "number" || typeof value === "bigint" || value instanceof JsonNumber;
}

/** A number's or boolean's text as Python's `str` gives it. */
function strOf(label: Label): string {
  if (typeof label === "boolean") return label ? "True" : "False";
  if (typeof label === "string") return label;
  const text = typeof label === "number" ? numberText(label) : String(label);
  return { NaN: "nan", Infinity: "inf", "-Infinity": "-inf" }[text] ?? text;
}

/** Equal for labels that Python takes for one key: 1, 1.0 and true. No two NaN are. */
function labelIdentity(label: Label): unknown {
  if (typeof label === "string") return `"${label}`;
  if (typeof label === "boolean") return label ? "1" : "0";
  const text = strOf(label);
  if (text === "nan") return {};
  const value = Number(text);
  // a float is the integer that it equals; integers beyond its precision stay apart
  return /^-?\d+$/.test(text) || !Number.isInteger(value) ? text : BigInt(value).toString();
}

// The white space of Python's str.strip: Unicode's, and the four separators of ASCII. `trim` knows another set.
const BLANK = /[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]/;

function strip(text: string): string {
  let begin = 0;
  let end = text.length;
  while (begin < end && BLANK.test(text[begin]!)) begin++;
  while (begin < end && BLANK.test(text[end - 1]!)) end--;
  return text.slice(begin, end);
}

/** Python's spelling of a value, cut to 60 characters. */
export function short(value: unknown): string {
  const characters = [...repr(value)];
  return characters.length <= 60 ? characters.join("") : `${characters.slice(0, 57).join("")}...`;
}

/** Python's spelling of a value, for messages that read the same in both languages. */
function repr(value: unknown, depth = 0): string {
  if (typeof value === "string") return quoted(value);
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean" || isNumber(value)) return strOf(value);
  if (depth > 8) return "...";
  if (Array.isArray(value)) return `[${value.map((item) => repr(item, depth + 1)).join(", ")}]`;
  const entries = entriesOf(value);
  if (!entries) return kindOf(value);
  return `{${entries.map(([key, item]) => `${repr(key, depth + 1)}: ${repr(item, depth + 1)}`).join(", ")}}`;
}

function quoted(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const inner = text.replace(/[\\\p{C}\p{Z}'"]/gu, (c) => {
    if (c === " " || (c === "'" && quote !== "'") || c === '"') return c;
    const known = { "\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t" }[c];
    if (known) return known;
    const code = c.codePointAt(0)!;
    const [letter, width] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
    return `\\${letter}${code.toString(16).padStart(width, "0")}`;
  });
  return quote + inner + quote;
}
