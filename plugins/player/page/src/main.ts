/** Wires the page: list, view, curves, clock, keyboard and links. */
import { Curves } from "./curves.ts";
import { showFacts } from "./facts.ts";
import { List, outcome } from "./list.ts";
import { element, index, load, type Loaded } from "./page.ts";
import { Player } from "./player.ts";
import { Stage } from "./stage.ts";
import "./style.css";

const LEGEND_MS = 150;
const SPEEDS = element<HTMLSelectElement>("speed");
const scrub = element<HTMLInputElement>("scrub");
const play = element<HTMLButtonElement>("play");
const follow = element<HTMLInputElement>("follow");

const ghost = element<HTMLInputElement>("ghost");

const player = new Player();
let loaded: Loaded | undefined;
let stage: Stage | undefined;
let asked = false;
let drawnAt = NaN;
let legendAt = 0;

/** Asks for one frame; frames follow each other only while the episode plays. */
function draw(): void {
  if (asked) return;
  asked = true;
  requestAnimationFrame(frame);
}

function frame(now: number): void {
  asked = false;
  if (!loaded) return;
  const played = player.playing;
  player.tick(now);
  stage?.quality.frame(played ? now - drawnAt : Infinity);
  drawnAt = played ? now : NaN;
  stage?.draw(loaded, player.time);
  const values = !player.playing || now - legendAt > LEGEND_MS;
  if (values) legendAt = now;
  curves.move(player.time, values);
  show();
  if (played && !player.playing) settle();
  if (player.playing) draw();
}

/** Shows the time in numbers. */
function show(): void {
  if (!loaded) return;
  const time = player.time.toFixed(2);
  scrub.value = String(player.time);
  scrub.setAttribute("aria-valuetext", `${time} seconds`);
  element("clock").textContent = `${time} s`;
  showEnd(loaded, player.time);
  const base = stage?.robot.base;
  const rate = stage?.quality.rate ?? 0;
  const place = base ? `x ${base.x.toFixed(3)}  y ${base.y.toFixed(3)}  z ${base.z.toFixed(3)} m` : "";
  element("readout").textContent = `${place}${player.playing && rate ? `  ${rate.toFixed(0)} frames/s` : ""}`;
  play.textContent = player.playing ? "❚❚" : "▶";
  play.setAttribute("aria-label", player.playing ? "Pause" : "Play");
  Object.assign(document.body.dataset, { rate: rate.toFixed(1), quality: String(stage?.quality.level) });
}

/** Says that the robot's recording has ended: its last pose stands still, without forces. */
function showEnd({ episode, end }: Loaded, time: number): void {
  const notice = element("ended");
  const over = time >= end - 1e-6;
  notice.hidden = !over;
  if (!over) return;
  const fell = outcome(episode) === "fell";
  const ghost = time < player.duration - 1e-6 && ghostShown() ? "; the ghost goes on" : "";
  notice.className = fell ? "bad" : "";
  notice.textContent = `${fell ? "fell" : "ended"} at ${end.toFixed(2)} s; the recording ends here${ghost}`;
}

/** Writes the episode and the time into the page's address. */
function settle(): void {
  if (!loaded) return;
  const time = player.time > 0 ? `&t=${player.time.toFixed(2)}` : "";
  history.replaceState(null, "", `#e=${encodeURIComponent(loaded.episode.id)}${time}`);
}

async function open(number: number, time = 0, playing = player.playing): Promise<void> {
  const next = await load(number);
  loaded = next;
  player.duration = next.duration;
  player.seek(time);
  scrub.max = String(next.duration);
  stage?.show(next);
  if (stage) stage.reset(next, player.time);
  showFacts(next);
  curves.show(next);
  list.mark(number);
  if (playing) player.play();
  settle();
  draw();
  document.body.dataset.state = "ready";
}

function toggle(): void {
  if (player.playing) player.pause();
  else player.play();
  settle();
  draw();
}

function seek(time: number): void {
  player.seek(time);
  settle();
  draw();
}

