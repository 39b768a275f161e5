/** Chooses how finely to draw from the time between frames. */

/** Pixels of the canvas per pixel of the page, and shadows; from coarse to fine. */
const LEVELS: [number, boolean][] = [
  [0.4, false],
  [0.6, false],
  [1, false],
  [Math.min(2, 1.5 * devicePixelRatio), true],
];
const SLOW_MS = 55;
const FAST_MS = 20;
const PATIENCE = 8;
const CONFIDENCE = 45;

export class Quality {
  level = 2;
  /** Frames a second, 0 before they are known. */
  rate = 0;
  private times: number[] = [];
  private best = LEVELS.length - 1;

  constructor(private readonly set: (ratio: number, shadows: boolean) => void) {
    this.set(...LEVELS[this.level]);
  }

  /** Notes the ms since the last frame of a playing episode; Infinity after a pause. */
  frame(ms: number): void {
    if (!Number.isFinite(ms)) {
      this.times = [];
      return;
    }
    this.times.push(ms);
    const recent = this.times.slice(-PATIENCE);
    const middle = recent.sort((a, b) => a - b)[recent.length >> 1];
    if (recent.length < PATIENCE) return;
    this.rate = 1000 / middle;
    if (middle > SLOW_MS && this.level > 0) {
      this.best = this.level - 1;
      this.change(this.best);
    } else if (middle < FAST_MS && this.level < this.best && this.times.length >= CONFIDENCE) {
      this.change(this.level + 1);
    }
  }

  private change(level: number): void {
    this.level = level;
    this.times = [];
    this.set(...LEVELS[level]);
  }
}
