/** Token ids, markers and refusals of whole requests, against Python and, on the golden texts, the Laya runtime. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { FormatError, RequestError } from "../src/errors.js";
import { configOf } from "../src/files/config.js";
import { parseHeader } from "../src/files/gguf.js";
import { parseJson, type JsonObject } from "../src/json.js";
import { SequenceBuilder } from "../src/text/sequence.js";
import { PromptTemplate, TEMPLATE_KEY, juliaTemplate } from "../src/text/template.js";
import { Tokenizer } from "../src/text/tokenizer.js";
import { lines, modelBytes } from "./cases.js";

interface Case {
  model: string;
  name: string;
  body: string;
  sequences?: Record<string, unknown>[];
  refused?: { loc: unknown[]; reason: string };
}

function builderOf(name: string): SequenceBuilder {
  const header = parseHeader(modelBytes(name), name);
  const config = configOf(header, () => new Map([...header.tensors].map(([tensor, { shape }]) => [tensor, shape])));
  const tokenizer = Tokenizer.fromMetadata(header.metadata, config);
  const template = PromptTemplate.fromMetadata(header.metadata, tokenizer);
  return new SequenceBuilder(tokenizer, template, config.maxTokens, config.maxHeadTokens, null);
}

const builders = new Map<string, SequenceBuilder>();
function builder(name: string): SequenceBuilder {
  let found = builders.get(name);
  if (!found) builders.set(name, (found = builderOf(name)));
  return found;
}

/** Where Python names a fault of its own kind. */
const OWN_WORDS = /cannot be written as JSON/;

test("requests are laid out as Python lays them out", () => {
  for (const { model, name, body, sequences, refused } of lines<Case>("bodies")) {
    const request = parseJson(body) as JsonObject;
    const encode = () => builder(model).encode(request.get("state"), request.get("questions"));
    if (sequences) {
      const found = [...encode().values()].map((one) => ({
        ids: one.ids,
        markers: one.markers,
        state_tokens: one.stateTokens,
        state_tokens_used: one.stateTokensUsed,
        options: one.options,
        options_distinct: one.optionsDistinct,
        tokens_per_option: one.tokensPerOption,
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
