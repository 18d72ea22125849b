/** What is shipped with the Python package. */

import { readFileSync } from "node:fs";

export function moduleBytes(isa: "wasm128" | "wasm128_relaxed"): Uint8Array<ArrayBuffer> {
  const file = isa === "wasm128" ? "skyinfer.wasm" : "skyinfer-relaxed.wasm";
  return new Uint8Array(readFileSync(new URL(`../../../src/skyinfer/web/${file}`, import.meta.url)));
}
