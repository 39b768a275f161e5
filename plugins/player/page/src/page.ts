/** What the page holds: its index, written by plugins/player/page.py, and blocks of numbers. */
import { decode, type Matrix } from "./blocks.ts";

export type Vec3 = [number, number, number];
/** w, x, y, z */
export type Quat = [number, number, number, number];
export type Value = string | number | boolean | null;

export interface Shape {
  kind: "sphere" | "capsule" | "ellipsoid" | "cylinder" | "box" | "mesh";
  size: Vec3;
  pos: Vec3;
  quat: Quat;
  /** 0 to 255 */
  colour: Vec3;
  triangles?: string;
}

export interface Joint {
  kind: "hinge" | "slide";
  axis: Vec3;
  pos: Vec3;
  rest: number;
  /** Of its position in a pose. */
  index: number;
}

export interface Body {
  parent: number;
  pos: Vec3;
  quat: Quat;
  joints: Joint[];
  shapes: Shape[];
}

export interface Robot {
  name: string;
  root: number;
  legLength: number;
  bodies: Body[];
  feet: { body: number; pos: Vec3 }[];
  footRadius: number;
}

export interface Chart {
  name: string;
  unit: string;
  curves: string[];
}

export interface Barrier {
  centre: Vec3;
  half: Vec3;
  yaw: number;
}

export interface Episode {
  id: string;
  tile: number;
  ended: string;
  barriers: Barrier[];
  /** How another policy ended on the same start. */
  ghost: { return: number; ended: string } | null;
  row: Record<string, Value>;
}

export interface Index {
  title: string;
  note: string;
  /** The policy of the ghosts, or nothing. */
  ghost: string;
  /** The episode that plays when the page opens without an address; none for the worst, still. */
  start: number | null;
  /** Seconds of a control step. */
  dt: number;
  robot: Robot;
  charts: Chart[];
  tiles: { resolution: number; period: number }[];
  episodes: Episode[];
}

/** One period of the ground, heights in m from -period / 2, row after row along y. */
export interface Tile {
  heights: Matrix;
  resolution: number;
  period: number;
}

/** An episode with its numbers. */
export interface Loaded {
  episode: Episode;
  number: number;
  /** (F, 7 + J): position, quaternion wxyz, joints. */
  poses: Matrix;
  /** (T, C): the curves of all charts. */
  series: Matrix;
  tile: Tile;
  /** The other policy's poses. */
  ghost?: Matrix;
  /** Seconds from the first pose to the last, of the robot or of its ghost. */
  duration: number;
  /** Seconds to the robot's last pose. */
  end: number;
}

/** An element of the page by its id. */
export function element<T extends HTMLElement = HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}

/** A new element with text; text never becomes markup. */
export function made(tag: string, text = "", name = ""): HTMLElement {
  const node = document.createElement(tag);
  node.textContent = text;
  if (name) node.className = name;
  return node;
}

export const index = JSON.parse(element("index").textContent ?? "") as Index;

const block = (id: string) => decode(element(id).textContent ?? "");

/** Reads an episode's numbers. */
export async function load(number: number): Promise<Loaded> {
  const episode = index.episodes[number];
  const [poses, series, heights, ghost] = await Promise.all([
    block(`poses-${number}`),
    block(`series-${number}`),
    block(`tile-${episode.tile}`),
    episode.ghost ? block(`ghost-${number}`) : undefined,
  ]);
  const tile = { heights, ...index.tiles[episode.tile] };
  const frames = Math.max(poses.rows, ghost?.rows ?? 0);
  const [duration, end] = [frames, poses.rows].map((rows) => (rows - 1) * index.dt);
  return { episode, number, poses, series, tile, ghost, duration, end };
}

/** The column of a chart's curve in a series; -1 if it was not recorded. */
export function column(chart: string, curve: string): number {
  let first = 0;
  for (const each of index.charts) {
    const at = each.curves.indexOf(curve);
    if (each.name === chart) return at < 0 ? -1 : first + at;
    first += each.curves.length;
  }
  return -1;
}

/** A curve's value at a step; 0 where it was not recorded. */
export function at(loaded: Loaded, step: number, curve: number): number {
  const row = Math.min(Math.max(step, 0), loaded.series.rows - 1);
  return curve < 0 ? 0 : loaded.series.values[row * loaded.series.columns + curve];
}
