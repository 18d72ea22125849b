/** Chromium for tests and pictures, as Debian installs it, and the address of the pages: a server is started beside it. */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { chromium, type Browser, type Page } from "playwright-core";

const EXECUTABLE = process.env["CHROMIUM"] ?? "/usr/bin/chromium";
// the network is not to be looked at, and root needs --no-sandbox
const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];

export async function browser(): Promise<Browser> {
  return chromium.launch({ executablePath: EXECUTABLE, args: FLAGS, headless: true });
}

export interface Pages {
  url: string;
  stop(): Promise<void>;
}

/** `skyinfer web`, of the Python that PYTHON names. */
export async function servePages(...options: string[]): Promise<Pages> {
  const python = process.env["PYTHON"] ?? "python3";
  const server = spawn(python, ["-m", "skyinfer", "web", "--no-browser", ...options], { stdio: ["ignore", "pipe", "inherit"] });
  const [first] = (await once(server.stdout, "data")) as [Buffer];
  const url = /^http:\S+/.exec(String(first))?.[0];
  if (!url) throw new Error(`skyinfer web printed ${String(first)}`);
  return {
    url,
    async stop() {
      server.kill();
      await once(server, "exit");
    },
  };
}

/** What a page writes to its console as an error, and what it does not catch; filled while the page runs. */
export function faultsOf(page: Page): string[] {
  const faults: string[] = [];
  page.on("console", (message) => {
    if (message.type() === "error") faults.push(message.text());
  });
  page.on("pageerror", (error) => faults.push(error.message));
  page.on("requestfailed", (request) => faults.push(`${request.url()}: ${request.failure()?.errorText}`));
  return faults;
}
