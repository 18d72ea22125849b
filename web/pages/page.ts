/** What both pages do: elements, opening models (the shipped ones, a file, one that is dropped), bars, copying. */

import { load, type Core, type Model } from "../src/index.js";

/** The element of an id. */
export function element<T extends HTMLElement = HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found as T;
}

/** A message in its place; null hides it. */
export function say(place: HTMLElement, message: string | null): void {
  place.hidden = message === null;
  place.textContent = message ?? "";
}

/** Models that are offered: their names, and where their files are. */
export interface Listed {
  /** Whether the server that the page is from answers, and the models are names of its own. */
  server: boolean;
  models: { name: string; url: string }[];
}

/**
 * Fills the list of models and loads the first, and whatever is chosen, opened or dropped after; `use` is told of each that
 * is there. A model that cannot be opened, or used, is an error on the page, and the one before stays in use.
 */
export async function offerModels(models: Listed["models"], use: (model: Model) => void): Promise<void> {
  const list = element<HTMLSelectElement>("model");
  const progress = element<HTMLProgressElement>("progress");
  const status = element("status");
  let core: Core | undefined;
  let current: Model | undefined;
  let inUse = "";
  let attempt = 0;
  let stop: AbortController | undefined;

  const open = async (name: string, input: string | Blob): Promise<void> => {
    const mine = ++attempt;
    stop?.abort(); // what was asked for before
    stop = new AbortController();
    say(element("error"), null);
    say(status, `Loading ${name}`);
    progress.hidden = false;
    progress.removeAttribute("value");
    try {
      const model = await load(input, {
        ...(core ? { core } : {}),
        signal: stop.signal,
        onProgress: (loaded, total) => {
          if (total && mine === attempt) progress.value = loaded / total;
        },
      });
      if (mine !== attempt) {
        model.free(); // another one was asked for meanwhile
        return;
      }
      try {
        use(model);
      } catch (error) {
        model.free(); // it has no room for the page's questions
        throw error;
      }
      core = model.core;
      const before = current;
      current = model;
      if (![...list.options].some((option) => option.value === name)) list.add(new Option(name, name));
      list.value = inUse = name;
      before?.free();
      say(status, `${model.name} is ready`);
    } catch (error) {
      if (mine !== attempt) return;
      say(element("error"), `${name} cannot be opened. ${(error as Error).message}`);
      say(status, current ? `${current.name} is still in use` : "There is no model");
      list.value = inUse;
    } finally {
      if (mine === attempt) progress.hidden = true;
    }
  };

  const sources = new Map<string, string | Blob>();
  const openFile = (file: File | undefined): void => {
    if (!file) return;
    sources.set(file.name, file);
    void open(file.name, file);
  };
  const input = element<HTMLInputElement>("file");
  element("open").addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    openFile(input.files?.[0]);
    input.value = ""; // so that the same file can be chosen again
  });
  list.addEventListener("change", () => void open(list.value, sources.get(list.value)!));
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dropping");
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    openFile(event.dataTransfer?.files[0]);
  });

  for (const { name, url } of models) {
    sources.set(name, url);
    list.add(new Option(name, name));
  }
  const first = list.options[0]?.value;
  if (first) await open(first, sources.get(first)!);
}

/** The models that lie beside the page, by the list that lies there; the shipped one where there is no list. */
export async function listed(): Promise<Listed> {
  try {
    const response = await fetch("models.json");
    if (response.ok) return (await response.json()) as Listed;
  } catch {
    // a host that cannot be reached, or answers everything with a page: opening the model says so
  }
  return { server: false, models: [{ name: "s1-pico", url: "s1-pico.gguf" }] };
}

/** One bar of a list of bars: a name, a length from 0 to 1, and what it stands for. */
export class Bar {
  private readonly parts: HTMLElement[];
  private readonly name: HTMLElement;
  private readonly fill: HTMLElement;
  private readonly value: HTMLElement;

  constructor(list: HTMLElement, name: string) {
    this.name = made("span", "name", name);
    const track = made("div", "track");
    track.ariaHidden = "true"; // the number beside it says the same
    this.fill = made("div", "fill");
    track.append(this.fill);
    this.value = made("span", "value");
    this.parts = [this.name, track, this.value];
    list.append(...this.parts);
  }

  show(length: number, value: string, isBest = false): void {
    this.fill.style.width = `${100 * length}%`;
    if (this.value.textContent !== value) this.value.textContent = value;
    this.name.classList.toggle("best", isBest);
  }
}

/** A new element. */
export function made(tag: string, className = "", text = ""): HTMLElement {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = text;
  return element;
}

export function percent(p: number): string {
  return `${(100 * p).toFixed(1)} %`;
}
