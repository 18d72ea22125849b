/** Both pages in Chromium, as a person uses them. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import type { Browser, BrowserContext, Page } from "playwright-core";
import { browser, faultsOf, serveApi, servePages, type Pages } from "./chromium.js";

let chromium: Browser;
let pages: Pages;
let context: BrowserContext;

before(async () => {
  [chromium, pages] = await Promise.all([browser(), servePages()]);
  context = await chromium.newContext({ permissions: ["clipboard-read", "clipboard-write"] });
});
after(async () => {
  await chromium?.close();
  await pages?.stop();
});

async function open(path: string): Promise<{ page: Page; faults: string[] }> {
  const page = await context.newPage();
  const faults = faultsOf(page);
  await page.goto(pages.url + path);
  return { page, faults };
}

const text = (page: Page, id: string) => page.locator(`#${id}`).innerText();
/** Until a text of the page is as it should be. */
const until = (page: Page, id: string, pattern: RegExp) =>
  page.waitForFunction(
    ([id, source]) => new RegExp(source!).test(document.getElementById(id!)!.textContent ?? ""),
    [id, pattern.source],
    { timeout: 20_000 },
  );

function dropped(page: Page, name: string, bytes: number[]): Promise<void> {
  return page.evaluate(
    ([name, bytes]) => {
      const transfer = new DataTransfer();
      transfer.items.add(new File([new Uint8Array(bytes as number[])], name as string));
      document.dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
    },
    [name, bytes] as const,
  );
}

test("the model flies: 300 frames, decisions, probabilities", async () => {
  const { page, faults } = await open("");
  await until(page, "status", /is ready/);
  await until(page, "frames", /^\d{3,} shown/);
  await page.waitForFunction(() => Number.parseFloat(document.getElementById("time")!.textContent!) >= 5, null, { timeout: 30_000 });
  assert.match(await text(page, "state"), /^vy -?\d+ dx -?\d+ up -?\d+ dn -?\d+ nxt -?\d+ alt \d+$/);
  assert.match(await text(page, "micros"), /^\d+ µs/);
  assert.match(await text(page, "engine"), /^s1-pico, wasm128/);
  assert.equal(await page.locator("#bars .value").count(), 5);
  const pixels = await page.evaluate(() => {
    const canvas = document.querySelector("canvas")!;
    const { data } = canvas.getContext("2d")!.getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(data.buffer)).size;
  });
  assert.ok(pixels >= 5, `${pixels} colours`);
  assert.deepEqual(faults, []);
  await page.close();
});

test("every model that comes with skyinfer flies and answers", async () => {
  for (const path of ["", "ask.html"]) {
    const { page, faults } = await open(path);
    await until(page, "status", /is ready|Crashed/);
    const names = await page.locator("#model option").allInnerTexts();
    assert.ok(names.includes("s1-pico"));
    for (const name of [...names.slice(1), names[0]!]) {
      await page.locator("#model").selectOption(name);
      await until(page, "status", new RegExp(`^${name} is ready`));
      if (path) await until(page, "usage", /tokens/);
      else assert.match(await text(page, "engine"), new RegExp(`^${name}, wasm128`));
    }
    assert.deepEqual(faults, []);
    await page.close();
  }
});

test("keys: space takes the controls, H gives them back, P pauses, R restarts", async () => {
  const { page, faults } = await open("");
  await until(page, "status", /is ready/);
  await page.locator("canvas").focus();
  await page.keyboard.down(" ");
  assert.equal(await page.locator("input[value=hand]").isChecked(), true);
  await page.keyboard.up(" ");
  await page.keyboard.press("h");
  assert.equal(await page.locator("input[value=model]").isChecked(), true);
  await page.keyboard.press("p");
  const paused = await text(page, "time");
  await page.waitForTimeout(300);
  assert.equal(await text(page, "time"), paused);
  await page.keyboard.press("p");
  await page.waitForTimeout(500);
  await page.keyboard.press("r");
  await page.waitForFunction(() => Number.parseFloat(document.getElementById("time")!.textContent!) < 2);
  await page.locator("#difficulty").selectOption("easy");
  await page.locator("#seed").fill("12");
  await page.locator("#seed").press("Enter");
  await page.locator("input[value=hand]").check();
  await until(page, "status", /Crashed after 0 gaps, seed 12/); // nobody thrusts
  assert.deepEqual(faults, []);
  await page.close();
});

