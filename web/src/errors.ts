/** The errors that skyinfer raises on bad input, one class for each party that can mend it; as in Python's errors.py. */

/** Base of every error that skyinfer raises on its own account. */
export class SkyinferError extends Error {
  override name = "SkyinferError";
}

/** A model file is faulty. The message names the key, tensor or file. */
export class FormatError extends SkyinferError {
  override name = "FormatError";
}

/** A part of a path in a request: a key, a question id or a place in a list. */
export type PathPart = string | number | boolean | bigint;

/**
 * A state or question cannot be answered as it was given.
 *
 * `loc` is the path to the faulty part, such as `["questions", "action", "criteria", 2]`, `reason` what is wrong there and
 * what to change; `message` joins the two.
 */
export class RequestError extends SkyinferError {
  override name = "RequestError";
  readonly loc: readonly PathPart[];
  readonly reason: string;

  constructor(loc: readonly PathPart[], reason: string) {
    super(loc.length ? `${loc.map(String).join(".")}: ${reason}` : reason);
    this.loc = loc;
    this.reason = reason;
  }
}

/** A text out of an untrusted file, fit for one line: what does not show, or turns what follows around, as escapes. */
export function printable(text: string): string {
  return text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => `\\u{${c.codePointAt(0)!.toString(16)}}`);
}

/** A value of an untrusted file, fit for one line. */
export function shown(value: unknown): string {
  const text = JSON.stringify(value) ?? "undefined";
  return printable(text.length <= 100 ? text : `${text.slice(0, 97)}...`);
}
