/** Token ids, markers and refusals of whole requests, against Python and, on the golden texts, the Laya runtime. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { FormatError, RequestError } from "../src/errors.js";
import { parseJson, type JsonObject } from "../src/json.js";
import { load, type Model } from "../src/model.js";
import type { Questions } from "../src/schema.js";
import { PromptTemplate, TEMPLATE_KEY, juliaTemplate } from "../src/text/template.js";
import { lines, modelBytes } from "./cases.js";
import { moduleBytes } from "./shipped.js";

interface Case {
  model: string;
  name: string;
  body: string;
  sequences?: Record<string, unknown>[];
  refused?: { loc: unknown[]; reason: string };
}

const models = new Map<string, Model>();
async function modelOf(name: string): Promise<Model> {
  let found = models.get(name);
  if (!found) models.set(name, (found = await load(modelBytes(name), { module: moduleBytes("wasm128") })));
  return found;
}

/** Where Python names a fault of its own kind. */
const OWN_WORDS = /cannot be written as JSON/;

test("requests are laid out as Python lays them out", async () => {
  for (const { model, name, body, sequences, refused } of lines<Case>("bodies")) {
    const request = parseJson(body) as JsonObject;
    const opened = await modelOf(model);
    const encode = () => {
      const compiled = opened.compile(request.get("questions") as Questions);
      const found = compiled.sequences(request.get("state"));
      compiled.free();
      return found;
    };
    if (sequences) {
      const found = encode().map((one) => ({
        ids: one.ids,
        markers: one.markers,
        state_tokens: one.stateTokens,
        state_tokens_used: one.stateTokensUsed,
        options: one.options,
        options_distinct: one.optionsDistinct,
        tokens_per_option: one.tokensPerOption,
        option_ids: one.optionIds,
      }));
      assert.deepEqual(found, sequences, `${model}: ${name}: ${body}`);
      continue;
    }
    assert.throws(
      encode,
      (error) => {
        assert.ok(error instanceof RequestError, String(error));
        assert.deepEqual(error.loc, refused!.loc, `${name}: ${body}`);
        if (!OWN_WORDS.test(refused!.reason)) assert.equal(error.reason, refused!.reason, `${name}: ${body}`);
        return true;
      },
      `${name}: ${body}`,
    );
  }
});

test("templates: those of converters, and no other", () => {
  const tokens = { clsText: "[CLS]", sepText: "[SEP]", maskText: "[MASK]" };
  const julia = PromptTemplate.fromMetadata(new Map([[TEMPLATE_KEY, juliaTemplate(tokens)]]), tokens);
  const option = (name: string, description: string | null) => ({ key: name, name, description });
  assert.equal(julia.option("choice", 0, option("a", "one")), " one");
  assert.equal(julia.option("choice", 0, option("a", null)), " a");
  assert.equal(julia.option("score", 1, option("1", "")), " 1");
  assert.equal(julia.option("noul", 0, option("false", null)), " false");
  for (const other of ["{{ state }}", `${juliaTemplate(tokens)} `, juliaTemplate({ ...tokens, maskText: "<mask>" })])
    assert.throws(() => PromptTemplate.fromMetadata(new Map([[TEMPLATE_KEY, other]]), tokens), FormatError);
});
