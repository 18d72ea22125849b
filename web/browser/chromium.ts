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
export function servePages(...options: string[]): Promise<Pages> {
  return served(["web", "--no-browser", ...options], {}, /http:\S+/);
}

/** `skyinfer serve --page`, with a key. */
export function serveApi(key: string): Promise<Pages> {
  return served(["serve", "--page", "--port", "0", "--api-key-env", "PAGE_KEY"], { PAGE_KEY: key }, /http:[\w./:]+/);
}

async function served(options: string[], environment: Record<string, string>, address: RegExp): Promise<Pages> {
  const python = process.env["PYTHON"] ?? "python3";
  const server = spawn(python, ["-m", "skyinfer", ...options], {
    stdio: ["ignore", "pipe", "pipe"],
    env: { ...process.env, ...environment },
  });
  let printed = "";
  const url = await new Promise<string>((resolve, reject) => {
    const read = (data: Buffer): void => {
      const found = address.exec((printed += String(data)))?.[0];
      if (found) resolve(found.endsWith("/") ? found : `${found}/`);
    };
    server.stdout.on("data", read);
    server.stderr.on("data", read);
    server.on("exit", () => reject(new Error(`skyinfer ${options.join(" ")} printed ${printed}`)));
  });
  return {
    url,
    async stop() {
      if (server.kill()) await once(server, "exit"); // else it was stopped
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
