/** Tokens that are looked for in a text before it is split into words, as the tokenizers package looks for them. */

import { SPACE, classOf } from "./unicode.js";

export interface AddedToken {
  content: string;
  lstrip: boolean;
  rstrip: boolean;
  /** Looked for in the normalized text, in its own normalized form. */
  normalized: boolean;
  special: boolean;
}

/** A piece of a text: a token's id, or text between tokens. */
export type Piece = { id: number } | { text: string; begin: number };

interface Node {
  next: Map<number, Node>;
  found?: { id: number; token: AddedToken };
}

/** Finds tokens in texts: leftmost first, the longest where several begin at one place, and the first of equal ones. */
export class AddedTokens {
  private readonly root: Node = { next: new Map() };

  /** `tokens`: what is looked for, the id it stands for, and how it strips white space. */
  constructor(tokens: Iterable<{ pattern: string; id: number; token: AddedToken }>) {
    for (const { pattern, id, token } of tokens) {
      let node = this.root;
      for (let i = 0; i < pattern.length; i++) {
        const code = pattern.charCodeAt(i);
        let child = node.next.get(code);
        if (!child) node.next.set(code, (child = { next: new Map() }));
        node = child;
      }
      if (pattern) node.found ??= { id, token };
    }
  }

  /** The text in pieces; empty ones are left out. */
  split(text: string): Piece[] {
    const pieces: Piece[] = [];
    let begin = 0; // of what is in no piece yet
    for (let at = 0; at < text.length; ) {
      const first = this.root.next.get(text.charCodeAt(at));
      if (!first) {
        at++;
        continue;
      }
      let node: Node | undefined = first;
      let end = at + 1;
      let longest: Node["found"];
      let longestEnd = end;
      while (node) {
        if (node.found) {
          longest = node.found;
          longestEnd = end;
        }
        node = end < text.length ? node.next.get(text.charCodeAt(end)) : undefined;
        end++;
      }
      if (!longest) {
        at++;
        continue;
      }
      // the search goes on behind the token itself, whatever it strips
      let from = at;
      let to = longestEnd;
      at = longestEnd;
      if (longest.token.lstrip) {
        while (from > 0 && classOf(text.charCodeAt(from - 1)) === SPACE) from--;
        from = Math.max(from, begin);
      }
      if (longest.token.rstrip) while (to < text.length && classOf(text.charCodeAt(to)) === SPACE) to++;
      if (begin < from) pieces.push({ text: text.slice(begin, from), begin });
      pieces.push({ id: longest.id });
      begin = to;
    }
    if (begin < text.length) pieces.push({ text: text.slice(begin), begin });
    return pieces;
  }
}
