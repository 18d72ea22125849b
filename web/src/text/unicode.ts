/** Characters as the tokenizers package knows them, by the generated tables of unicode_tables.ts. */

import { LETTERS, NORMALIZED, NUMBERS, SPACES } from "./unicode_tables.js";

export const OTHER = 0;
export const LETTER = 1;
export const NUMBER = 2;
export const SPACE = 3;

/** One byte for each code point that a table reaches: its number in the runs of the tables. */
function painted(...tables: [string, number][]): Uint8Array {
  const runs = tables.map(([table, mark]) => [numbersOf(table), mark] as const);
  const ends = runs.map(([numbers]) => numbers.reduce((sum, n) => sum + n, 0));
  const out = new Uint8Array(Math.max(...ends));
  for (const [numbers, mark] of runs)
    for (let i = 0, at = 0; i < numbers.length; i += 2) {
      const begin = at + numbers[i]!;
      at = begin + numbers[i + 1]!;
      out.fill(mark, begin, at);
    }
  return out;
}

/** In base 26; the last digit of a number is in upper case. */
function numbersOf(table: string): number[] {
  return (table.match(/[a-z]*[A-Z]/g) ?? []).map((digits) =>
    [...digits.toLowerCase()].reduce((n, digit) => 26 * n + digit.charCodeAt(0) - 97, 0),
  );
}

const classes = painted([LETTERS, LETTER], [NUMBERS, NUMBER], [SPACES, SPACE]);

/** What the pattern of byte-level tokenizers sees in a code point: a letter, a number, white space, or something else. */
export function classOf(code: number): number {
  return code < classes.length ? classes[code]! : OTHER;
}

let active: Uint8Array | undefined;

/**
 * A normalization form as the package computes it, whose Unicode is older than any browser's.
 *
 * Characters that it does not know it leaves alone, and nothing moves or joins across them; all others are treated alike in
 * every version of Unicode since, which is what its stability policy promises.
 */
export function normalized(text: string, form: "NFC" | "NFD" | "NFKC" | "NFKD"): string {
  if (text.normalize(form) === text) return text;
  active ??= painted([NORMALIZED, 1]);
  let out = "";
  let begin = 0;
  let inRun = false;
  let at = 0;
  for (; at < text.length; ) {
    const code = text.codePointAt(at)!;
    const isActive = code < active.length && active[code] === 1;
    if (isActive !== inRun) {
      out += inRun ? text.slice(begin, at).normalize(form) : text.slice(begin, at);
      begin = at;
      inRun = isActive;
    }
    at += code > 0xffff ? 2 : 1;
  }
  return out + (inRun ? text.slice(begin).normalize(form) : text.slice(begin));
}
