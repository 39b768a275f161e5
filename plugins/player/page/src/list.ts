/** The list of episodes: filters, order, and links. */
import { text } from "./facts.ts";
import { element, type Episode, index, made } from "./page.ts";

const numeric = (name: string) => index.episodes.some(({ row }) => typeof row[name] === "number");
/** Columns that have filters of their own, or name an episode. */
const SAID = ["episode", "seed", "level", "return", "fell"];
const columns = Object.keys(index.episodes[0].row);

/** What is chosen of a column that has few values. */
function choice(name: string): HTMLSelectElement {
  const select = document.createElement("select");
  const values = [...new Set(index.episodes.map(({ row }) => row[name]))].sort((a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)),
  );
  select.append(new Option("all", ""), ...values.map((value) => new Option(text(value), text(value))));
  return select;
}

function bound(name: string): HTMLInputElement {
  const input = document.createElement("input");
  input.type = "number";
  input.step = "any";
  input.placeholder = name;
  input.setAttribute("aria-label", name);
  return input;
}

function labelled(name: string, ...inputs: HTMLElement[]): HTMLElement {
  const label = made(inputs.length > 1 ? "fieldset" : "label", inputs.length > 1 ? "" : name);
  if (inputs.length > 1) label.append(made("legend", name));
  label.append(...inputs);
  return label;
}

export function outcome({ row, ended }: Episode): string {
  if (row.success === true) return "success";
  return row.terminated === true || ended.startsWith("fell") ? "fell" : "no success";
}

export class List {
  /** Numbers of the episodes that pass the filters, in order. */
  shown: number[] = [];
  private descending = false;
  private readonly cells = ["terrain", "skill", "level"].map((name) => [name, choice(name)] as const);
  private readonly outcome = document.createElement("select");
  private readonly range = [bound("least"), bound("most")];
  private readonly other = document.createElement("select");
  private readonly otherRange = [bound("at least"), bound("at most")];
  private readonly body = document.querySelector("#rows tbody") as HTMLElement;
  private readonly rows: HTMLElement[];

  /** open is called with the number of an episode. */
  constructor(open: (number: number) => void) {
    for (const name of ["all", "success", "no success", "fell"]) this.outcome.append(new Option(name, name));
    for (const name of columns.filter((name) => numeric(name) && !SAID.includes(name))) this.other.append(new Option(name.replaceAll("_", " "), name));
    const form = element<HTMLFormElement>("filters");
    form.append(
      ...this.cells.map(([name, select]) => labelled(name, select)),
      labelled("outcome", this.outcome),
      labelled("return", ...this.range),
      labelled("a column", this.other, ...this.otherRange),
    );
    form.addEventListener("input", () => this.update());
    form.addEventListener("submit", (event) => event.preventDefault());
    this.rows = index.episodes.map((episode, number) => this.row(episode, () => open(number)));
    const head = document.querySelector("#rows th") as HTMLElement;
    const turn = made("button", "return");
    turn.setAttribute("type", "button");
    turn.addEventListener("click", () => {
      this.descending = !this.descending;
      this.update();
    });
    head.replaceChildren(turn);
    this.update();
  }

  /** Sets the filters of the cells that an address names. */
  choose(wanted: URLSearchParams): void {
    for (const [name, select] of this.cells) if (wanted.has(name)) select.value = wanted.get(name) ?? "";
    this.update();
  }

  /** Marks the episode that is shown. */
  mark(number: number): void {
    this.rows.forEach((row, k) => (k === number ? row.setAttribute("aria-current", "true") : row.removeAttribute("aria-current")));
    const row = this.rows[number];
    const box = element("rows");
    const below = row.offsetTop + row.offsetHeight - box.clientHeight;
    if (row.offsetTop < box.scrollTop || below > box.scrollTop) box.scrollTop = Math.max(below, 0);
  }

  /** The episode so many places after one, around the ends. */
  beside(number: number, places: number): number {
    const at = this.shown.indexOf(number);
    return this.shown.length ? this.shown[(at + places + this.shown.length) % this.shown.length] : number;
  }

  private row(episode: Episode, open: () => void): HTMLElement {
    const row = made("tr");
    const link = made("a", Number(episode.row.return).toFixed(2));
    link.setAttribute("href", `#e=${encodeURIComponent(episode.id)}`);
    const first = made("td");
    first.append(link);
    row.append(first, ...["terrain", "skill", "level"].map((name) => made("td", text(episode.row[name]))));
    row.append(made("td", outcome(episode), episode.row.success === true ? "good" : "bad"));
    row.addEventListener("click", (event) => {
      event.preventDefault();
      open();
    });
    return row;
  }

  private update(): void {
    const between = (value: unknown, [low, high]: HTMLInputElement[]) => {
      const number = value === null ? NaN : Number(value); // a missing value is within no bound
      return (low.value === "" || number >= Number(low.value)) && (high.value === "" || number <= Number(high.value));
    };
    const passes = (episode: Episode) =>
      this.cells.every(([name, select]) => select.value === "" || text(episode.row[name]) === select.value) &&
      (this.outcome.value === "all" || outcome(episode) === this.outcome.value) &&
      between(episode.row.return, this.range) &&
      between(episode.row[this.other.value], this.otherRange);
    const sign = this.descending ? -1 : 1;
    const result = (number: number) => Number(index.episodes[number].row.return);
    this.shown = [...index.episodes.keys()]
      .filter((number) => passes(index.episodes[number]))
      .sort((a, b) => sign * (result(a) - result(b)));
    this.body.replaceChildren(...this.shown.map((number) => this.rows[number]));
    document.querySelector("#rows th")?.setAttribute("aria-sort", this.descending ? "descending" : "ascending");
    element("count").textContent = `${this.shown.length} of ${index.episodes.length} episodes`;
  }
}
