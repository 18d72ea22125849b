/**
 * JSON as Python's `json` module reads and writes it, since the model reads a state as Python would spell it.
 *
 * `JSON.parse` cannot be used: it makes 1.0 to 1, rounds long integers, moves keys that look like integers to the front, and
 * refuses NaN. Here an object is a Map in the order received (of repeated keys the last value counts, at the first one's
 * place), and a number keeps its kind and its text. `writeJson` spells a value as `json.dumps(value, ensure_ascii=False)`.
 *
 * Values that a JavaScript program builds are written, too: a number that is an integer and exact (below 2^53) as an
 * integer, any other as a float. What JavaScript cannot hold apart, 1.0 from 1, is lost before it comes here; `parseJson`,
 * or a `JsonNumber`, keeps it.
 */

/** A number as JSON spells it. */
export class JsonNumber {
  /** The number as JavaScript has it; long integers are rounded. */
  readonly value: number;
  readonly isInteger: boolean;
  private written: string | undefined;

  /** Of the JSON text of a number, or of NaN, Infinity or -Infinity. A number of JavaScript's is a float. */
  constructor(source: string | number) {
    this.isInteger = typeof source === "string" && /^-?\d+$/.test(source);
    this.value = Number(source);
    if (this.isInteger) this.written = source === "-0" ? "0" : (source as string);
  }

  /** Python's spelling: all digits of an integer, the shortest exact one of a float. */
  get text(): string {
    return (this.written ??= floatText(this.value)); // which takes longer than all else of an answer
  }

  toString(): string {
    return this.text;
  }

  toJSON(): number {
    return this.value;
  }
}

/** What `parseJson` gives. */
export type JsonValue = null | boolean | string | JsonNumber | JsonValue[] | JsonObject;
export type JsonObject = Map<string, JsonValue>;

/** A text is not JSON. `at` is where, in UTF-16 units. */
export class JsonError extends Error {
  override name = "JsonError";
  readonly at: number;

  constructor(problem: string, at: number) {
    super(`${problem} at character ${at}`);
    this.at = at;
  }
}

/** Objects and lists inside each other; Python's reader stops at about as many. */
const MAX_DEPTH = 990;
/** Digits of an integer, as Python limits them. */
const MAX_DIGITS = 4300;

const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
const PLAIN = /[^"\\\u0000-\u001f]*/y;
const SPACE = /[ \t\n\r]*/y;
const CONSTANTS: Record<string, () => JsonValue> = {
  null: () => null,
  true: () => true,
  false: () => false,
  NaN: () => new JsonNumber("NaN"),
  Infinity: () => new JsonNumber("Infinity"),
  "-Infinity": () => new JsonNumber("-Infinity"),
};
const CONSTANT = /null|true|false|NaN|-?Infinity/y;
const ESCAPES: Record<string, string> = { '"': '"', "\\": "\\", "/": "/", b: "\b", f: "\f", n: "\n", r: "\r", t: "\t" };

/**
 * The value that a JSON text stands for.
 *
 * @throws JsonError it is not JSON, nested too deeply, or holds an integer of more than 4300 digits.
 */
export function parseJson(text: string): JsonValue {
  const reader = new Reader(text);
  const value = reader.value(0);
  reader.end();
  return value;
}

class Reader {
  private at = 0;

  constructor(private readonly text: string) {}

  value(depth: number): JsonValue {
    this.skip();
    const c = this.text[this.at];
    if (c === '"') return this.string();
    if (c === "{" || c === "[") {
      if (depth >= MAX_DEPTH) this.fail("nested too deeply");
      return c === "{" ? this.object(depth + 1) : this.list(depth + 1);
    }
    const word = this.match(CONSTANT);
    if (word) return CONSTANTS[word]!();
    const number = this.match(NUMBER);
    if (!number) this.fail("a value is missing");
    if (number.length > MAX_DIGITS && number.replace(/^-/, "").search(/\D/) < 0)
      this.fail(`an integer of more than ${MAX_DIGITS} digits`);
    return new JsonNumber(number);
  }

  end(): void {
    this.skip();
    if (this.at < this.text.length) this.fail("more text after the value");
  }

  private object(depth: number): JsonObject {
    const members: JsonObject = new Map();
    this.at++;
    this.skip();
    if (this.take("}")) return members;
    do {
      this.skip();
      if (this.text[this.at] !== '"') this.fail("a key in double quotes is missing");
      const key = this.string();
      this.skip();
      if (!this.take(":")) this.fail("a colon is missing");
      members.set(key, this.value(depth));
      this.skip();
    } while (this.take(","));
    if (!this.take("}")) this.fail("a comma or } is missing");
    return members;
  }

  private list(depth: number): JsonValue[] {
    const items: JsonValue[] = [];
    this.at++;
    this.skip();
    if (this.take("]")) return items;
    do {
      items.push(this.value(depth));
      this.skip();
    } while (this.take(","));
    if (!this.take("]")) this.fail("a comma or ] is missing");
    return items;
  }

  private string(): string {
    const begin = this.at++;
    let out = "";
    for (;;) {
      out += this.match(PLAIN);
      const c = this.text[this.at];
      if (c === '"') {
        this.at++;
        return out;
      }
      if (c === undefined) {
        this.at = begin;
        this.fail("a string that does not end");
      }
      if (c !== "\\") this.fail("a control character in a string; write it as an escape");
      const escape = this.text[this.at + 1];
      if (escape === "u") {
        const code = this.text.slice(this.at + 2, this.at + 6);
        if (!/^[0-9a-fA-F]{4}$/.test(code)) this.fail("\\u without four hexadecimal digits");
        out += String.fromCharCode(parseInt(code, 16));
        this.at += 6;
      } else {
        const character = escape === undefined ? undefined : ESCAPES[escape];
        if (character === undefined) this.fail("an unknown escape");
        out += character;
        this.at += 2;
      }
    }
  }

  private match(pattern: RegExp): string {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text)?.[0] ?? "";
    this.at += found.length;
    return found;
  }

  private skip(): void {
    this.match(SPACE);
  }

  private take(character: string): boolean {
    const found = this.text[this.at] === character;
    if (found) this.at++;
    return found;
  }

  private fail(problem: string): never {
    throw new JsonError(problem, this.at);
  }
}

