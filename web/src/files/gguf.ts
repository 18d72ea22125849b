/**
 * The header of a GGUF file: the metadata and where each tensor lies, checked byte by byte; as in Python's gguf.py. What the
 * keys mean is config.ts's business.
 *
 * Format: docs/gguf.md of ggml-org/ggml, versions 2 and 3, little endian. Number types: F32, F16, BF16 and Q8_0.
 */

import { FormatError, printable } from "../errors.js";

const DEFAULT_ALIGNMENT = 32;
const MAX_DIMS = 4;
const MAX_ARRAY_DEPTH = 4;

/** GGMLQuantizationType -> its name, the values of a block, its bytes */
const TENSOR_TYPES = new Map([
  [0, { name: "f32", block: 1, blockBytes: 4 }],
  [1, { name: "f16", block: 1, blockBytes: 2 }],
  [8, { name: "q8_0", block: 32, blockBytes: 34 }],
  [30, { name: "bf16", block: 1, blockBytes: 2 }],
] as const);
export type TensorType = "f32" | "f16" | "bf16" | "q8_0";

/** Numbers of the value types (GGUFValueType). */
const BOOL = 7;
const STRING = 8;
const ARRAY = 9;

/** A whole number is a number where it is exact, else a bigint. */
export type Value = boolean | number | bigint | string | Float | Value[];

/** A number of one of the two floating-point types, which a whole number must not be confused with. */
export class Float {
  constructor(readonly value: number) {}

  toJSON(): number {
    return this.value;
  }
}

export interface TensorInfo {
  name: string;
  /** Rows first (a GGUF header lists the dimensions the other way round). */
  shape: number[];
  type: TensorType;
  /** Bytes from the start of the file. */
  offset: number;
  nBytes: number;
}

/** A file's header. */
export interface GgufHeader {
  /** What messages call the file. */
  path: string;
  version: number;
  metadata: Map<string, Value>;
  tensors: Map<string, TensorInfo>;
}

/** A header does not end in the bytes that are there. */
export class Truncated extends FormatError {}

/**
 * Parses a header out of a file's first bytes.
 *
 * @throws Truncated the bytes end before it does; with more of them it may be right.
 * @throws FormatError not a GGUF file, or a faulty one; the message names the key or tensor.
 */
export function parseHeader(bytes: Uint8Array, path: string): GgufHeader {
  return new Header(bytes, path).parse();
}

/** One pass over the header. Nothing is allocated by a count that the bytes could not hold. */
class Header {
  private pos = 4;
  private readonly view: DataView;
  private readonly decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

  constructor(
    private readonly bytes: Uint8Array,
    private readonly path: string,
  ) {
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  private fail(message: string): never {
    throw new FormatError(`${this.path}: ${message}`);
  }

  parse(): GgufHeader {
    this.checkMagic();
    const version = this.u32("the version");
    if (version !== 2 && version !== 3) {
      if ((version & 0xffff) === 0) this.fail("a big-endian GGUF file; only little-endian ones are supported");
      this.fail(`GGUF version ${version} is not supported (2 and 3 are)`);
    }
    const nTensors = this.u64("the tensor count");
    const nKeys = this.u64("the key count");
    // the least a key takes is length + 1 byte + type + value; a tensor has one dimension at least
    this.need(nKeys * 14, `${nKeys} keys`);
    const metadata = this.metadata(nKeys);
    this.need(nTensors * 33, `${nTensors} tensors`);
    return { path: this.path, version, metadata, tensors: this.tensors(nTensors, this.alignment(metadata)) };
  }

  /** Tells, from the first bytes, what a file is that is not GGUF. */
  private checkMagic(): void {
    const head = String.fromCharCode(...this.bytes.subarray(0, 64));
    if (head.startsWith("GGUF")) return;
    if (!head) throw new Truncated(`${this.path}: the file is empty`);
    if ("GGUF".startsWith(head)) throw new Truncated(`${this.path}: truncated: the file ends after ${head.length} bytes`);
    if (head.startsWith("version https://git-lfs"))
      this.fail("this is a Git LFS pointer; fetch the file itself with `git lfs pull`");
    if (head[8] === "{") this.fail("this is a safetensors file; convert its checkpoint with `skyinfer convert`");
    if (head.startsWith("PK\x03\x04")) this.fail("this is a zip archive (a PyTorch checkpoint?), not a GGUF file");
    if (/^\s*</.test(head)) this.fail("this is a page of HTML, not a GGUF file; is the address right?");
    if (["lmgg", "tjgg", "fmgg"].includes(head.slice(0, 4))) this.fail("this is a GGML file from before GGUF");
    this.fail(`not a GGUF file (it begins with ${JSON.stringify(head.slice(0, 4))})`);
  }

  private need(nBytes: number, what: string): void {
    const left = this.bytes.length - this.pos;
    if (nBytes > left) throw new Truncated(`${this.path}: truncated: ${what} cannot fit into the ${left} bytes left`);
  }

  private u32(what: string): number {
    this.need(4, what);
    this.pos += 4;
    return this.view.getUint32(this.pos - 4, true);
  }

  /** A count or size; one that no file can have is larger than all that is left, and found to be. */
  private u64(what: string): number {
    this.need(8, what);
    this.pos += 8;
    return this.view.getUint32(this.pos - 4, true) * 2 ** 32 + this.view.getUint32(this.pos - 8, true);
  }

  private string(what: string): string {
    const size = this.u64(what);
    this.need(size, what);
    this.pos += size;
    try {
      return this.decoder.decode(this.bytes.subarray(this.pos - size, this.pos));
    } catch {
      this.fail(`${what}: invalid UTF-8`);
    }
  }

  private value(kind: number, what: string): Value {
    if (kind === STRING) return this.string(what);
    if (kind === ARRAY) return this.array(what, 1);
    return this.fixed(kind, 1, what)[0]!;
  }

  private fixed(kind: number, count: number, what: string): Value[] {
    const size = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8][kind];
    if (!size) this.fail(`${what}: unknown value type ${kind}`);
    this.need(count * size, what);
    const { view } = this;
    const begin = this.pos;
    this.pos += count * size;
    const out: Value[] = new Array<Value>(count);
    for (let i = 0, at = begin; i < count; i++, at += size) out[i] = read(view, kind, at);
    if (kind === BOOL)
      return out.map((byte) => ((byte as number) > 1 ? this.fail(`${what}: ${String(byte)} is not a bool`) : byte === 1));
    return out;
  }

