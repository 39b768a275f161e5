/** The clock of an episode: it follows real time, whatever frames are dropped. */

export class Player {
  time = 0;
  duration = 0;
  speed = 1;
  loop = true;
  playing = false;
  private last = NaN;

  /** Moves the time to the present `now` in ms, as browsers give it to frames. */
  tick(now: number): void {
    const passed = Number.isNaN(this.last) ? 0 : (now - this.last) / 1000;
    this.last = this.playing ? now : NaN;
    if (!this.playing) return;
    this.time += passed * this.speed;
    if (this.time < this.duration) return;
    if (this.loop && this.duration > 0) this.time %= this.duration;
    else this.pause(this.duration);
  }

  play(): void {
    if (this.time >= this.duration) this.time = 0;
    this.playing = true;
    this.last = NaN;
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
  }

  /** Forgets the time that passed while the page was hidden. */
  wake(): void {
    this.last = NaN;
  }
}
