/** Ask: a state and questions, and their answers as bars while one types; by a model in this page, or by the server it is from. */

import { JsonError, RequestError, flappy, parseJson, writeJson, type Model, type PathPart } from "../src/index.js";
import { Bar, element, listed, made, offerModels, percent, say } from "./page.js";

type Members = Map<string, unknown>;
/** What is known of each question: its answer, or what is wrong with it. */
type Findings = Map<string, { answer?: Members; error?: string }>;

interface Outcome {
  findings: Findings;
  stateError?: string;
  questionsError?: string;
  inputTokens?: number;
  micros?: number;
}

/** Answers a state and questions. */
type Answerer = (state: unknown, questions: Members) => Outcome | Promise<Outcome>;

const SOON_MS = 40; // after the last key
const stateText = element<HTMLTextAreaElement>("state");
const questionsText = element<HTMLTextAreaElement>("questions");
const stateKinds = [...document.querySelectorAll<HTMLInputElement>("input[name=state-kind]")];
const EXAMPLE = { state: "vy 0 dx 36 up 9 dn 7 nxt 10 alt 32", kind: "text", questions: JSON.stringify(flappy.QUESTIONS, null, 2) };

let answerer: Answerer | undefined;
let timer: ReturnType<typeof setTimeout> | undefined;
let round = 0;
/** The bars as they stand, and what they are of: they move where only numbers have changed. */
let drawn = { signature: "", update: (_: Findings): void => {} };

function stateKind(): string {
  return stateKinds.find((radio) => radio.checked)!.value;
}

function soon(): void {
  clearTimeout(timer);
  timer = setTimeout(() => void ask(), SOON_MS);
}

/** The JSON of a text field, or what is wrong with it and where. */
function read(field: HTMLTextAreaElement): { value?: unknown; error?: string } {
  try {
    return { value: parseJson(field.value) };
  } catch (error) {
    if (!(error instanceof JsonError)) throw error;
    const before = field.value.slice(0, error.at).split("\n");
    const problem = error.message.replace(/ at character \d+$/, "");
    return { error: `Line ${before.length}, column ${before.at(-1)!.length + 1}: ${problem}` };
  }
}

function mark(field: HTMLTextAreaElement, place: string, error: string | undefined): void {
  field.ariaInvalid = String(error !== undefined);
  say(element(place), error ?? null);
}

async function ask(): Promise<void> {
  const mine = ++round;
  const state = stateKind() === "text" ? { value: stateText.value as unknown, error: undefined } : read(stateText);
  const questions = read(questionsText);
  let { error: stateError } = state;
  let questionsError = questions.error;
  if (!questionsError && !(questions.value instanceof Map)) questionsError = "Questions are an object of id -> question";
  else if (questions.value instanceof Map && typeof questions.value.get("type") === "string")
    questionsError = 'This is one question without an id; give it one: {"any id": {"type": ..., "instructions": ...}}';
  if (stateError === undefined && questionsError === undefined && answerer) {
    let outcome: Outcome;
    try {
      outcome = await answerer(state.value, questions.value as Members);
    } catch (error) {
      outcome = { findings: new Map(), questionsError: (error as Error).message };
    }
    if (mine !== round) return; // something was typed meanwhile
    ({ stateError, questionsError } = outcome);
    show(outcome);
  }
  mark(stateText, "state-says", stateError);
  mark(questionsText, "questions-say", questionsError);
  if (stateError === undefined && questionsError === undefined) showElsewhere(state.value, questions.value);
}

// ---- answers

function show(outcome: Outcome): void {
  if (outcome.stateError === undefined && outcome.questionsError === undefined) {
    const signature = writeJson([...outcome.findings].map(([id, { answer, error }]) => [id, error ?? null, answer ? shape(answer) : null]));
    if (signature !== drawn.signature) drawn = { signature, update: draw(outcome.findings) };
    drawn.update(outcome.findings);
  }
  const { inputTokens, micros } = outcome;
  const time = micros === undefined ? "" : `, ${micros < 10_000 ? `${micros.toFixed(0)} µs` : `${(micros / 1000).toFixed(0)} ms`}`;
  element("usage").textContent = inputTokens === undefined ? "" : `${inputTokens} tokens${time}`;
}

/** What of an answer decides how it is drawn: all but its numbers. */
function shape(answer: Members): unknown[] {
  return [answer.get("type"), optionsOf(answer).map(([name]) => name), noticesOf(answer)];
}

