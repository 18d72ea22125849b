/** A short run of fuzz.ts. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { load } from "../src/index.js";
import { modelBytes } from "./cases.js";
import { moduleBytes } from "./shipped.js";
import { fuzzFiles, fuzzRequests } from "./fuzz.js";

const pico = new Uint8Array(readFileSync(new URL("../../../src/skyinfer/models/s1-pico.gguf", import.meta.url)));

test("mutated files are refused or read", async () => {
  for (const file of [pico, modelBytes("s2_tight")]) {
    const { answered, refused } = await fuzzFiles(file, 300, 1);
    assert.equal(answered + refused, 300);
    assert.ok(refused > 150 && answered > 0);
  }
});

test("mutated requests are refused or answered", async () => {
  const model = await load(pico, { module: moduleBytes("wasm128") });
  const { answered, refused } = await fuzzRequests(model, 500, 1);
  assert.equal(answered + refused, 500);
  assert.ok(refused > 250 && answered > 0);
});
