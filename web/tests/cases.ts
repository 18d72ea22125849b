/** What write_cases.py wrote: golden models, and lines of what Python does. */

import { existsSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const directory = process.env["SKYINFER_CASES"] ?? fileURLToPath(new URL("../cases", import.meta.url));
if (!existsSync(directory))
  throw new Error(`there are no cases in ${directory}: python web/tests/write_cases.py web/build/cases writes them`);

export function modelBytes(name: string): Uint8Array {
  return new Uint8Array(readFileSync(`${directory}/${name}.gguf`));
}

export function lines<T>(file: string): T[] {
  return readFileSync(`${directory}/${file}.jsonl`, "utf8")
    .split("\n")
    .filter(Boolean)
    .map((line) => JSON.parse(line) as T);
}
