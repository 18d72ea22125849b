/** The picture of a flight: the world as wide as the screen allows, the drone and its trail. Colours are the style sheet's. */

import { flappy } from "../src/index.js";

/** Units of the world from the left edge to the drone's nose, and in all. */
const NOSE = 52;
const WIDTH = 140;
/** Steps whose places are shown behind the drone. */
const TRAIL = 90;

export class Picture {
  private readonly context: CanvasRenderingContext2D;
  private trail: { flown: number; altitude: number }[] = [];
  private flown = 0;
  private lastDistance: number | undefined;
  private next: [number, number] | undefined;
  private passed: [number, number][] = []; // the gaps behind the drone, which the game has forgotten; newest first
  private thrusts = false;

  constructor(readonly canvas: HTMLCanvasElement) {
    this.context = canvas.getContext("2d")!;
  }

  /** A new flight. */
  begin(): void {
    this.trail = [];
    this.flown = 0;
    this.passed = [];
    this.lastDistance = this.next = undefined;
  }

  /** Takes note of where the drone is, once a step. */
  advance(game: flappy.Flappy, thrusts: boolean): void {
    const { distance, spacing } = game;
    if (this.lastDistance !== undefined) {
      // where a wall was passed the distance grew by the spacing
      this.flown += (this.lastDistance - distance + spacing) % spacing;
      if (distance > this.lastDistance) this.passed = [this.next!, ...this.passed.slice(0, 1)];
    }
    this.lastDistance = distance;
    this.next = game.gaps[0];
    this.thrusts = thrusts;
    this.trail.push({ flown: this.flown, altitude: game.altitude });
    if (this.trail.length > TRAIL) this.trail.shift();
  }

  draw(game: flappy.Flappy): void {
    const { canvas, context } = this;
    const scale = this.fit();
    const colours = getComputedStyle(canvas);
    const paint = (name: string): void => {
      context.fillStyle = colours.getPropertyValue(`--${name}`);
    };
    const x = (units: number): number => units * scale;
    const y = (altitude: number): number => canvas.height - altitude * scale;
    const block = (left: number, bottom: number, width: number, height: number): void =>
      context.fillRect(x(left), y(bottom + height), x(width), x(height));

    paint("sky");
    context.fillRect(0, 0, canvas.width, canvas.height);
    const { distance, spacing, altitude, alive } = game;
    [...[...this.passed].reverse(), ...game.gaps].forEach(([bottom, top], i) => {
      const left = NOSE + distance + (i - this.passed.length) * spacing;
      paint("wall");
      block(left, 0, flappy.WALL_LENGTH, bottom);
      block(left, top, flappy.WALL_LENGTH, flappy.HEIGHT - top);
      paint("rim");
      block(left - 0.5, bottom - 1, flappy.WALL_LENGTH + 1, 1);
      block(left - 0.5, top, flappy.WALL_LENGTH + 1, 1);
    });
    paint("trail");
    for (const place of this.trail) block(NOSE - flappy.DRONE_LENGTH / 2 - (this.flown - place.flown), place.altitude + 0.75, 0.5, 0.5);
    const tail = NOSE - flappy.DRONE_LENGTH;
    if (this.thrusts && alive) {
      paint("flame");
      block(tail + 0.25, altitude - 1.4, 0.7, 1.4);
      block(NOSE - 0.95, altitude - 1.4, 0.7, 1.4);
    }
    paint(alive ? "drone" : "flame");
    // the rules' rectangle: two rotors above, a beam between them, the body below
    block(tail, altitude + 1.5, 1.2, 0.5);
    block(NOSE - 1.2, altitude + 1.5, 1.2, 0.5);
    block(tail + 0.45, altitude + 0.9, flappy.DRONE_LENGTH - 0.9, 0.45);
    block(tail + 0.45, altitude + 0.9, 0.3, 0.7);
    block(NOSE - 0.75, altitude + 0.9, 0.3, 0.7);
    block(tail + 0.9, altitude, flappy.DRONE_LENGTH - 1.8, 1.1);
  }

  /** Sets the canvas to the screen's own pixels; gives how many of them a unit has. */
  private fit(): number {
    const width = Math.round(this.canvas.clientWidth * (globalThis.devicePixelRatio || 1)) || WIDTH;
    const height = Math.round((width * flappy.HEIGHT) / WIDTH);
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
    }
    return width / WIDTH;
  }
}
