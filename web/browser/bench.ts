/**
 * What the engine takes in Chromium and in Node.js, in turn with others on the same questions about the same states:
 *
 *     npm run bench -- [--rounds 300] [--wllama DIRECTORY]...     DIRECTORY: what npm unpacks of @wllama/wllama
 *
 * Prints sizes; milliseconds of whole calls, least and median; the greatest difference of a probability from Python's; and
 * the frames that Fly missed in 20 seconds. A figure of a busy machine says nothing.
 */

import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { brotliCompressSync, gzipSync } from "node:zlib";
import type { Page } from "playwright-core";
import { flappy, load } from "../src/index.js";
import { browser, servePages } from "./chromium.js";

const options = process.argv.slice(2);
const valuesOf = (name: string): string[] => options.flatMap((option, i) => (option === name ? [options[i + 1]!] : []));
const rounds = Number(valuesOf("--rounds")[0] ?? 300);
const shipped = fileURLToPath(new URL("../../../src/skyinfer/", import.meta.url));
const STATE = "vy 0 dx 36 up 9 dn 7 nxt 10 alt ";
/** States of a flight whose answers are compared. */
const COMPARED = 200;

interface Times {
  least: number;
  median: number;
}

function timesOf(milliseconds: number[]): Times {
  const sorted = [...milliseconds].sort((one, other) => one - other);
  return { least: sorted[0]!, median: sorted[sorted.length >> 1]! };
}

function row(what: string, { least, median }: Times, more = ""): void {
  console.log(`${what.padEnd(58)} ${least.toFixed(3).padStart(8)} ${median.toFixed(3).padStart(8)} ms ${more}`);
}

function sizes(): void {
  for (const file of ["skyinfer.wasm", "skyinfer-relaxed.wasm", "skyinfer.js"]) {
    const bytes = new Uint8Array(readFileSync(`${shipped}web/${file}`));
    console.log(`${file.padEnd(24)} ${bytes.length} bytes, gzip ${gzipSync(bytes, { level: 9 }).length}, brotli ${brotliCompressSync(bytes).length}`);
  }
}

/** A model that comes with skyinfer, and its address on the pages' server. */
interface Shipped {
  name: string;
  url: string;
}

/** Native steps, by Python. */
function native(name: string, isa: string): Times {
  const program = `
import json, sys, time
import skyinfer
from skyinfer.games.flappy import QUESTIONS
compiled = skyinfer.load("${name}", isa="${isa}").compile(QUESTIONS)
times = []
for i in range(${rounds}):
    start = time.perf_counter()
    compiled.step(f"${STATE}{i % 60}")
    times.append(1000 * (time.perf_counter() - start))
print(json.dumps(times))`;
  return timesOf(JSON.parse(execFileSync(process.env["PYTHON"] ?? "python3", ["-c", program], { encoding: "utf8" })) as number[]);
}

interface Compared {
  states: string[];
  /** Python's: the probabilities of three questions about each state, end to end. */
  p: number[];
}

/** Every fifth frame of a flight with the teacher at the controls, and what Python answers. */
function reference(name: string): Compared {
  const program = `
import json
import skyinfer
from skyinfer.games.flappy import QUESTIONS, Flappy
compiled, game, states = skyinfer.load("${name}").compile(QUESTIONS), Flappy(7), []
for frame in range(5 * ${COMPARED}):
    if frame % 5 == 0:
        states.append(game.state_text())
    game.step(game.teacher())
assert game.alive
print(json.dumps({"states": states, "p": [p for state in states for p in compiled.step(state).tolist()]}))`;
  return JSON.parse(execFileSync(process.env["PYTHON"] ?? "python3", ["-c", program], { encoding: "utf8" })) as Compared;
}

function worst(found: readonly number[], expected: readonly number[]): string {
  return `off by ${Math.max(...expected.map((p, i) => Math.abs(p - found[i]!))).toExponential(1)} at most`;
}

/** Three questions in a page; and how long from its navigation to the first answer. */
async function inPage(
  page: Page,
  url: string,
  model: Shipped,
  isa: string,
  rounds: number,
  states: string[],
): Promise<{ times: Times; first: number; p: number[] }> {
  await page.goto(`${url}style.css`);
  const found = await page.evaluate(
    async ([address, isa, rounds, state, states]) => {
      const start = performance.timeOrigin;
      const host = "/skyinfer.js";
      const { load, flappy } = (await import(host)) as typeof import("../src/index.js");
      const model = await load(address, isa ? { isa: isa as "wasm128" } : {});
      const compiled = model.compile(flappy.QUESTIONS);
      compiled.step(`${state}32`);
      const first = performance.timeOrigin + performance.now() - start;
      const p: number[] = [];
      for (const one of states) p.push(...compiled.step(one));
      const times: number[] = [];
      for (let i = 0; i < Number(rounds); i++) {
        // four calls at a time: a page's clock is coarse
        const before = performance.now();
        for (let k = 0; k < 4; k++) compiled.step(state + ((4 * i + k) % 60));
        times.push((performance.now() - before) / 4);
      }
      return { times, first, p };
    },
    [`/${model.url}`, isa, String(rounds), STATE, states] as const,
  );
  return { ...found, times: timesOf(found.times) };
}

