/** Where a model's bytes come from, as a stream that is read in order and kept no longer than needed. */

import { FormatError } from "../errors.js";

/** What `load` opens: an address, or bytes in one of the browser's forms. */
export type ModelInput = string | URL | ArrayBuffer | ArrayBufferView | Blob | globalThis.Response;

/** Bytes read so far, and in all, where that is known. */
export type Progress = (loaded: number, total: number | undefined) => void;

/** A stream of bytes, taken in order. */
export class ByteStream {
  private readonly kept: Uint8Array[] = [];
  private nKept = 0;
  private loaded = 0;
  private ended = false;

  constructor(
    /** What messages call it. */
    readonly path: string,
    private readonly next: () => Promise<Uint8Array | undefined>,
    /** Tells the source that no more of it is wanted. */
    readonly cancel: () => void,
    private readonly total: number | undefined,
    private readonly progress: Progress | undefined,
  ) {}

  /** Reads on until `n` bytes are there; false where the stream ends before. */
  private async fill(n: number): Promise<boolean> {
    while (this.nKept < n && !this.ended) {
      const chunk = await this.next();
      if (!chunk) {
        this.ended = true;
        break;
      }
      this.kept.push(chunk);
      this.nKept += chunk.length;
      this.loaded += chunk.length;
      this.progress?.(this.loaded, this.total);
    }
    return this.nKept >= n;
  }

  /** The bytes from here on, `n` of them or all there are, without going on. */
  async peek(n: number): Promise<Uint8Array> {
    await this.fill(n);
    return this.whole();
  }

  private whole(): Uint8Array {
    if (this.kept.length === 1) return this.kept[0]!;
    const all = new Uint8Array(this.nKept);
    let at = 0;
    for (const chunk of this.kept) {
      all.set(chunk, at);
      at += chunk.length;
    }
    this.kept.splice(0, this.kept.length, all);
    return all;
  }

  /** The next `n` bytes. @throws FormatError the stream ends before; `what` names them. */
  async take(n: number, what: string): Promise<Uint8Array> {
    if (!(await this.fill(n)))
      throw new FormatError(`${this.path}: truncated: ${what} ends past the ${this.loaded} bytes of the file`);
    const first = this.kept[0];
    if (first && first.length >= n) {
      this.kept[0] = first.subarray(n);
      this.nKept -= n;
      return first.subarray(0, n);
    }
    const all = this.whole();
    this.kept[0] = all.subarray(n);
    this.nKept -= n;
    return all.subarray(0, n);
  }

  async skip(n: number, what: string): Promise<void> {
    for (let left = n; left > 0; ) {
      const step = Math.min(left, 1 << 20);
      await this.take(step, what);
      left -= step;
    }
  }
}

/** Opens an input. @throws Error the address cannot be read, or names something that is not there. */
export async function openStream(input: ModelInput, progress?: Progress, signal?: AbortSignal): Promise<ByteStream> {
  if (typeof input === "string" || input instanceof URL) {
    const response = await fetch(input, signal ? { signal } : {});
    return streamOf(response, String(input), progress);
  }
  if (input instanceof globalThis.Response) return streamOf(input, input.url || "the response", progress);
  if (input instanceof Blob)
    return reading(input.stream(), "name" in input ? String(input.name) : "the file", input.size, progress);
  if (!(input instanceof ArrayBuffer) && !ArrayBuffer.isView(input))
    throw new TypeError("a model is loaded from an address, an ArrayBuffer, a typed array, a Blob or a Response");
  const bytes = ArrayBuffer.isView(input)
    ? new Uint8Array(input.buffer, input.byteOffset, input.byteLength)
    : new Uint8Array(input);
  const chunks = [bytes];
  return new ByteStream("model", () => Promise.resolve(chunks.pop()), () => {}, bytes.length, progress);
}

function streamOf(response: globalThis.Response, path: string, progress: Progress | undefined): ByteStream {
  if (!response.ok) {
    void response.body?.cancel();
    throw new Error(`${path}: the server answered ${response.status} ${response.statusText}`.trimEnd());
  }
  // a compressed body has another length than its bytes will have
  const length = response.headers.has("content-encoding") ? null : response.headers.get("content-length");
  return reading(response.body ?? new Blob([]).stream(), path, length ? Number(length) : undefined, progress);
}

function reading(stream: ReadableStream<Uint8Array>, path: string, total: number | undefined, progress: Progress | undefined): ByteStream {
  const source = stream.getReader();
  const next = async (): Promise<Uint8Array | undefined> => {
    for (;;) {
      const { value, done } = await source.read();
      if (done) return undefined;
      if (value.length > 0) return value;
    }
  };
  const cancel = (): void => void source.cancel().catch(() => {}); // it may have failed itself
  return new ByteStream(path, next, cancel, total, progress);
}
