/** The host in a Worker, from a static host's folder: beside others, and ended in the middle of its work. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { browser, faultsOf } from "./chromium.js";

const WORKER = `
import { load, flappy } from "./skyinfer.js";
const model = await load(new URL("models/" + new URLSearchParams(location.search).get("model"), location.href));
onmessage = ({ data }) => {
  for (let i = 0; i < data; i++) model.decide("vy " + i, flappy.QUESTIONS);
  postMessage(model.decide("vy 0 dx 36 up 9 dn 7 nxt 10 alt 32", flappy.QUESTIONS));
};
postMessage("ready");
`;
const TYPES: Record<string, string> = { html: "text/html", js: "text/javascript", wasm: "application/wasm", css: "text/css", svg: "image/svg+xml" };

test("in Workers, from a folder of a static host, one of them ended while it decides", async () => {
  const directory = mkdtempSync(join(tmpdir(), "skyinfer-"));
  const exported = spawnSync(process.env["PYTHON"] ?? "python3", ["-m", "skyinfer", "web", "--export", directory]);
  assert.equal(exported.status, 0, String(exported.stderr));
  writeFileSync(join(directory, "worker.js"), WORKER);
  const server = createServer((request, response) => {
    const path = new URL(request.url!, "http://x").pathname.replace(/^\/some\/folder\//, "").replace(/^$/, "index.html");
    readFile(join(directory, path)).then(
      (data) => response.writeHead(200, { "content-type": TYPES[path.split(".").at(-1)!] ?? "application/octet-stream" }).end(data),
      () => response.writeHead(404).end(),
    );
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = `http://127.0.0.1:${(server.address() as { port: number }).port}/some/folder/`;
  const chromium = await browser();
  try {
    const page = await chromium.newPage();
    const faults = faultsOf(page);
    await page.goto(`${address}ask.html`);
    await page.waitForFunction(() => /tokens/.test(document.getElementById("usage")!.textContent!));
    const found = await page.evaluate(async () => {
      const next = (worker: Worker) =>
        new Promise<any>((resolve, reject) => {
          worker.onmessage = ({ data }) => resolve(data);
          worker.onerror = (event) => reject(new Error(event.message));
        });
      const start = async (model: string) => {
        const worker = new Worker(`worker.js?model=${model}`, { type: "module" });
        await next(worker);
        return worker;
      };
      const [one, other, ended] = await Promise.all([start("s1-pico.gguf"), start("s2-pico.gguf"), start("s1-pico.gguf")]);
      ended.postMessage(1e9);
      setTimeout(() => ended.terminate(), 200);
      one.postMessage(50);
      other.postMessage(50);
      const answers = await Promise.all([next(one), next(other)]);
      const again = await start("s1-pico.gguf");
      again.postMessage(0);
      return [...answers, await next(again)];
    });
    assert.deepEqual(found.map((answer) => answer.model), ["s1-pico", "s2-pico", "s1-pico"]);
    assert.deepEqual(found[2], found[0]);
    await page.locator("#state").fill("vy 1 dx 1 up 1 dn 1 nxt 0 alt 9");
    await page.waitForFunction(() => /vy 1 dx 1/.test(document.getElementById("curl")!.textContent!));
    assert.deepEqual(faults, []);
  } finally {
    await chromium.close();
    server.close();
    rmSync(directory, { recursive: true });
  }
});
