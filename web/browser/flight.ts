/**
 * A flight in Chromium, as fast as it goes: node build/browser/flight.js MODEL SEED FRAMES [DIFFICULTY] [ISA]
 *
 * Prints one JSON object: whether it lived, frames and gaps, the inputs as hexadecimal digits (four frames each), seconds.
 */

import { browser, servePages } from "./chromium.js";

const [name = "s1-pico", seed = "7", frames = "36000", difficulty = "hard", isa = ""] = process.argv.slice(2);
const [chromium, pages] = await Promise.all([browser(), servePages()]);
try {
  const page = await chromium.newPage();
  await page.goto(pages.url + "ask.html");
  const flown = await page.evaluate(
    async ([name, seed, frames, difficulty, isa]) => {
      const host = "/skyinfer.js"; // of the page, not of this program
      const { load, flappy } = (await import(host)) as typeof import("../src/index.js");
      const { models } = (await (await fetch("/models.json")).json()) as { models: { name: string; url: string }[] };
      const model = await load(models.find((one) => one.name === name)!.url, isa ? { isa: isa as "wasm128" } : {});
      const game = new flappy.Flappy(model.core, BigInt(seed!), difficulty as "hard");
      const compiled = model.compile({ action: flappy.QUESTIONS.action });
      const start = performance.now();
      let inputs = "";
      let digit = 0;
      for (let i = 0; i < Number(frames) && game.alive; i++) {
        const p = compiled.step(game.stateText());
        const thrust = p[0]! >= p[1]!;
        game.step(thrust);
        digit = (digit << 1) | Number(thrust);
        if (i % 4 === 3) {
          inputs += digit.toString(16);
          digit = 0;
        }
      }
      const seconds = (performance.now() - start) / 1000;
      return { isa: model.isa, alive: game.alive, frames: game.frame, gaps: game.score, inputs, seconds };
    },
    [name, seed, frames, difficulty, isa],
  );
  console.log(JSON.stringify(flown));
} finally {
  await chromium.close();
  await pages.stop();
}
