/** Token ids of many kinds of tokenizers on random texts, against the tokenizers package. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { FormatError } from "../src/errors.js";
import { HUGGINGFACE_JSON, Tokenizer } from "../src/text/tokenizer.js";
import { lines } from "./cases.js";

interface Case {
  name: string;
  metadata: Record<string, unknown>;
  special: { vocab_size: number; cls_id: number; sep_id: number; mask_id: number };
  texts: string[];
  ids: number[][];
}

const cases = lines<Case>("tokenizers");

function special({ special: ids }: Case) {
  return { vocabSize: ids.vocab_size, clsId: ids.cls_id, sepId: ids.sep_id, maskId: ids.mask_id };
}

for (const one of cases)
  test(`ids: ${one.name}`, () => {
    const tokenizer = Tokenizer.fromMetadata(new Map(Object.entries(one.metadata)), special(one));
    one.texts.forEach((text, i) => {
      assert.deepEqual(tokenizer.encode(text), one.ids[i], JSON.stringify(text));
      assert.deepEqual(tokenizer.encodeRepeated(text), one.ids[i], JSON.stringify(text));
    });
  });

type Json = Record<string, any>;

test("what a browser cannot do is refused by its name", () => {
  const plain = cases.find(({ name }) => name === "byte_plain")!;
  const refused = (change: (data: Json) => void, message: RegExp): void => {
    const data = JSON.parse(plain.metadata[HUGGINGFACE_JSON] as string) as Json;
    change(data);
    const metadata = new Map([[HUGGINGFACE_JSON, JSON.stringify(data)]]);
    assert.throws(
      () => Tokenizer.fromMetadata(metadata, special(plain)),
      (error) => error instanceof FormatError && message.test(error.message),
      String(message),
    );
  };
  refused((data) => (data["normalizer"] = { type: "Lowercase" }), /normalizer "Lowercase"/);
  refused((data) => (data["pre_tokenizer"] = { type: "Digits" }), /pre-tokenizer "Digits"/);
  refused((data) => (data["model"]["type"] = "Unigram"), /model "Unigram"/);
  refused((data) => (data["model"]["dropout"] = 0.1), /dropout 0.1/);
  refused((data) => (data["model"]["merges"][0] = ["the", "nowhere"]), /not in the vocabulary/);
  refused((data) => (data["model"]["merges"][0] = "a b c"), /merge 0/);
  refused((data) => (data["model"]["vocab"]["x"] = -1), /the id of "x"/);
  refused((data) => (data["model"]["vocab"]["x"] = 1 << 21), /lies outside the embedding table/);
  refused((data) => (data["added_tokens"][0]["single_word"] = true), /single words/);
  refused((data) => delete data["added_tokens"][0]["lstrip"], /lstrip must be a boolean/);
  refused((data) => (data["normalizer"] = { type: "Prepend", prepend: "a".repeat(17) }), /17 characters/);
  const growing = { type: "Replace", pattern: { String: "a" }, content: "a".repeat(16) };
  refused((data) => (data["normalizer"] = { type: "Sequence", normalizers: Array(9).fill(growing) }), /lengthen a text/);
  refused(
    (data) => (data["pre_tokenizer"] = { type: "Split", pattern: { Regex: "a+" }, behavior: "Isolated", invert: false }),
    /regular expressions are not supported/,
  );
  assert.throws(() => Tokenizer.fromMetadata(new Map([[HUGGINGFACE_JSON, "{"]]), special(plain)), FormatError);
  assert.throws(() => Tokenizer.fromMetadata(new Map(), special(plain)), /has no tokenizer/);
});

test("a word of a million letters takes a second and not an hour", () => {
  const one = cases.find(({ name }) => name === "meta_gemma")!;
  const tokenizer = Tokenizer.fromMetadata(new Map(Object.entries(one.metadata)), special(one));
  const start = performance.now();
  tokenizer.encode("the drone ".repeat(100_000));
  assert.ok(performance.now() - start < 20_000);
});
