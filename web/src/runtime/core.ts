/**
 * The C core as a WebAssembly module: one instance, its memory, and its exports (csrc/wasm/exports.c) with names for numbers.
 *
 * There are two builds. The relaxed one uses fused multiply-adds where the machine has them, which a browser may or may not
 * know; the plain one gives the same bits everywhere.
 */

import { SkyinferError } from "../errors.js";

/** The two builds by their instruction set. */
export type Isa = "wasm128" | "wasm128_relaxed";
const FILES: Record<Isa, string> = { wasm128: "skyinfer.wasm", wasm128_relaxed: "skyinfer-relaxed.wasm" };

/** Where a module comes from: an address, its bytes, or compiled already. */
export type ModuleInput = Address | WebAssembly.Module;
type Address = string | URL | ArrayBuffer | ArrayBufferView<ArrayBuffer>;

export interface CoreOptions {
  /** Default: relaxed where the browser knows it. */
  isa?: Isa;
  /** The module itself, where it is not beside this file. */
  module?: ModuleInput;
}

/** Exports of csrc/wasm/exports.c. Addresses are whole numbers; 0 is none. */
export interface Exports {
  memory: WebAssembly.Memory;
  _initialize?(): void;
  sky_web_alloc(nBytes: number): number;
  sky_web_free(address: number): void;
  sky_web_tensors(sizes: number, tensors: number, most: number): number;
  sky_web_model(sizes: number, constants: number, layerIsGlobal: number, qkvTableBytes: number): number;
  sky_web_model_set(
    model: number, name: number, dtype: number, firstRow: number, rows: number, cols: number, data: number, isPart: number,
  ): number;
  sky_web_model_freeze(model: number): number;
  sky_web_model_error(model: number, text: number, nBytes: number): void;
  sky_web_model_isa(model: number): number;
  sky_web_model_bytes(model: number): number;
  sky_web_model_free(model: number): void;
  sky_web_questions(model: number, n: number, sepId: number, numbers: number): number;
  sky_web_questions_error(questions: number): number;
  sky_web_questions_free(questions: number): void;
  sky_web_sequence(questions: number, question: number, state: number, tokenIds: number, nStateUsed: number): number;
  sky_web_run(model: number, plan: number, questions: number, nStates: number, states: number, logits: number): number;
  sky_web_plan_error(plan: number): number;
  sky_web_plan_free(plan: number): void;
  sky_web_answers(questions: number, logits: number, temperatures: number, p: number, answers: number): number;
  sky_web_game_bytes(): number;
  sky_web_game_begin(game: number, difficulty: number, seedLow: number, seedHigh: number): number;
  sky_web_game_step(game: number, thrust: number): number;
  sky_web_game_text(game: number, text: number): number;
  sky_web_game_will_crash(game: number, frames: number): number;
  sky_web_game_margin(game: number): number;
  sky_web_game_pilot(game: number): number;
  sky_web_game_numbers(game: number, numbers: number): void;
}

/** A module that uses one relaxed instruction, f32x4.relaxed_madd, in a function that nobody calls. */
// prettier-ignore
const RELAXED_PROBE = Uint8Array.of(
  0, 97, 115, 109, 1, 0, 0, 0, 1, 8, 1, 96, 3, 123, 123, 123, 1, 123, 3, 2, 1, 0, 10, 13, 1, 11, 0,
  32, 0, 32, 1, 32, 2, 253, 133, 2, 11,
);

/** Whether this browser knows relaxed SIMD. */
export function relaxedSupported(): boolean {
  return WebAssembly.validate(RELAXED_PROBE);
}

export class Core {
  readonly exports: Exports;

  private constructor(exports: Exports) {
    this.exports = exports;
    exports._initialize?.();
  }

  /** A new instance. @throws SkyinferError this browser has no SIMD in WebAssembly, or the module is not skyinfer's. */
  static async open(options: CoreOptions = {}): Promise<Core> {
    const isa = options.isa ?? (relaxedSupported() ? "wasm128_relaxed" : "wasm128");
    const input = options.module ?? new URL(`./${FILES[isa]}`, import.meta.url);
    try {
      const isModule = input instanceof WebAssembly.Module;
      const module = isModule ? (input as WebAssembly.Module) : await WebAssembly.compile(await moduleBytes(input as Address));
      const instance = await WebAssembly.instantiate(module, {});
      const exports = instance.exports as unknown as Exports;
      if (typeof exports.sky_web_model !== "function") throw new SkyinferError("the module is not skyinfer's");
      return new Core(exports);
    } catch (error) {
      if (error instanceof WebAssembly.CompileError)
        throw new SkyinferError(`this browser cannot run the module of ${isa}: ${error.message}`, { cause: error });
      throw error;
    }
  }

  /** Views of the memory as it is now; a later allocation may leave them behind. */
  get bytes(): Uint8Array {
    return new Uint8Array(this.exports.memory.buffer);
  }

  floats(address: number, length: number): Float32Array {
    return new Float32Array(this.exports.memory.buffer, address, length);
  }

  /** @throws RangeError there is no more memory. */
  alloc(nBytes: number): number {
    const address = this.exports.sky_web_alloc(nBytes);
    if (!address) throw new RangeError(`out of memory: ${nBytes} bytes`);
    return address;
  }

  free(address: number): void {
    if (address) this.exports.sky_web_free(address);
  }

  /** A C string. */
  textAt(address: number): string {
    return textIn(this.bytes.subarray(address));
  }

  /** Puts arrays into the memory while `use` has their addresses, and into the arrays what is there afterwards. */
  with<T>(use: (...addresses: number[]) => T, ...arrays: ArrayBufferView[]): T {
    let size = 0;
    const places = arrays.map(({ byteLength }) => {
      const place = size;
      size += (byteLength + 15) & -16;
      return place;
    });
    const address = this.alloc(size || 1);
    try {
      const before = this.bytes;
      arrays.forEach((array, i) => before.set(bytesOf(array), address + places[i]!));
      const found = use(...places.map((place) => address + place));
      const after = this.bytes;
      arrays.forEach((array, i) => bytesOf(array).set(after.subarray(address + places[i]!).subarray(0, array.byteLength)));
      return found;
    } finally {
      this.free(address);
    }
  }
}

/** The C string at the beginning of some bytes. */
export function textIn(bytes: Uint8Array): string {
  return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
}

function bytesOf({ buffer, byteOffset, byteLength }: ArrayBufferView): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength);
}

async function moduleBytes(input: Address): Promise<BufferSource> {
  if (input instanceof ArrayBuffer || ArrayBuffer.isView(input)) return input;
  const url = String(input);
  if (url.startsWith("file:")) {
    const name = "node:fs/promises"; // by a variable, so that bundlers leave it alone
    const { readFile } = (await import(name)) as typeof import("node:fs/promises");
    return (await readFile(new URL(url))) as BufferSource;
  }
  const response = await fetch(url);
  if (!response.ok) throw new SkyinferError(`${url}: the server answered ${response.status}`);
  return response.arrayBuffer();
}
