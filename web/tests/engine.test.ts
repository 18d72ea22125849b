/** Whole answers of the built modules, against Python's: scores, probabilities, envelopes. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Core, FormatError, JsonNumber, RequestError, load, parseJson, relaxedSupported, type Isa, type Model } from "../src/index.js";
import { lines, modelBytes } from "./cases.js";
import { moduleBytes } from "./shipped.js";

interface Case {
  model: string;
  name: string;
  body: string;
  response?: string;
  logits?: Record<string, number[]>;
  refused?: { loc: unknown[]; reason: string };
}

const cases = lines<Case>("answers");
const isas: Isa[] = relaxedSupported() ? ["wasm128", "wasm128_relaxed"] : ["wasm128"];
const LOGIT_BOUND = 1e-4;
const PROBABILITY_BOUND = 1e-5;

for (const isa of isas) {
  const models = new Map<string, Model>();
  const modelOf = async (name: string): Promise<Model> => {
    let found = models.get(name);
    if (!found) models.set(name, (found = await load(modelBytes(name), { module: moduleBytes(isa) })));
    return found;
  };

  test(`${isa}: answers are Python's`, async () => {
    for (const { model: name, name: what, body, response, logits, refused } of cases) {
      const model = await modelOf(name);
      assert.equal(model.isa, isa);
      assert.equal(model.architecture, name.slice(0, 2) === "s2" ? "s2" : "s1");
      if (!response || !logits) {
        assert.throws(() => model.decideText(body), (error) => {
          assert.deepEqual({ loc: (error as RequestError).loc, reason: (error as RequestError).reason }, refused, body);
          return true;
        });
        continue;
      }
      near(parseJson(model.decideText(body)), parseJson(response), what);
      const { state, questions } = Object.fromEntries(parseJson(body) as Map<string, unknown>) as never;
      const found = model.logits(state, questions);
      for (const [id, row] of Object.entries(logits))
        row.forEach((z, i) => assert.ok(Math.abs(found[id]![i]! - z) <= LOGIT_BOUND * Math.max(1, Math.abs(z)), `${what}: ${id}`));
    }
  });

  test(`${isa}: a compiled question set answers alike, alone and among others`, async () => {
    const model = await modelOf("byte");
    const questions = {
      a: { type: "choice", instructions: "Which?", criteria: ["x", "y", "z"], option_order: [2, 0, 1] },
      b: { type: "noul", instructions: "Is it?" },
    } as const;
    const states = ["one", { two: 2 }, ["three"], "four ".repeat(400)];
    const compiled = model.compile(questions);
    const all = compiled.many(states);
    states.forEach((state, i) => {
      const alone = model.decide(state, questions);
      assert.deepEqual(all[i], alone);
      const p = compiled.step(state);
      const { a, b } = alone.answers as any;
      const flat = [a.probabilities.x, a.probabilities.y, a.probabilities.z, 1 - b.noul, b.noul];
      flat.forEach((value, k) => assert.ok(Math.abs(p[k]! - value) < 1e-6));
      assert.deepEqual([...compiled.offsets], [0, 3, 5]);
    });
    assert.ok((model.decide(states[3], questions).answers["b"] as any).x_truncated);
    assert.throws(() => compiled.many("text"), RequestError);
    assert.throws(() => compiled.many(["a", null]), (error) => error instanceof RequestError && error.loc[1] === 1);
  });
}

test("answers below a least confidence are marked, whoever asks", async () => {
  const model = await load(modelBytes("byte"), { module: moduleBytes("wasm128") });
  const questions = { q: { type: "choice", instructions: "Which?", criteria: ["x", "y"] } } as const;
  const { probabilities } = model.decide("a", questions).answers["q"] as any;
  const top = Math.max(probabilities.x, probabilities.y);
  const compiled = model.compile(questions);
  for (const minConfidence of [top - 1e-9, top + 1e-9, { "choice:2": top + 1e-9 }, new Map([["choice:3-5", 1]])]) {
    const isBelow = typeof minConfidence === "number" ? top < minConfidence : "choice:2" in minConfidence;
    const { q } = model.decide("a", questions, { minConfidence }).answers as any;
    assert.equal(q.x_abstained, isBelow || undefined);
    assert.equal(typeof q.x_min_confidence, "number");
    assert.deepEqual(compiled.decide("a", { minConfidence }).answers["q"], q);
    assert.deepEqual(compiled.many(["a"], { minConfidence })[0]!.answers["q"], q);
    assert.deepEqual(model.decideMany(["a"], questions, { minConfidence })[0]!.answers["q"], q);
  }
  assert.throws(() => model.decideText('{"state": "a", "questions": {}, "x_long": true}'), (error) => (error as RequestError).loc[0] === "x_long");
  const isRefused = (error: unknown): boolean => error instanceof RequestError && error.loc[0] === "minConfidence";
  assert.throws(() => model.decide("a", questions, { minConfidence: 2 }), isRefused);
  assert.throws(() => compiled.many(["a"], { minConfidence: {} }), isRefused);
});

test("questions give their memory back: kept ones when others come, compiled ones when they are freed", async () => {
  const model = await load(modelBytes("byte"), { module: moduleBytes("wasm128") });
  const asked = (i: number) => ({ q: { type: "noul", instructions: `Is it ${i}? ${"word ".repeat(60)}` } }) as const;
  const prepare = (i: number) => {
    const kept = model.encode("a", asked(i));
    const compiled = model.compile(asked(i));
    assert.deepEqual(compiled.sequences("a"), [kept["q"]]);
    compiled.free();
    compiled.free();
    assert.throws(() => compiled.step("a"), /were freed/);
  };
  for (let i = 0; i < 100; i++) prepare(i);
  const { byteLength } = model.core.exports.memory.buffer;
  for (let i = 0; i < 1000; i++) prepare(i);
  assert.equal(model.core.exports.memory.buffer.byteLength, byteLength);
});

/** Equal in shape, order of names and texts; numbers within the bounds. */
function near(found: unknown, expected: unknown, what: string): void {
  if (expected instanceof JsonNumber) {
    assert.ok(found instanceof JsonNumber, what);
    assert.equal(found.isInteger, expected.isInteger, what);
    assert.ok(Math.abs(found.value - expected.value) <= 4 * PROBABILITY_BOUND * Math.max(1, Math.abs(expected.value)), what);
    return;
  }
  if (expected instanceof Map) {
    assert.deepEqual([...(found as Map<string, unknown>).keys()], [...expected.keys()], what);
    for (const [key, value] of expected) near((found as Map<string, unknown>).get(key), value, `${what}: ${key}`);
    return;
  }
  assert.deepEqual(found, expected, what);
}

