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
const SECOND_TRY = 600;

export class Quality {
  level = 2;
  /** Frames a second, 0 before they are known. */
  rate = 0;
  private recent: number[] = [];
  private frames = 0;
  private best = LEVELS.length - 1;

  constructor(private readonly set: (ratio: number, shadows: boolean) => void) {
    this.set(...LEVELS[this.level]);
  }

  /** Notes the ms since the last frame of a playing episode; Infinity after a pause. */
  frame(ms: number): void {
    if (!Number.isFinite(ms)) {
      this.recent = [];
      return;
    }
    this.frames += 1;
    this.recent = [...this.recent, ms].slice(-PATIENCE);
    if (this.recent.length < PATIENCE) return;
    const middle = [...this.recent].sort((a, b) => a - b)[PATIENCE >> 1];
    this.rate = 1000 / middle;
    if (middle > SLOW_MS && this.level > 0) {
      this.best = this.level - 1;
      this.change(this.best);
    } else if (middle < FAST_MS && this.level < LEVELS.length - 1) {
      // A level that was too slow is tried again, later: something else may have been busy.
      if (this.frames >= (this.level < this.best ? CONFIDENCE : SECOND_TRY)) this.change(this.level + 1);
    }
  }

  private change(level: number): void {
    this.level = level;
    this.recent = [];
    this.frames = 0;
    this.set(...LEVELS[level]);
  }
}
