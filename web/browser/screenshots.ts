/** Pictures of both pages, light, dark and on a phone: npm run screenshots, into docs/web/. */

import { mkdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { browser, servePages } from "./chromium.js";

const out = process.argv[2] ?? fileURLToPath(new URL("../../../docs/web", import.meta.url));
const kinds = [
  { name: "light", colorScheme: "light", viewport: { width: 1100, height: 980 } },
  { name: "dark", colorScheme: "dark", viewport: { width: 1100, height: 980 } },
  { name: "phone", colorScheme: "light", viewport: { width: 390, height: 844 } },
] as const;

await mkdir(out, { recursive: true });
const [chromium, pages] = await Promise.all([browser(), servePages()]);
for (const { name, ...options } of kinds)
  for (const [page, path] of [["fly", ""], ["ask", "ask.html"]] as const) {
    const tab = await chromium.newPage(options);
    await tab.goto(pages.url + path);
    await tab.waitForFunction(() => / is ready/.test(document.getElementById("status")!.textContent ?? ""));
    await tab.waitForTimeout(page === "fly" ? 4000 : 500);
    await tab.screenshot({ path: `${out}/${page}-${name}.png` });
    await tab.close();
  }
await chromium.close();
await pages.stop();