test("typing into Ask moves the bars and says what is wrong where it is", async () => {
  const { page, faults } = await open("ask.html");
  await until(page, "usage", /tokens/);
  const values = page.locator("#answers .value");
  assert.equal(await values.count(), 2 + 2 + 3);
  const first = await values.allInnerTexts();
  await page.locator("#state").fill("vy -9 dx 2 up 30 dn -8 nxt -6 alt 3");
  await page.waitForFunction((first) => document.querySelector("#answers .value")!.textContent !== first, first[0]);
  assert.notDeepEqual(await values.allInnerTexts(), first);

  await page.locator("#questions").fill('{\n  "q": {"type": "noul" "instructions": "Is it?"}\n}');
  await until(page, "questions-say", /^Line 2, column 24: a comma or } is missing$/);
  assert.equal(await page.locator("#questions").getAttribute("aria-invalid"), "true");
  await page.locator("#questions").fill('{"good": {"type": "noul", "instructions": "Is it?"}, "bad": {"type": "choice", "instructions": "Which?", "criteria": ["a", "a"]}}');
  await page.waitForSelector("#answers .error");
  assert.match(await page.locator("#answers .error").innerText(), /^criteria.1: label 'a' repeats label 0/);
  assert.equal(await page.locator("#answers .value").count(), 2); // the good one is answered all the same
  await page.locator("#questions").fill('{"type": "noul", "instructions": "Is it?"}');
  await until(page, "questions-say", /^This is one question without an id/);
  await page.locator("#questions").fill('{"q": {"type": "noul", "instructions": "Is it?"}}');
  await page.locator("input[value=json]").check();
  await until(page, "state-says", /^Line 1, column 1: a value is missing/);
  await page.locator("#state").fill(`{"a": 1.0, "b": [${"12345, ".repeat(300)} 7]}`);
  await page.waitForSelector("#answers .notice");
  assert.match(await page.locator("#answers .notice").first().innerText(), /^The model read \d+ of the state's \d+ tokens/);

  await page.locator("#example").click();
  await until(page, "curl", /vy 0 dx 36/); // what is shown follows a moment after
  await page.locator("summary").click();
  const curl = await text(page, "curl");
  assert.match(curl, /^curl http:\/\/127\.0\.0\.1:8080\/v1\/systemone -H 'content-type: application\/json'/);
  assert.match(await text(page, "python"), /json\.loads\(\n    "\{\\"state\\": \\"vy 0 dx 36/);
  await page.locator("#copy-curl").click();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), curl);

  await page.locator("#state").fill("vy 3 dx 1 up 1 dn 1 nxt 0 alt 9 <é&=>");
  await page.locator("#link").click();
  const again = await context.newPage();
  await again.goto(page.url());
  await until(again, "usage", /tokens/);
  assert.equal(await again.locator("#state").inputValue(), "vy 3 dx 1 up 1 dn 1 nxt 0 alt 9 <é&=>");
  assert.deepEqual(faults, []);
  await again.close();
  await page.close();
});

test("a broken file is an error on the page, and the model before goes on", async () => {
  for (const path of ["", "ask.html"]) {
    const { page, faults } = await open(path);
    await until(page, "status", /is ready/);
    await dropped(page, "broken.gguf", [71, 71, 85, 70, 3, 0, 0, 0, 9, 9]);
    await until(page, "error", /^broken.gguf cannot be opened\. broken.gguf: truncated/);
    await dropped(page, "page.html", [...new TextEncoder().encode("<!doctype html>")]);
    await until(page, "error", /^page.html cannot be opened\. page.html: this is a page of HTML/);
    assert.match(await text(page, "status"), /s1-pico is still in use/);
    const model = await page.evaluate(async () => [...new Uint8Array(await (await fetch(document.querySelector("option") ? "models/0/s1-pico.gguf" : "")).arrayBuffer())]);
    await dropped(page, "mine.gguf", model);
    await until(page, "status", /is ready|Crashed/);
    assert.equal(await page.locator("#model").inputValue(), "mine.gguf");
    assert.equal(await page.locator("#error").isHidden(), true);
    await page.locator("#model").selectOption("s1-pico");
    await until(page, "status", /is ready|Crashed/);
    assert.deepEqual(faults, []);
    await page.close();
  }
});

