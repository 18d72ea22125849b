/** Fly: the drone on a canvas, a model or a hand at the controls, sixty steps a second whatever the screen's rate. */

import { flappy, type CompiledQuestions, type Model } from "../src/index.js";
import { Bar, element, listed, offerModels, percent, say } from "./page.js";
import { Picture } from "./picture.js";

const STEP_MS = 1000 / flappy.FRAMES_PER_SECOND;
/** More steps than this are not made up for: after a pause of the whole page the flight goes on where it was. */
const MOST_LATE = 4;
/** Decisions whose median is shown. */
const RECENT = 120;
const CRASH_MS = 1500;

const picture = new Picture(element<HTMLCanvasElement>("world"));
const pilots = [...document.querySelectorAll<HTMLInputElement>("input[name=pilot]")];
const difficulty = element<HTMLSelectElement>("difficulty");
const seed = element<HTMLInputElement>("seed");
const pauseButton = element<HTMLButtonElement>("pause");
const bars = element("bars");
const shown = {
  thrust: new Bar(bars, "thrust"),
  danger: new Bar(bars, "danger"),
  margins: flappy.MARGINS.map((margin) => new Bar(bars, `margin: ${margin}`)),
};

let model: Model | undefined;
let compiled: CompiledQuestions | undefined;
let game: flappy.Flappy | undefined;
let isHeld = false; // the hand's thrust
let isPaused = false;
let crashedAt: number | undefined;
let best = 0;
let owed = 0; // milliseconds of game time
let before: number | undefined;
let frames = 0;
let missed = 0;
const micros: number[] = [];

function pilot(): string {
  return pilots.find((radio) => radio.checked)!.value;
}

function takeControls(who: "model" | "hand"): void {
  for (const radio of pilots) radio.checked = radio.value === who;
}

/** A new game; a seed that is none counts as 0. */
function restart(): void {
  if (!model) return;
  const number = Math.floor(Number(seed.value));
  const wanted = Number.isSafeInteger(number) && number >= 0 ? number : 0;
  seed.value = String(wanted);
  game?.free();
  game = new flappy.Flappy(model.core, wanted, difficulty.value as flappy.Difficulty);
  crashedAt = undefined;
  owed = 0;
  picture.begin();
}

function pause(on: boolean): void {
  isPaused = on;
  pauseButton.textContent = on ? "Go on" : "Pause";
  before = undefined;
}

/** One sixtieth of a second: the model reads the state and answers, whoever is at the controls. */
function step(playing: flappy.Flappy, questions: CompiledQuestions): void {
  const start = performance.now();
  const p = questions.step(playing.stateText());
  micros.push(1000 * (performance.now() - start));
  if (micros.length > RECENT) micros.shift();
  const thrusts = pilot() === "model" ? p[0]! >= p[1]! : isHeld;
  playing.step(thrusts);
  picture.advance(playing, thrusts);
}

function tell(playing: flappy.Flappy, questions: CompiledQuestions): void {
  const p = questions.probabilities;
  shown.thrust.show(p[0]!, percent(p[0]!), p[0]! >= p[1]!);
  shown.danger.show(p[3]!, percent(p[3]!));
  shown.margins.forEach((bar, i) => bar.show(p[4 + i]!, percent(p[4 + i]!), p[4 + i] === Math.max(p[4]!, p[5]!, p[6]!)));
  element("state").textContent = playing.stateText();
  element("score").textContent = String(playing.score);
  best = Math.max(best, playing.score);
  element("best").textContent = String(best);
  element("time").textContent = `${(playing.frame / flappy.FRAMES_PER_SECOND).toFixed(1)} s`;
  const median = [...micros].sort((one, other) => one - other)[micros.length >> 1] ?? 0;
  element("micros").textContent = `${median.toFixed(0)} µs (median of ${micros.length})`;
  element("frames").textContent = `${frames} shown, ${missed} missed`;
}

function frame(now: number): void {
  requestAnimationFrame(frame);
  if (!game || !compiled || isPaused) return;
  if (before !== undefined) {
    const passed = now - before;
    frames++;
    // on a screen of 60 Hz a frame that takes two intervals is one that was missed
    missed += Math.max(0, Math.round(passed / STEP_MS) - 1);
    owed = Math.min(owed + passed, MOST_LATE * STEP_MS);
  }
  before = now;
  // half a step of slack: a screen's frames do not come at exactly a sixtieth of a second
  try {
    while (game.alive && owed >= STEP_MS / 2) {
      step(game, compiled);
      owed -= STEP_MS;
    }
  } catch (error) {
    pause(true); // a model may fail on some states only
    say(element("error"), (error as Error).message);
    return;
  }
  if (!game.alive && crashedAt === undefined) {
    crashedAt = now;
    say(element("status"), `Crashed after ${game.score} gaps, seed ${seed.value}`);
  }
  picture.draw(game);
  tell(game, compiled);
  if (crashedAt !== undefined && now - crashedAt > CRASH_MS && pilot() === "model") {
    seed.value = String(Number(seed.value) + 1);
    restart();
  }
}

function thrust(on: boolean): void {
  isHeld = on;
  if (!on) return;
  takeControls("hand");
  if (crashedAt !== undefined && performance.now() - crashedAt > CRASH_MS / 3) restart();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const target = event.target as HTMLElement;
  const key = event.key.toLowerCase();
  // keys that a control of the page has its own use for are left to it
  if (key === " " && !/^(BUTTON|SELECT|INPUT|A)$/.test(target.tagName)) {
    event.preventDefault(); // or the page would scroll
    if (!event.repeat) thrust(true);
  } else if (target.tagName === "SELECT" || (target.tagName === "INPUT" && target !== pilots[0] && target !== pilots[1])) return;
  else if (key === "h") takeControls("model");
  else if (key === "p") pause(!isPaused);
  else if (key === "r") restart();
});
document.addEventListener("keyup", (event) => {
  if (event.key === " ") thrust(false);
});
picture.canvas.addEventListener("pointerdown", () => thrust(true));
for (const name of ["pointerup", "pointercancel", "blur"]) window.addEventListener(name, () => thrust(false));
element("restart").addEventListener("click", restart);
pauseButton.addEventListener("click", () => pause(!isPaused));
difficulty.addEventListener("change", restart);
seed.addEventListener("change", restart);
document.addEventListener("visibilitychange", () => (before = undefined));

const { models } = await listed();
void offerModels(models, (opened) => {
  compiled = opened.compile(flappy.QUESTIONS);
  model = opened;
  micros.length = 0;
  element("engine").textContent = `${opened.name}, ${opened.isa}`;
  restart();
});
requestAnimationFrame(frame);