test("streams, progress, and faults of a file that comes in pieces", async () => {
  const bytes = modelBytes("metaspace");
  const module = moduleBytes("wasm128");
  const pieces = (end: number, size: number) =>
    new ReadableStream<Uint8Array>({
      start(controller) {
        for (let at = 0; at < end; at += size) controller.enqueue(bytes.slice(at, Math.min(at + size, end)));
        controller.close();
      },
    });
  const seen: number[] = [];
  const model = await load(new Response(pieces(bytes.length, 10_007)), { module, onProgress: (n) => seen.push(n) });
  const whole = await load(new Blob([bytes as BlobPart]), { module });
  const question = { q: { type: "noul", instructions: "Is it?" } } as const;
  assert.deepEqual(model.decide("a", question), whole.decide("a", question));
  assert.equal(seen.at(-1), bytes.length);
  for (const end of [0, 1, 3, 10, 1000, 200_000, bytes.length - 100])
    await assert.rejects(load(new Response(pieces(end, 65_536)), { module }), /truncated|empty/, String(end));
  await assert.rejects(load(new Response("no", { status: 404 }), { module }), /404/);
  const core = await Core.open({ module });
  const one = await load(bytes, { core });
  one.free();
  assert.throws(() => one.decide("a", question), /was freed/);
});

test("other tokenizers are refused by their names", async () => {
  for (const name of ["wordpiece", "bert_cased"])
    await assert.rejects(load(modelBytes(name), { module: moduleBytes("wasm128") }), (error) => {
      assert.ok(error instanceof FormatError);
      assert.match(error.message, /"(WordPiece|BertNormalizer)" is not supported in a browser/);
      return true;
    });
});

test("s1-pico, on the request of the README", async () => {
  const url = new URL("../../../src/skyinfer/models/s1-pico.gguf", import.meta.url);
  const model = await load(readFileSync(url), { module: moduleBytes("wasm128") });
  const request = parseJson(readFileSync(new URL("../../../examples/request.json", import.meta.url), "utf8")) as Map<string, any>;
  const response = model.decide(request.get("state"), request.get("questions"), { timing: true });
  assert.equal(response.model, "s1-pico");
  assert.deepEqual(Object.keys(response.answers), ["action", "danger", "margin"]);
  assert.ok(response.micros! > 0);
});