test("a model that has no room for the page's questions is an error, and the one before flies on", async () => {
  const { page, faults } = await open("");
  await until(page, "status", /is ready/);
  const short = await page.evaluate(async () => {
    const bytes = new Uint8Array(await (await fetch("models/0/s1-pico.gguf")).arrayBuffer());
    const key = "modern-bert.decision.max_tokens";
    const at = new TextDecoder("latin1").decode(bytes.subarray(0, 1 << 14)).indexOf(key) + key.length + 4;
    new DataView(bytes.buffer).setUint32(at, 2, true);
    return [...bytes];
  });
  await dropped(page, "short.gguf", short);
  await until(page, "error", /^short\.gguf cannot be opened\. questions\.action\.criteria: /);
  assert.equal(await text(page, "status"), "s1-pico is still in use");
  assert.equal(await page.locator("#model").inputValue(), "s1-pico");
  const time = await text(page, "time");
  await page.waitForFunction((time) => document.getElementById("time")!.textContent !== time, time);
  assert.deepEqual(faults, []);
  await page.close();
});

test("of two models that are asked for at once the last one is used", async () => {
  const { page, faults } = await open("ask.html");
  await until(page, "status", /is ready/);
  await page.evaluate(() => {
    const list = document.querySelector<HTMLSelectElement>("#model")!;
    for (const index of [1, 0, 1]) {
      list.selectedIndex = index;
      list.dispatchEvent(new Event("change"));
    }
  });
  await until(page, "status", /^s2-pico is ready/);
  await page.waitForTimeout(300);
  assert.equal(await text(page, "status"), "s2-pico is ready");
  await until(page, "python", /skyinfer\.load\("s2-pico"\)/);
  assert.deepEqual(faults.filter((fault) => !fault.endsWith("net::ERR_ABORTED")), []); // those that were not waited for
  await page.close();
});

test("a server's own page: its password is the key, and its models answer", async () => {
  const api = await serveApi("the-key");
  try {
    assert.equal((await fetch(api.url)).status, 401);
    const own = await chromium.newContext({ httpCredentials: { username: "me", password: "the-key" } });
    const page = await own.newPage();
    const faults = faultsOf(page);
    await page.goto(api.url);
    await until(page, "usage", /145 tokens/);
    assert.equal(await page.locator("#answers .value").count(), 2 + 2 + 3);
    assert.equal(await page.locator("#fly").isHidden(), true);
    assert.deepEqual(faults, []);
    await page.locator("#questions").fill('{"q": {"type": "choice", "instructions": "Which?", "criteria": ["a", "a"]}}');
    await page.waitForSelector("#answers .error");
    assert.match(await page.locator("#answers .error").innerText(), /^criteria/);
    await page.locator("summary").click();
    await page.locator("#example").click();
    await until(page, "curl", /skyinfer|145|drone/);
    assert.ok((await text(page, "curl")).startsWith(`curl ${api.url}v1/systemone`));
    assert.match(await text(page, "curl"), /"model": "s1-pico"\}'$/);
    await api.stop();
    await page.locator("#state").fill("a server that is gone");
    await until(page, "questions-say", /^The server does not answer$/);
    await own.close();
  } finally {
    await api.stop();
  }
});

test("a narrow screen has one column and nothing beside it", async () => {
  const phone = await chromium.newContext({ viewport: { width: 360, height: 740 }, hasTouch: true });
  for (const path of ["", "ask.html"]) {
    const page = await phone.newPage();
    await page.goto(pages.url + path);
    await until(page, "status", /is ready/);
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 360);
  }
  const page = phone.pages()[0]!;
  await page.locator("canvas").tap();
  assert.equal(await page.locator("input[value=hand]").isChecked(), true);
  await phone.close();
});