/** A float as Python's `repr` spells it: 1.0, 1e-05, 1e+16, -0.0; and as its `json` does what is not finite. */
export function floatText(x: number): string {
  if (!Number.isFinite(x)) return Number.isNaN(x) ? "NaN" : x > 0 ? "Infinity" : "-Infinity";
  if (x === 0) return Object.is(x, -0) ? "-0.0" : "0.0";
  // both languages choose the shortest digits that read back as x, but not the same point for the exponent
  const [mantissa, exponent] = x.toExponential().split("e") as [string, string];
  const power = Number(exponent);
  if (power < -4 || power >= 16) {
    const digits = String(Math.abs(power)).padStart(2, "0");
    return `${mantissa}e${power < 0 ? "-" : "+"}${digits}`;
  }
  // JavaScript itself turns to exponents below 1e-6 and from 1e21 on only
  const text = String(x);
  return text.includes(".") ? text : `${text}.0`;
}

/** A number of JavaScript's as JSON: an integer that it holds exactly, else a float. */
export function numberText(x: number): string {
  return Number.isSafeInteger(x) && !Object.is(x, -0) ? String(x) : floatText(x);
}

const QUOTED = /["\\\u0000-\u001f]/g;
const SHORT: Record<string, string> = {
  '"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t",
};

/** A string in double quotes, everything but quotes, backslashes and control characters as it is. */
export function stringText(text: string): string {
  return `"${text.replace(QUOTED, (c) => SHORT[c] ?? `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`)}"`;
}

/** A value that JSON cannot hold; the message says what it is. */
export class NotJsonError extends Error {
  override name = "NotJsonError";
}

/**
 * A value as Python's `json.dumps(value, ensure_ascii=False)` spells it: a `JsonValue`, or one made of JavaScript's own
 * null, booleans, strings, numbers, bigints, arrays, Maps and plain objects.
 *
 * @throws NotJsonError it holds something else, or is nested too deeply.
 */
export function writeJson(value: unknown): string {
  return write(value, 0);
}

function write(value: unknown, depth: number): string {
  if (typeof value === "string") return stringText(value);
  if (value === null || typeof value === "boolean" || typeof value === "bigint") return String(value);
  if (typeof value === "number") return numberText(value);
  if (value instanceof JsonNumber) return value.text;
  // a circular value ends here, too
  if (depth >= MAX_DEPTH) throw new NotJsonError("is nested too deeply; flatten it");
  if (Array.isArray(value)) {
    const items: string[] = [];
    for (let i = 0; i < value.length; i++) items.push(write(value[i], depth + 1));
    return `[${items.join(", ")}]`;
  }
  const members = entriesOf(value);
  if (members === undefined) throw new NotJsonError(`cannot be written as JSON (${kindOf(value)} is not a JSON value)`);
  const written: string[] = [];
  for (const [key, member] of members) {
    if (typeof key !== "string") throw new NotJsonError(`cannot be written as JSON (${kindOf(key)} as a key)`);
    written.push(`${stringText(key)}: ${write(member, depth + 1)}`);
  }
  return `{${written.join(", ")}}`;
}

/** The members of a Map or of a plain object, in their order; undefined for everything else. */
export function entriesOf(value: unknown): [unknown, unknown][] | undefined {
  if (value instanceof Map) return [...value];
  if (typeof value !== "object" || value === null || Array.isArray(value) || value instanceof JsonNumber) return undefined;
  const prototype: unknown = Object.getPrototypeOf(value);
  // an object of another window or frame has another Object.prototype, which has no prototype of its own either
  const isPlain = prototype === null || Object.getPrototypeOf(prototype) === null;
  return isPlain ? Object.entries(value) : undefined;
}

/** What a value is, for messages. */
export function kindOf(value: unknown): string {
  if (value === null) return "null";
  if (value === undefined) return "undefined";
  if (Array.isArray(value)) return "a list";
  if (entriesOf(value)) return "an object";
  if (typeof value === "string") return "a string";
  if (typeof value === "boolean") return "a boolean";
  if (typeof value === "number" || typeof value === "bigint" || value instanceof JsonNumber) return "a number";
  return typeof value === "object" ? (value.constructor?.name ?? "an object") : `a ${typeof value}`;
}