/** Opens what the address names: an episode and a time in it, or the worst of a terrain, skill and level. */
function fromAddress(): void {
  const wanted = new URLSearchParams(location.hash.slice(1));
  list.choose(wanted);
  if (wanted.size === 0 && index.start !== null) {
    void open(index.start, 0, !matchMedia("(prefers-reduced-motion: reduce)").matches);
    return;
  }
  const number = index.episodes.findIndex(({ id }) => id === wanted.get("e"));
  const time = Number(wanted.get("t")) || 0;
  void open(number >= 0 ? number : list.shown[0] ?? 0, time, false);
}

const list = new List((number) => void open(number));
const curves = new Curves((time) => {
  player.pause();
  seek(time);
});

const KEYS: Record<string, (event: KeyboardEvent) => void> = {
  " ": toggle,
  ArrowLeft: (event) => step(event.shiftKey ? -10 : -1),
  ArrowRight: (event) => step(event.shiftKey ? 10 : 1),
  Home: () => seek(0),
  End: () => seek(player.duration),
  "-": () => faster(-1),
  "+": () => faster(1),
  "=": () => faster(1),
  f: () => setFollow(!follow.checked),
  g: () => setGhost(!ghost.checked),
  r: () => loaded && (stage?.reset(loaded, player.time), draw()),
  n: () => loaded && void open(list.beside(loaded.number, 1)),
  p: () => loaded && void open(list.beside(loaded.number, -1)),
};

function step(steps: number): void {
  player.pause();
  seek((Math.round(player.time / index.dt) + steps) * index.dt);
}

function faster(places: number): void {
  SPEEDS.selectedIndex = Math.min(Math.max(SPEEDS.selectedIndex + places, 0), SPEEDS.options.length - 1);
  player.speed = Number(SPEEDS.value);
}

function ghostShown(): boolean {
  return index.ghost !== "" && ghost.checked;
}

function setGhost(on: boolean): void {
  ghost.checked = on;
  if (stage) stage.haunted = on;
  draw();
}

function setFollow(on: boolean): void {
  follow.checked = on;
  if (stage) stage.follow = on;
}

document.addEventListener("keydown", (event) => {
  const typing = event.target instanceof HTMLElement && event.target.matches("input:not([type=range]):not([type=checkbox]), select");
  const pressing = event.key === " " && event.target instanceof HTMLElement && event.target.matches("button, a, summary, input");
  if (typing || pressing || event.ctrlKey || event.metaKey || event.altKey) return;
  const act = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!act) return;
  event.preventDefault();
  act(event);
});
scrub.addEventListener("input", () => seek(Number(scrub.value)));
play.addEventListener("click", toggle);
element("previous").addEventListener("click", (event) => KEYS.p(event as unknown as KeyboardEvent));
element("next").addEventListener("click", (event) => KEYS.n(event as unknown as KeyboardEvent));
SPEEDS.addEventListener("change", () => (player.speed = Number(SPEEDS.value)));
ghost.addEventListener("change", () => setGhost(ghost.checked));
(ghost.parentElement as HTMLElement).hidden = index.ghost === "";
element("ghost-key").hidden = index.ghost === "";
element("ghost-name").textContent = index.ghost;
follow.addEventListener("change", () => setFollow(follow.checked));
element<HTMLInputElement>("loop").addEventListener("change", (event) => {
  player.loop = (event.target as HTMLInputElement).checked;
});
document.addEventListener("visibilitychange", () => player.wake());
addEventListener("hashchange", fromAddress);

element("summary").textContent = `${index.robot.name}, ${index.episodes.length} episodes. ${index.note}`;
try {
  stage = new Stage(element<HTMLCanvasElement>("canvas"), draw);
} catch (error) {
  const fault = element("fault");
  fault.hidden = false;
  fault.textContent = `No 3-D view: this browser has no WebGL (${String(error)}). Curves and facts are shown all the same.`;
}
fromAddress();
