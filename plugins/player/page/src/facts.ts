/** The facts of an episode: outcome, cell, start and draws, from its row of the catalog. */
import { element, index, type Loaded, made, type Value } from "./page.ts";

const CELL = ["terrain", "skill", "level", "return", "length"];
const GROUPS: [string, (name: string) => boolean][] = [
  ["Command, mean over the episode", (name) => name.startsWith("command_")],
  ["Passage and push", (name) => name.startsWith("passage") || name.startsWith("push_")],
  ["Made by", (name) => /^(seed|simulator|expert|policy|episode$)/.test(name)],
];
const SAID = [...CELL, "success", "terminated", "fell"];

export function text(value: Value): string {
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (value === null) return "–";
  return typeof value === "number" && !Number.isInteger(value) ? `${+value.toPrecision(4)}` : `${value}`;
}

function table(row: Record<string, Value>, names: string[]): HTMLElement {
  const list = made("dl");
  for (const name of names) {
    const pair = made("div");
    pair.append(made("dt", name.replace(/^command_/, "").replaceAll("_", " ")), made("dd", text(row[name])));
    list.append(pair);
  }
  return list;
}

/** Shows the facts of an episode. */
export function showFacts({ episode, series }: Loaded): void {
  const { row } = episode;
  const box = element("facts");
  const success = row.success === true;
  const outcome = made("p", "", `outcome ${success ? "good" : "bad"}`);
  outcome.append(made("strong", success ? "success" : "no success"), ` – ${episode.ended}`);
  outcome.append(` after ${(series.rows * index.dt).toFixed(2)} s`);
  const groups = GROUPS.map(([title, belongs]) => [title, Object.keys(row).filter(belongs)] as const);
  const grouped = new Set([...SAID, ...groups.flatMap(([, names]) => names)]);
  const draws = Object.keys(row).filter((name) => !grouped.has(name));
  if (episode.ghost) {
    outcome.append(made("br"), `Ghost, ${index.ghost}: return ${text(episode.ghost.return)}, ${episode.ghost.ended}`);
  }
  box.replaceChildren(outcome, table(row, CELL.filter((name) => name in row)));
  for (const [title, names] of [["Draws", draws] as const, ...groups]) {
    if (!names.length) continue;
    const part = document.createElement("details");
    part.open = title === "Draws";
    part.append(made("summary", title), table(row, names));
    box.append(part);
  }
}
