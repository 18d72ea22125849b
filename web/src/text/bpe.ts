/** Byte-pair encoding of one word, step by step as the tokenizers package does it. */

import { FormatError, shown } from "../errors.js";

/** The model part of a tokenizer.json. */
export interface BpeModel {
  vocab: Map<string, number>;
  /** Pairs of tokens, best first. */
  merges: readonly (readonly [string, string])[];
  unkToken: string | null;
  fuseUnk: boolean;
  byteFallback: boolean;
  ignoreMerges: boolean;
  continuingPrefix: string;
  endSuffix: string;
}

/** A place in a text and a rank share one number in the queue of merges; a longer text would lose digits. */
const MOST_SYMBOLS = 2 ** 28;

export class Bpe {
  readonly vocab: Map<string, number>;
  private readonly model: BpeModel;
  /** left * width + right -> rank */
  private readonly ranks = new Map<number, number>();
  private readonly newIds: Int32Array;
  private readonly width: number;
  private readonly byteIds: readonly number[] | undefined;

  /** @throws FormatError a merge of tokens that are not in the vocabulary; `source` names the file's key. */
  constructor(model: BpeModel, source: string) {
    this.model = model;
    this.vocab = model.vocab;
    let largest = 0;
    for (const id of model.vocab.values()) if (id > largest) largest = id;
    this.width = largest + 1;
    this.newIds = new Int32Array(model.merges.length);
    const known = (token: string): number => {
      const id = model.vocab.get(token);
      if (id === undefined) throw new FormatError(`${source}: a merge of the token ${shown(token)}, which is not in the vocabulary`);
      return id;
    };
    model.merges.forEach(([left, right], rank) => {
      this.newIds[rank] = known(left + right.slice(model.continuingPrefix.length));
      this.ranks.set(known(left) * this.width + known(right), rank);
    });
    if (model.byteFallback) {
      const ids = Array.from({ length: 256 }, (_, byte) =>
        model.vocab.get(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`),
      );
      this.byteIds = ids.map((id) => id ?? -1);
    }
  }

  /** Token ids of a word. @throws FormatError the unknown token is not in the vocabulary. */
  encode(word: string): number[] {
    if (this.model.ignoreMerges) {
      const whole = this.vocab.get(word);
      if (whole !== undefined) return [whole];
    }
    const symbols = this.symbols(word);
    return symbols.length > 1 ? this.merged(symbols) : symbols;
  }

  /** A token for each character; for those that are in no vocabulary their bytes, or the unknown token. */
  private symbols(word: string): number[] {
    const { unkToken, fuseUnk, continuingPrefix, endSuffix } = this.model;
    const ids: number[] = [];
    let unknown: number | undefined; // seen, and not written yet
    for (let at = 0; at < word.length; ) {
      const end = at + (word.codePointAt(at)! > 0xffff ? 2 : 1);
      let text = word.slice(at, end);
      if (at > 0) text = continuingPrefix + text;
      if (end === word.length) text += endSuffix;
      at = end;
      const id = this.vocab.get(text);
      if (id !== undefined) {
        if (unknown !== undefined) ids.push(unknown);
        unknown = undefined;
        ids.push(id);
        continue;
      }
      const bytes = this.byteIds && Array.from(new TextEncoder().encode(text), (byte) => this.byteIds![byte]!);
      if (bytes && !bytes.includes(-1)) {
        for (const byte of bytes) ids.push(byte); // in front of an unknown token that waits, as the package does it
        continue;
      }
      if (unkToken === null) continue;
      const unk = this.vocab.get(unkToken);
      if (unk === undefined)
        throw new FormatError(`the model's tokenizer fails on a text: its unknown token ${shown(unkToken)} is not in the vocabulary`);
      if (unknown !== undefined && !fuseUnk) ids.push(unknown);
      unknown = unk;
    }
    if (unknown !== undefined) ids.push(unknown);
    return ids;
  }

  /** Merges of neighbours, best rank first and leftmost first among equals, until none is left. */
  private merged(ids: number[]): number[] {
    const n = ids.length;
    if (n >= MOST_SYMBOLS) throw new FormatError(`the model's tokenizer fails on a text: a word of ${n} symbols`);
    const next = new Int32Array(n);
    const previous = new Int32Array(n);
    const gone = new Uint8Array(n);
    const queue = new Queue();
    const offer = (at: number, right: number): void => {
      const rank = this.ranks.get(ids[at]! * this.width + ids[right]!);
      if (rank !== undefined) queue.push(rank * MOST_SYMBOLS + at);
    };
    for (let i = 0; i < n; i++) {
      next[i] = i + 1;
      previous[i] = i - 1;
      if (i + 1 < n) offer(i, i + 1);
    }
    while (queue.size > 0) {
      const entry = queue.pop();
      const at = entry % MOST_SYMBOLS;
      const newId = this.newIds[(entry - at) / MOST_SYMBOLS]!;
      const right = next[at]!;
      if (gone[at] || right >= n) continue;
      // an entry whose pair has changed since counts still where the new pair gives the same token
      const rank = this.ranks.get(ids[at]! * this.width + ids[right]!);
      if (rank === undefined || this.newIds[rank] !== newId) continue;
      ids[at] = newId;
      gone[right] = 1;
      const after = next[right]!;
      next[at] = after;
      if (after < n) previous[after] = at;
      const before = previous[at]!;
      if (before >= 0) offer(before, at);
      if (after < n) offer(at, after);
    }
    const out: number[] = [];
    for (let i = 0; i < n; i = next[i]!) out.push(ids[i]!);
    return out;
  }
}

/** A heap of numbers, smallest first: a word of n symbols takes n log n steps and not n^2. */
class Queue {
  private readonly heap: number[] = [];

  get size(): number {
    return this.heap.length;
  }

  push(entry: number): void {
    const heap = this.heap;
    let i = heap.length;
    heap.push(entry);
    while (i > 0) {
      const parent = (i - 1) >> 1;
      if (heap[parent]! <= entry) break;
      heap[i] = heap[parent]!;
      i = parent;
    }
    heap[i] = entry;
  }

  pop(): number {
    const heap = this.heap;
    const top = heap[0]!;
    const last = heap.pop()!;
    const n = heap.length;
    if (n === 0) return top;
    let i = 0;
    for (;;) {
      let child = 2 * i + 1;
      if (child >= n) break;
      if (child + 1 < n && heap[child + 1]! < heap[child]!) child++;
      if (heap[child]! >= last) break;
      heap[i] = heap[child]!;
      i = child;
    }
    heap[i] = last;
    return top;
  }
}
