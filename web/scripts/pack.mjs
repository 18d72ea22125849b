/** Fills dist/, which is what npm publishes: the host as it is shipped with Python, both modules, and the types. */

import { execFileSync } from "node:child_process";
import { copyFile, mkdir, rm } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const here = fileURLToPath(new URL("..", import.meta.url));
const shipped = `${here}../src/skyinfer/web`;
await rm(`${here}dist`, { recursive: true, force: true });
await mkdir(`${here}dist`);
for (const file of ["skyinfer.js", "skyinfer.wasm", "skyinfer-relaxed.wasm"]) await copyFile(`${shipped}/${file}`, `${here}dist/${file}`);
await copyFile(`${here}../LICENSE`, `${here}LICENSE`);
const compiler = fileURLToPath(import.meta.resolve("typescript/package.json").replace("package.json", "bin/tsc"));
execFileSync(process.execPath, [compiler, "-p", "tsconfig.types.json"], { cwd: here, stdio: "inherit" });
