/** Pre-tokenizers: how a text is split into the words that byte-pair encoding takes one by one. */

import { LETTER, NUMBER, OTHER, SPACE, classOf } from "./unicode.js";

/**
 * `split` gives the words of a piece of text, `isFirst` where it begins the text; `spell` is what encoding sees of a word.
 * Apart, so that words can be remembered as they stand in the text.
 */
export interface WordSplitter {
  split(text: string, isFirst: boolean): string[];
  spell(word: string): string;
}

export type Behavior = "Removed" | "Isolated" | "MergedWithPrevious" | "MergedWithNext" | "Contiguous";

const asItIs = (word: string): string => word;

/** The characters that stand for the 256 bytes in byte-level vocabularies (GPT-2's). */
export const BYTE_CHARACTERS: readonly string[] = (() => {
  let spare = 256;
  return Array.from({ length: 256 }, (_, byte) => {
    const isShown = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    return String.fromCharCode(isShown ? byte : spare++);
  });
})();

/** Every byte of the text in UTF-8 as a character. */
function asBytes(text: string): string {
  let out = "";
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    if (code > 127) {
      for (const byte of new TextEncoder().encode(text.slice(i))) out += BYTE_CHARACTERS[byte];
      break;
    }
    out += BYTE_CHARACTERS[code];
  }
  return out;
}

export function byteLevel(addPrefixSpace: boolean, useRegex: boolean): WordSplitter {
  return {
    split(text) {
      if (addPrefixSpace && !text.startsWith(" ")) text = ` ${text}`;
      return useRegex ? gpt2Words(text) : [text];
    },
    spell: asBytes,
  };
}

const CONTRACTION = /'(?:[stmd]|re|ve|ll)/y;

/**
 * GPT-2's words: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * Written out because letters, numbers and spaces are those of the tokenizers package, not of the browser.
 */
export function gpt2Words(text: string): string[] {
  const words: string[] = [];
  const n = text.length;
  let at = 0;
  while (at < n) {
    const begin = at;
    let kind = classAt(text, at);
    if (kind === SPACE) {
      const following = at + 1 < n ? classAt(text, at + 1) : SPACE;
      if (text.charCodeAt(at) !== 32 || following === SPACE) {
        // all spaces but the last, which goes with what follows it if it can; and all at the end of the text
        do at++;
        while (at < n && classAt(text, at) === SPACE);
        if (at < n && at - begin > 1) at--;
        words.push(text.slice(begin, at));
        continue;
      }
      at++;
      kind = following;
    } else if (text.charCodeAt(at) === 39) {
      CONTRACTION.lastIndex = at;
      const found = CONTRACTION.exec(text);
      if (found) {
        at += found[0].length;
        words.push(found[0]);
        continue;
      }
    }
    do at += text.codePointAt(at)! > 0xffff ? 2 : 1;
    while (at < n && classAt(text, at) === kind);
    words.push(text.slice(begin, at));
  }
  return words;
}

function classAt(text: string, at: number): number {
  const code = text.charCodeAt(at);
  if (code < 128) return ASCII_CLASSES[code]!;
  return classOf(code < 0xd800 || code > 0xdfff ? code : text.codePointAt(at)!);
}

const ASCII_CLASSES = Uint8Array.from({ length: 128 }, (_, code) => {
  const kind = classOf(code);
  return kind === LETTER || kind === NUMBER || kind === SPACE ? kind : OTHER;
});

/** Splits at a text. `invert`: what matches and what does not change places. */
export function splitAt(pattern: string, behavior: Behavior, invert: boolean): WordSplitter {
  return { split: (text) => divided(text, pattern, behavior, invert), spell: asItIs };
}

/** Spaces as `replacement`, which begins a word; in front of the text, too, by `scheme`. */
export function metaspace(replacement: string, scheme: "first" | "never" | "always", isSplit: boolean): WordSplitter {
  return {
    split(text, isFirst) {
      text = text.replaceAll(" ", replacement);
      const isPrepended = scheme === "always" || (scheme === "first" && isFirst);
      if (isPrepended && !text.startsWith(replacement)) text = replacement + text;
      return isSplit ? divided(text, replacement, "MergedWithNext", false) : [text];
    },
    spell: asItIs,
  };
}

/** One after the other, each on the words of the one before. */
export function inTurn(steps: readonly WordSplitter[]): WordSplitter {
  return {
    split(text, isFirst) {
      let words = [text];
      steps.forEach((step, i) => {
        words = words.flatMap((word, place) => step.split(word, isFirst && place === 0));
        if (i + 1 < steps.length) words = words.map((word) => step.spell(word));
      });
      return words;
    },
    spell: (word) => steps.at(-1)?.spell(word) ?? word,
  };
}

/** The text whole. */
export const undivided: WordSplitter = { split: (text) => [text], spell: asItIs };

function divided(text: string, pattern: string, behavior: Behavior, invert: boolean): string[] {
  const parts: { text: string; isMatch: boolean }[] = [];
  const add = (begin: number, end: number, isMatch: boolean): void => {
    if (begin < end) parts.push({ text: text.slice(begin, end), isMatch: isMatch !== invert });
  };
  let at = 0;
  for (let found = text.indexOf(pattern); found >= 0; found = text.indexOf(pattern, at)) {
    add(at, found, false);
    at = found + pattern.length;
    add(found, at, true);
  }
  add(at, text.length, false);
  if (behavior === "Removed") return parts.filter((part) => !part.isMatch).map((part) => part.text);
  if (behavior === "Isolated") return parts.map((part) => part.text);
  if (behavior === "MergedWithNext") parts.reverse();
  const out: string[] = [];
  let previous = false;
  for (const { text: part, isMatch } of parts) {
    const joins = behavior === "Contiguous" ? isMatch === previous : isMatch && !previous;
    if (joins && out.length > 0) {
      const last = out.length - 1;
      out[last] = behavior === "MergedWithNext" ? part + out[last]! : out[last]! + part;
    } else out.push(part);
    previous = isMatch;
  }
  return behavior === "MergedWithNext" ? out.reverse() : out;
}