  private array(what: string, depth: number): Value[] {
    const kind = this.u32(what);
    const count = this.u64(what);
    const out: Value[] = [];
    if (kind === STRING) {
      this.need(count * 8, `${what}: ${count} strings`);
      for (let i = 0; i < count; i++) out.push(this.string(`${what}: element ${i}`));
      return out;
    }
    if (kind === ARRAY) {
      if (depth >= MAX_ARRAY_DEPTH) this.fail(`${what}: arrays nested more than ${MAX_ARRAY_DEPTH} deep`);
      this.need(count * 12, `${what}: ${count} arrays`);
      for (let i = 0; i < count; i++) out.push(this.array(what, depth + 1));
      return out;
    }
    return this.fixed(kind, count, `${what}: ${count} elements`);
  }

  private metadata(count: number): Map<string, Value> {
    const out = new Map<string, Value>();
    for (let index = 0; index < count; index++) {
      const key = this.string(`the name of key ${index}`);
      const what = `key ${shownName(key)}`;
      if (!key) this.fail(`key ${index} has no name`);
      if (out.has(key)) this.fail(`${what} occurs twice`);
      out.set(key, this.value(this.u32(what), what));
    }
    return out;
  }

  private tensors(count: number, alignment: number): Map<string, TensorInfo> {
    const found = new Map<string, TensorInfo>();
    for (let index = 0; index < count; index++) {
      const name = this.string(`the name of tensor ${index}`);
      const what = `tensor ${shownName(name)}`;
      if (!name) this.fail(`tensor ${index} has no name`);
      if (found.has(name)) this.fail(`${what} occurs twice`);
      const nDims = this.u32(what);
      if (nDims < 1 || nDims > MAX_DIMS) this.fail(`${what}: ${nDims} dimensions (1 to ${MAX_DIMS} are possible)`);
      const shape = Array.from({ length: nDims }, () => this.u64(what)).reverse();
      if (shape.includes(0)) this.fail(`${what}: shape [${shape.join(", ")}] holds a zero`);
      const kind = TENSOR_TYPES.get(this.u32(what) as 0);
      const offset = this.u64(what);
      if (!kind) this.fail(`${what}: its number type is not one of F32, F16, BF16 and Q8_0, which can be read in a browser`);
      if (shape.at(-1)! % kind.block) this.fail(`${what}: rows of ${shape.at(-1)!} values do not divide into blocks of ${kind.block}`);
      if (offset % alignment) this.fail(`${what}: offset ${offset} is not a multiple of the alignment ${alignment}`);
      const nBytes = (shape.reduce((product, n) => product * n, 1) / kind.block) * kind.blockBytes;
      if (!Number.isSafeInteger(offset + nBytes)) this.fail(`${what}: shape [${shape.join(", ")}] is larger than any file`);
      found.set(name, { name, shape, type: kind.name, offset, nBytes });
    }
    const start = Math.ceil(this.pos / alignment) * alignment;
    let end = start;
    let before = "";
    for (const info of [...found.values()].sort((one, other) => one.offset - other.offset)) {
      info.offset += start;
      if (info.offset < end) this.fail(`tensor ${shownName(info.name)} overlaps tensor ${shownName(before)}`);
      end = info.offset + info.nBytes;
      before = info.name;
    }
    return found;
  }

  private alignment(metadata: Map<string, Value>): number {
    const alignment = metadata.get("general.alignment") ?? DEFAULT_ALIGNMENT;
    if (typeof alignment !== "number" || alignment < 1 || !Number.isInteger(Math.log2(alignment)))
      this.fail("key general.alignment: is not a power of two");
    return alignment;
  }
}

function read(view: DataView, kind: number, at: number): Value {
  switch (kind) {
    case 1:
      return view.getInt8(at);
    case 2:
      return view.getUint16(at, true);
    case 3:
      return view.getInt16(at, true);
    case 4:
      return view.getUint32(at, true);
    case 5:
      return view.getInt32(at, true);
    case 6:
      return new Float(view.getFloat32(at, true));
    case 10:
      return narrowed(view.getBigUint64(at, true));
    case 11:
      return narrowed(view.getBigInt64(at, true));
    case 12:
      return new Float(view.getFloat64(at, true));
    default:
      return view.getUint8(at);
  }
}

function narrowed(n: bigint): number | bigint {
  return Number.isSafeInteger(Number(n)) ? Number(n) : n;
}

/** A name out of an untrusted file, fit for one line. */
export function shownName(text: string): string {
  const shown = printable(text.slice(0, 100));
  return shown === text ? text : `"${shown}"`;
}