function numberOf(value: unknown): number {
  return Number(String(value));
}

/** Names of an answer's options and their probabilities. */
function optionsOf(answer: Members): [string, number][] {
  if (answer.get("type") === "noul") {
    const p = numberOf(answer.get("noul"));
    return [["true", p], ["false", 1 - p]];
  }
  const legend = answer.get("legend") as Members | undefined;
  return [...(answer.get("probabilities") as Members)].map(([key, p]) => {
    const level = legend?.get(key);
    return [level ? `${key}: ${String(level)}` : key, numberOf(p)];
  });
}

function noticesOf(answer: Members): string[] {
  const notices: string[] = [];
  const part = (name: string): Members | undefined => answer.get(name) as Members | undefined;
  const cut = part("x_truncated");
  if (cut) notices.push(`The model read ${cut.get("state_tokens_used")} of the state's ${cut.get("state_tokens")} tokens; the rest did not fit.`);
  const equal = part("x_options");
  if (equal) notices.push(`Only ${equal.get("distinct")} of ${equal.get("options")} options read differently; the others were cut to the same tokens, or are the same.`);
  const ignored = answer.get("x_ignored") as string[] | undefined;
  if (ignored) notices.push(`Ignored, as no question has such a field: ${ignored.join(", ")}`);
  const grown = part("x_grown");
  if (grown) notices.push(`${grown.get("tokens")} tokens were read, more than the ${grown.get("max_tokens")} that the model was made for.`);
  return notices;
}

/** Draws everything anew; gives what moves the bars to other numbers. */
function draw(findings: Findings): (findings: Findings) => void {
  const list = element("answers");
  list.replaceChildren();
  if (findings.size === 0) list.append(made("p", "dim", "No questions"));
  const updates: ((findings: Findings) => void)[] = [];
  for (const [id, { answer, error }] of findings) {
    const card = made("article", "answer");
    card.append(made("h3", "", id));
    if (error) card.append(made("p", "error", error));
    if (answer) {
      const kind = card.appendChild(made("p", "dim"));
      const holder = card.appendChild(made("div", "bars"));
      const bars = optionsOf(answer).map(([name]) => new Bar(holder, name));
      for (const notice of noticesOf(answer)) card.append(made("p", "notice", notice));
      updates.push((latest) => {
        const now = latest.get(id)!.answer!;
        const options = optionsOf(now);
        const most = Math.max(...options.map(([, p]) => p));
        options.forEach(([, p], i) => bars[i]!.show(p, percent(p), p === most));
        kind.textContent = summary(now);
      });
    }
    list.append(card);
  }
  return (latest) => updates.forEach((update) => update(latest));
}

function summary(answer: Members): string {
  const type = String(answer.get("type"));
  const shown = (name: string): string => numberOf(answer.get(name)).toFixed(3);
  if (type === "noul") return `noul ${shown("noul")}`;
  const main = type === "choice" ? `choice ${String(answer.get("choice"))}` : `score ${shown("score")}`;
  return `${main}, confidence ${shown("confidence")}`;
}

// ---- who answers

/** A model in this page: each question by itself, so that a faulty one does not hide the others' answers. */
function local(model: Model): Answerer {
  return (state, questions) => {
    const findings: Findings = new Map();
    let inputTokens = 0;
    const start = performance.now();
    for (const [id, question] of questions) {
      try {
        const compiled = model.compile(new Map([[id, question]]));
        let response: Members;
        try {
          response = compiled.answer(state);
        } finally {
          compiled.free();
        }
        findings.set(id, { answer: (response.get("answers") as Members).get(id) as Members });
        inputTokens += numberOf((response.get("usage") as Members).get("input_tokens"));
      } catch (error) {
        if (!(error instanceof RequestError)) throw error;
        if (error.loc[0] === "state") return { findings, stateError: `${error.loc.slice(1).join(".")} ${error.reason}`.trim() };
        findings.set(id, { error: placed(error.loc, error.reason) });
      }
    }
    return { findings, inputTokens, micros: 1000 * (performance.now() - start) };
  };
}

/** A fault with the path inside its question. */
function placed(loc: readonly PathPart[], reason: string): string {
  const path = loc.slice(2).map(String).join(".");
  return path ? `${path}: ${reason}` : reason;
}

