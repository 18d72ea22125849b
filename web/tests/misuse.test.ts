/** What a caller or a file may get wrong, beyond faulty requests: calls out of turn, odd values, hostile parts of a file. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { FormatError, RequestError, flappy, load, parseJson } from "../src/index.js";
import { readTokenizerJson } from "../src/text/tokenizer_json.js";
import { moduleBytes } from "./shipped.js";

const module = moduleBytes("wasm128");
const file = readFileSync(new URL("../../../src/skyinfer/models/s1-pico.gguf", import.meta.url));
const noul = { q: { type: "noul", instructions: "Is it?" } } as const;
const which = (criteria: unknown, more: object = {}) => ({ q: { type: "choice", instructions: "Which?", criteria, ...more } }) as never;

test("probabilities are numbers and labels what was given, whoever asked the same before", async () => {
  const model = await load(file, { module });
  const named = model.decide("a", which(["choice", "type", "score"])).answers["q"] as any;
  for (const p of Object.values(named.probabilities)) assert.equal(typeof p, "number");
  const text = '{"state": "a", "questions": {"q": {"type": "choice", "instructions": "Which?", "criteria": [1, 2]}}}';
  const kinds = new Map<string, unknown>([["number", [1, 2]], ["bigint", [1n, 2n]]]);
  for (let round = 0; round < 2; round++) {
    model.decideText(text);
    for (const [kind, labels] of kinds) assert.equal(typeof (model.decide("a", which(labels)).answers["q"] as any).choice, kind);
    const { questions } = Object.fromEntries(parseJson(text) as Map<string, unknown>) as any;
    assert.equal(String((model.decide("a", questions).answers["q"] as any).choice), "1");
  }
});

test("values that are no JSON are refused where they are", async () => {
  const model = await load(file, { module });
  const bare = Object.create(null) as object;
  const refused = (ask: () => unknown, ...loc: unknown[]) =>
    assert.throws(ask, (error) => error instanceof RequestError && assert.deepEqual(error.loc, loc) === undefined);
  refused(() => model.decide("a", which(["a"], { type: bare })), "questions", "q", "type");
  refused(() => model.decide("a", which(new Map([[bare, 1]]), { type: "noul" })), "questions", "q", "criteria");
  refused(() => model.decide(Symbol("a"), noul), "state");
  refused(() => model.decideMany({} as never, noul), "states");
  refused(() => model.decideMany(null as never, noul), "states");
  const compiled = model.compile(noul);
  for (const ids of [[1.5], [NaN], [-1], [2 ** 32], ["1"], [523]]) assert.throws(() => compiled.runTokens(ids as number[]), RangeError);
});

test("messages are cut between characters, as Python cuts them", async () => {
  const model = await load(file, { module });
  assert.throws(() => model.decide("a", which(["a"], { type: "\u{1f680}".repeat(70) })), (error) => {
    assert.equal((error as RequestError).reason, `must be choice, score or noul, not '${"\u{1f680}".repeat(56)}...`);
    return true;
  });
});

test("states may come from an iterator that asks other questions meanwhile", async () => {
  const model = await load(file, { module });
  function* states(): Generator<string> {
    for (let i = 0; i < 70; i++) {
      model.decide("a", { q: { type: "noul", instructions: `Is it ${i}?` } });
      yield `state ${i}`;
    }
  }
  assert.equal(model.decideMany(states(), noul).length, 70);
});

test("a game that was freed cannot be used, and is freed once", async () => {
  const { core } = await load(file, { module });
  const game = new flappy.Flappy(core, 1);
  game.free();
  game.free();
  assert.throws(() => game.step(true), /was freed/);
});

test("a model too short for any question is opened, and refuses each", async () => {
  const bytes = Buffer.from(new Uint8Array(file));
  const key = "modern-bert.decision.max_tokens";
  bytes.writeUInt32LE(2, bytes.indexOf(key) + key.length + 4);
  const model = await load(bytes, { module });
  assert.throws(() => model.decide("a", noul), (error) => error instanceof RequestError && error.loc.at(-1) === "criteria");
});

test("the rest of a faulty file is not waited for", async () => {
  let cancelled = 0;
  const stream = (bytes: Uint8Array) =>
    new ReadableStream<Uint8Array>({ pull: (controller) => controller.enqueue(bytes), cancel: () => void cancelled++ }, { highWaterMark: 0 });
  const text = new TextEncoder().encode("<!doctype html>".repeat(10_000));
  await assert.rejects(load(new Response(stream(text)), { module }), FormatError);
  await assert.rejects(load(new Response(stream(text), { status: 404 }), { module }), /404/);
  await assert.rejects(load(new Response(stream(text)), { module: new Uint8Array(8) }), /module/);
  await new Promise(setImmediate);
  assert.equal(cancelled, 3);
});

test("hostile tokenizers are refused in a line that is fit to be shown", () => {
  const step = { type: "Prepend", prepend: "a" };
  const model = { type: "BPE", vocab: { a: 0 }, merges: [] as unknown[] };
  const deep = (n: number) => `{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "normalizer": ${'{"type": "Sequence", "normalizers": ['.repeat(n)}${"]}".repeat(n)}}`;
  const files = [
    deep(20_000),
    `{"model": {"type": ${"[".repeat(100_000)}${"]".repeat(100_000)}}}`,
    JSON.stringify({ model, normalizer: { type: "Sequence", normalizers: Array(300).fill(step) } }),
    JSON.stringify({ model: { ...model, merges: [["b".repeat(100_000), "c"]] } }),
    JSON.stringify({ model, normalizer: { type: "\u202e\u001b[31m\n" } }),
    "\u202e\u001b[31m\n",
  ];
  for (const text of files)
    assert.throws(() => readTokenizerJson(text, "key"), (error) => {
      assert.ok(error instanceof FormatError, String(error));
      assert.ok(error.message.length < 300);
      assert.doesNotMatch(error.message, /[\p{C}\p{Zl}\p{Zp}]/u);
      return true;
    });
});

test("memory does not grow with decisions", async () => {
  const model = await load(file, { module });
  const ask = (i: number): void => {
    model.decide(`vy ${i} dx ${i % 97}`, flappy.QUESTIONS);
    model.decideText(`{"state": [${i}], "questions": {"q${i % 70}": {"type": "noul", "instructions": "Is it?"}}}`);
  };
  for (let i = 0; i < 200; i++) ask(i);
  const { byteLength } = model.core.exports.memory.buffer;
  for (let i = 0; i < 1000; i++) ask(i);
  assert.equal(model.core.exports.memory.buffer.byteLength, byteLength);
});