/** wllama on the same file: its own call for a decision model. */
async function wllama(page: Page, url: string, directory: string, rounds: number, states: string[]): Promise<{ times: Times; p: number[] }> {
  // from the server's own address, so that the model is of the same origin, but without its policy: wllama makes Workers of blobs
  await page.route("**/wllama/**", (route) => {
    const path = new URL(route.request().url()).pathname.replace("/wllama/", "");
    const type = path.endsWith(".wasm") ? "application/wasm" : path.endsWith(".js") ? "text/javascript" : "text/html";
    return path === "page" ? route.fulfill({ contentType: type, body: "<!doctype html>" }) : route.fulfill({ contentType: type, path: join(directory, path) });
  });
  await page.goto(`${url}wllama/page`);
  const found = await page.evaluate(
    async ([questions, rounds, state, states]) => {
      const script = "/wllama/esm/index.js";
      const { Wllama } = (await import(script)) as { Wllama: new (paths: object, options: object) => any };
      const engine = new Wllama({ default: "/wllama/esm/wasm/wllama.wasm" }, { suppressNativeLog: true });
      await engine.loadModel([await (await fetch("/models/0/s1-pico.gguf")).blob()], { n_threads: 1, n_ctx: 1024, n_batch: 1024, n_ubatch: 1024, embeddings: true });
      const ask = async (state: string): Promise<any> => (await engine.createSystemOne({ state, questions })).answers;
      const p: number[] = [];
      for (const one of states) {
        const { action, danger, margin } = await ask(one);
        const rows = [action.probabilities, { no: 1 - danger.noul, yes: danger.noul }, margin.probabilities];
        p.push(...rows.flatMap((row) => Object.values(row as Record<string, number>)));
      }
      const times: number[] = [];
      for (let i = 0; i < Number(rounds); i++) {
        const before = performance.now();
        await ask(state + (i % 60));
        times.push(performance.now() - before);
      }
      return { times, p };
    },
    [flappy.QUESTIONS, rounds, STATE, states] as const,
  );
  return { ...found, times: timesOf(found.times) };
}

/** Two questions and the game's step, a frame, here in Node.js. */
async function frames(file: Uint8Array): Promise<Times> {
  const model = await load(file, { module: new Uint8Array(readFileSync(`${shipped}web/skyinfer.wasm`)) });
  const { action, danger } = flappy.QUESTIONS;
  const compiled = model.compile({ action, danger });
  const game = new flappy.Flappy(model.core, 7);
  const times: number[] = [];
  for (let i = 0; i < 4 * rounds; i++) {
    const before = performance.now();
    const p = compiled.step(game.stateText());
    game.step(p[0]! >= p[1]!);
    times.push(performance.now() - before);
  }
  return timesOf(times);
}

sizes();
const [chromium, pages] = await Promise.all([browser(), servePages()]);
try {
  const { models } = (await (await fetch(`${pages.url}models.json`)).json()) as { models: Shipped[] };
  for (const model of [...models, ...models]) {
    const { name } = model;
    const { states, p: expected } = reference(name);
    row(`${name}, native step, three questions, AVX2`, native(name, "avx2"));
    for (const isa of ["wasm128", "wasm128_relaxed"]) {
      const page = await chromium.newPage();
      const { times, first, p } = await inPage(page, pages.url, model, isa, rounds, states);
      row(`Chromium ${chromium.version()}, three questions, ${isa}`, times, `${worst(p, expected)}; first after ${first.toFixed(0)} ms`);
      await page.close();
    }
    for (const directory of name === "s1-pico" ? valuesOf("--wllama") : []) {
      const { version } = JSON.parse(readFileSync(join(directory, "package.json"), "utf8")) as { version: string };
      const page = await (await chromium.newContext()).newPage();
      const { times, p } = await wllama(page, pages.url, directory, Math.ceil(rounds / 10), states);
      row(`the same Chromium, wllama ${version}`, times, worst(p, expected));
      await page.context().close();
    }
    row(`Node.js ${process.version}, two questions and physics, wasm128`, await frames(new Uint8Array(await (await fetch(pages.url + model.url)).arrayBuffer())));
  }
  const page = await chromium.newPage();
  await page.goto(pages.url);
  await page.waitForFunction(() => / is ready/.test(document.getElementById("status")!.textContent ?? ""));
  await page.waitForTimeout(1000);
  const count = async (): Promise<number[]> => (await page.locator("#frames").innerText()).match(/\d+/g)!.map(Number);
  const [shownBefore, missedBefore] = await count();
  await page.waitForTimeout(Number(valuesOf("--seconds")[0] ?? 20) * 1000);
  const [shown, missed] = await count();
  console.log(`Fly: ${shown! - shownBefore!} frames, ${missed! - missedBefore!} missed; a decision takes ${await page.locator("#micros").innerText()}`);
} finally {
  await chromium.close();
  await pages.stop();
}
