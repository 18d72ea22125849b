/** JSON as Python's `json` reads and writes it: what Python itself did with each text is recorded. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { JsonError, JsonNumber, NotJsonError, parseJson, writeJson } from "../src/json.js";
import { lines } from "./cases.js";

const cases = lines<{ text: string; written: string | null }>("json");

test("texts are read and written as Python does", () => {
  for (const { text, written } of cases) {
    if (written === null) assert.throws(() => parseJson(text), JsonError, text.slice(0, 100));
    else assert.equal(writeJson(parseJson(text)), written, text);
  }
});

test("a random float is spelled as Python spells it", () => {
  // Number's own text is exact, so whatever is spelled has to be the same number; exponents are Python's
  for (let i = 0; i < 20000; i++) {
    const x = (Math.random() - 0.5) * 10 ** Math.floor(Math.random() * 600 - 300);
    const text = writeJson(new JsonNumber(x.toExponential()));
    assert.equal(Number(text), x);
    const exponent = Number(x.toExponential().split("e")[1]);
    assert.equal(/e[+-]\d\d/.test(text), exponent < -4 || exponent >= 16, text);
  }
});

test("values of JavaScript's", () => {
  const value = { b: 1, a: [1.5, -0, 1e21, 2 ** 53, 12n, null, true], "2": new Map([["10", 1], ["2", 2]]) };
  assert.equal(
    writeJson(value),
    '{"2": {"10": 1, "2": 2}, "b": 1, "a": [1.5, -0.0, 1e+21, 9007199254740992.0, 12, null, true]}',
  );
  assert.equal(writeJson({ n: parseJson("1.0") }), '{"n": 1.0}');
  const circular: unknown[] = [];
  circular.push(circular);
  for (const wrong of [undefined, () => 1, Symbol("a"), new Date(), { a: undefined }, [undefined], circular, new Map([[1, 2]])])
    assert.throws(() => writeJson(wrong), NotJsonError);
});

test("a number of JavaScript's in a JsonNumber is a float", () => {
  for (const [value, text] of [[1, "1.0"], [-0, "-0.0"], [1e16, "1e+16"], [0.1, "0.1"], [NaN, "NaN"]] as const) {
    const number = new JsonNumber(value);
    assert.deepEqual([number.text, String(number), writeJson(number), number.isInteger], [text, text, text, false]);
  }
});