/** The server that this page is from. */
function remote(model: string): Answerer {
  return async (state, questions) => {
    const start = performance.now();
    const body = writeJson(new Map<string, unknown>([["model", model], ["state", state], ["questions", questions]]));
    const response = await fetch("v1/systemone", { method: "POST", headers: { "content-type": "application/json" }, body }).catch(() => {
      throw new Error("The server does not answer");
    });
    const found = parseJson(await response.text()) as Members;
    const findings: Findings = new Map();
    if (response.ok) {
      for (const [id, answer] of found.get("answers") as Members) findings.set(id, { answer: answer as Members });
      const inputTokens = numberOf((found.get("usage") as Members).get("input_tokens"));
      return { findings, inputTokens, micros: 1000 * (performance.now() - start) };
    }
    const detail = found.get("detail");
    if (!Array.isArray(detail)) return { findings, questionsError: String((detail as Members).get("message")) };
    const { loc, msg } = Object.fromEntries(detail[0] as Members) as { loc: PathPart[]; msg: string };
    const [, part, id] = loc; // after "body"
    if (part === "state") return { findings, stateError: msg };
    if (part !== "questions" || !questions.has(String(id))) return { findings, questionsError: msg };
    for (const each of questions.keys()) findings.set(each, { error: each === id ? placed(loc.slice(1), msg) : "not answered" });
    return { findings };
  };
}

// ---- elsewhere

function showElsewhere(state: unknown, questions: unknown): void {
  const name = element<HTMLSelectElement>("model").value;
  const request = new Map<string, unknown>([["state", state], ["questions", questions]]);
  if (isServed) request.set("model", name); // which of the server's
  const body = writeJson(request);
  const origin = isServed ? location.origin : "http://127.0.0.1:8080";
  element("curl").textContent =
    `curl ${origin}/v1/systemone -H 'content-type: application/json' \\\n  -d '${body.replaceAll("'", "'\\''")}'`;
  // an escape of JSON's in a string in double quotes means the same in Python
  element("python").textContent =
    `import json\n\nimport skyinfer\n\nmodel = skyinfer.load(${JSON.stringify(name)})\nrequest = json.loads(\n    ${JSON.stringify(body)}\n)\n` +
    `print(json.dumps(model.decide(request["state"], request["questions"]), indent=2))\n`;
}

async function copy(text: string, what: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    say(element("copied"), `${what} copied`);
  } catch {
    say(element("copied"), `This browser does not let a page copy; the ${what.toLowerCase()} is there to be marked`);
  }
}

// ---- the text fields and the address

function fill(from: { state: string; kind: string; questions: string }): void {
  stateText.value = from.state;
  questionsText.value = from.questions;
  for (const radio of stateKinds) radio.checked = radio.value === from.kind;
  soon();
}

/** What a link holds, behind the #, which no server is told. */
function fromAddress(): boolean {
  const parts = new URLSearchParams(location.hash.slice(1));
  const [state, questions] = [parts.get("state"), parts.get("questions")];
  if (state === null || questions === null) return false;
  fill({ state, kind: parts.get("as") === "json" ? "json" : "text", questions });
  return true;
}

let isServed = false;

async function begin(): Promise<void> {
  if (!fromAddress()) fill(EXAMPLE);
  const { server, models } = await listed();
  isServed = server;
  if (!server) {
    await offerModels(models, (model) => {
      answerer = local(model);
      soon();
    });
    return;
  }
  // the server's own models answer, and only Ask is there
  for (const id of ["open", "progress", "fly"]) element(id).hidden = true;
  element("footer").textContent = "A model answers every question, and those it was not trained on without meaning.";
  const list = element<HTMLSelectElement>("model");
  for (const { name } of models) list.add(new Option(name, name));
  const choose = (): void => {
    answerer = remote(list.value);
    soon();
  };
  list.addEventListener("change", choose);
  say(element("status"), "The server's models answer");
  choose();
}

for (const field of [stateText, questionsText, ...stateKinds]) field.addEventListener("input", soon);
window.addEventListener("hashchange", fromAddress);
element("example").addEventListener("click", () => fill(EXAMPLE));
element("copy-curl").addEventListener("click", () => void copy(element("curl").textContent ?? "", "curl"));
element("copy-python").addEventListener("click", () => void copy(element("python").textContent ?? "", "Python"));
element("link").addEventListener("click", () => {
  const parts = new URLSearchParams({ as: stateKind(), state: stateText.value, questions: questionsText.value });
  history.replaceState(null, "", `#${parts}`);
  void copy(location.href, "Link");
});
void begin();
