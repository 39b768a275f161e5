/** The clock of an episode: it follows real time, whatever frames are dropped. */

/** Seconds for which a looping episode shows its end. */
const HOLD_S = 1;

export class Player {
  time = 0;
  duration = 0;
  speed = 1;
  loop = true;
  playing = false;
  private last = NaN;
  private held = 0;

  /** Moves the time to the present `now` in ms, as browsers give it to frames. */
  tick(now: number): void {
    const passed = Number.isNaN(this.last) ? 0 : (now - this.last) / 1000;
    this.last = this.playing ? now : NaN;
    if (!this.playing) return;
    this.time += passed * this.speed;
    if (this.time < this.duration) return;
    this.time = this.duration;
    this.held += passed;
    if (!this.loop || this.duration === 0) this.pause(this.duration);
    else if (this.held > HOLD_S) this.seek(0);
  }

  play(): void {
    if (this.time >= this.duration) this.time = 0;
    this.playing = true;
    this.last = NaN;
    this.held = 0;
  }

  /** Stops, at a time in s if it is given. */
  pause(time = this.time): void {
    this.playing = false;
    this.last = NaN;
    this.time = Math.min(Math.max(time, 0), this.duration);
  }

  /** Goes to a time, and goes on playing if it played. */
  seek(time: number): void {
    this.time = Math.min(Math.max(time, 0), this.duration);
    this.last = NaN;
    this.held = 0;
  }

  /** Forgets the time that passed while the page was hidden. */
  wake(): void {
    this.last = NaN;
  }
}
