/**
 * Builds what lies in src/skyinfer/web beside the modules: the host and the scripts of the pages, minified, and the pages.
 *
 *     node scripts/build.mjs [DIRECTORY]          default: ../src/skyinfer/web
 */

import { build } from "esbuild";
import { copyFile, mkdir, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { minify } from "terser";

const here = fileURLToPath(new URL("..", import.meta.url));
const out = process.argv[2] ?? `${here}../src/skyinfer/web`;
const common = { write: false, absWorkingDir: here, bundle: true, format: "esm", minify: true, target: "es2022", legalComments: "none", charset: "utf8" };

/** The pages load the host as a file of its own, as anyone's page would. */
const hostApart = {
  name: "host-apart",
  setup(building) {
    building.onResolve({ filter: /\/src\/index\.js$/ }, () => ({ path: "./skyinfer.js", external: true }));
  },
};

/** What esbuild leaves terser makes smaller by 3 % of the host's gzip. */
async function write({ outputFiles }) {
  for (const { path, text } of outputFiles) {
    const { code } = await minify(text, { module: true, ecma: 2022, compress: { passes: 3 } });
    await writeFile(path, `${code}\n`);
  }
}

/** Long names that only the host itself uses: 94 bytes of its gzip. */
const mangleProps =
  /^(addedTokens|attentionSpans|byteFallback|checkDialect|checkMagic|continuingPrefix|encodeRepeated|encodeWords|feedForward|ignoreMerges|keptLength|layOutApart|listOfWhole|optionalText|planAddress|preTokenizer|temperaturesOf)$/;

await mkdir(out, { recursive: true });
await write(await build({ ...common, mangleProps, entryPoints: ["src/index.ts"], outfile: `${out}/skyinfer.js` }));
await write(await build({ ...common, entryPoints: ["pages/fly.ts", "pages/ask.ts"], outdir: out, plugins: [hostApart] }));
for (const file of ["index.html", "ask.html", "style.css", "icon.svg"]) await copyFile(`${here}pages/${file}`, `${out}/${file}`);
