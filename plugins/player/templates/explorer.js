"use strict";
// The explorer's counting and drawing. plugins/player/explorer.py writes the catalog and the codes.
(async () => {
const element = (id) => document.getElementById(id);
const catalog = JSON.parse(element("catalog").textContent);
const n = catalog.episodes;
const BRUSHES = 31; // bits of `out`
const GROUPS = 9;
const LISTED = 30;
const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; text is never read as markup. */
function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function draw(parent, name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return parent.appendChild(made);
}

const count = (value) => value.toLocaleString("en");
const fixed = (value) => Number.isFinite(value) ? value.toFixed(2) : "–";
const short = (value) => value >= 1e4 ? `${+(value / 1e3).toPrecision(3)}k` : count(value);
const words = (name) => name.replaceAll("_", " ");

// ---- columns: codes (a byte an episode), unpacked when first needed

const columns = catalog.columns.map((column, index) => {
  const bins = Math.max(0, column.edges.length - 1);
  const labels = column.text ? [...column.values] : column.values.map((v) => v.replace(/e0$/, ""));
  for (let i = 0; i < bins; i++) labels.push(`${column.edges[i]} – ${column.edges[i + 1]}`);
  if (column.others) labels.push("all others");
  if (column.missing) labels.push("missing");
  return { ...column, index, bins, labels, size: labels.length, mask: null, bit: 0 };
});
const named = (name) => columns.find((column) => column.name === name);

async function unpacked(id) {
  const text = atob(element(id).textContent);
  element(id).remove();
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

function load(column) {
  column.loading ??= unpacked(`column-${column.index}`).then((bytes) => {
    column.codes = new Uint8Array(bytes);
  });
  return column.loading;
}

// ---- state: which brushes each episode fails, one bit a brushed column

const out = new Uint32Array(n);
let split = null; // { column, labels, of: group of each episode }
const zeros = new Uint8Array(n);
const whole = { labels: [""], of: zeros };
let kept = new Uint32Array(0); // the episodes that all brushes keep
let returns, successes;
const charts = new Map(); // column -> chart

function brush(column, mask) {
  const all = mask === null || mask.every((each) => each) || !mask.some((each) => each);
  if (all && !column.bit) return;
  if (!column.bit) {
    const used = columns.reduce((bits, each) => bits | each.bit, 0);
    const free = [...Array(BRUSHES).keys()].find((k) => !(used & (1 << k)));
    if (free === undefined) return;
    column.bit = 1 << free;
  }
  column.mask = all ? null : mask;
  const { bit, codes } = column;
  for (let i = 0; i < n; i++) out[i] = all || mask[codes[i]] ? out[i] & ~bit : out[i] | bit;
  if (all) column.bit = 0;
  later();
}

/** The episodes that fail no brush but that of the given bits. */
function rowsWithin(bits) {
  const rows = new Uint32Array(n);
  let found = 0;
  for (let i = 0; i < n; i++) if ((out[i] & ~bits) === 0) rows[found++] = i;
  return rows.subarray(0, found);
}

/** Episodes of every code and group among rows; with `outcomes` also summed returns and successes. */
function counted(rows, codes, size, groups, outcomes) {
  const { of, labels } = groups, g = labels.length;
  const number = new Float64Array(size * g), sum = new Float64Array(size * g), good = new Float64Array(size * g);
  for (const i of rows) number[codes[i] * g + of[i]]++;
  if (outcomes) {
    for (const i of rows) {
      sum[codes[i] * g + of[i]] += returns[i];
      good[codes[i] * g + of[i]] += successes[i];
    }
  }
  return { number, sum, good };
}

/** The groups of a split: values as they are, the rarest together; bins in about four equal parts. */
function grouping(column) {
  const { codes, bins, edges, size } = column;
  const counts = new Float64Array(size), group = new Uint8Array(size), labels = [];
  for (let i = 0; i < n; i++) counts[codes[i]]++;
  if (bins) {
    const present = counts.subarray(0, bins).reduce((a, b) => a + b, 0);
    for (let code = 0, first = 0, sum = 0; code < bins; code++) {
      sum += counts[code];
      group[code] = labels.length;
      if (sum >= present * (labels.length + 1) / 4 || code === bins - 1) {
        labels.push(`${edges[first]} – ${edges[code + 1]}`);
        first = code + 1;
      }
    }
    if (column.missing) group[bins] = labels.push("missing") - 1;
  } else {
    const ranked = [...counts.keys()].sort((a, b) => counts[b] - counts[a]);
    const own = size <= GROUPS ? ranked : ranked.slice(0, GROUPS - 1);
    group.fill(own.length);
    for (const code of own.sort((a, b) => a - b)) group[code] = labels.push(column.labels[code]) - 1;
    if (own.length < size) labels.push("all others");
  }
  const of = new Uint8Array(n);
  for (let i = 0; i < n; i++) of[i] = group[codes[i]];
  return { column, labels, of };
}

const colour = (g) => !split ? "var(--bar)" : g < GROUPS ? `var(--series-${g})` : "var(--series-more)";

// ---- conditions and commands

const quoted = (text) => `'${text.replaceAll("'", "''")}'`;

/** The runs of chosen codes, as [first, last]. */
function runs(mask) {
  const found = [];
  mask.forEach((chosen, code) => {
    if (chosen && code && mask[code - 1]) found.at(-1)[1] = code;
    else if (chosen) found.push([code, code]);
  });
  return found;
}

function term(column) {
  const { sql, edges, bins, mask } = column, parts = [];
  if (bins) {
    for (const [a, b] of runs(mask.slice(0, bins)))
      parts.push(`${sql} >= ${edges[a]} and ${sql} < ${edges[b + 1]}`);
  } else {
    const values = column.values.map((value) => column.text ? quoted(value) : value);
    const chosen = values.filter((_, code) => mask[code]);
    const left = values.filter((_, code) => !mask[code]);
    if (column.others && mask[values.length])
      parts.push(left.length ? `${sql} not in (${left.join(", ")})` : `${sql} is not null`);
    else if (chosen.length === 1) parts.push(`${sql} = ${chosen[0]}`);
    else if (chosen.length) parts.push(`${sql} in (${chosen.join(", ")})`);
  }
  if (column.missing && mask[column.size - 1]) parts.push(column.missing);
  return parts.length > 1 ? `(${parts.join(" or ")})` : parts[0];
}

const brushed = () => columns.filter((column) => column.mask);
const shell = (text) =>
  /["$`\\!]/.test(text) ? `'${text.replaceAll("'", "'\\''")}'` : `"${text}"`;

/** The store's path as this page's reader has it; its name alone where the page came from a server. */
function storePlace() {
  const { place, store } = catalog;
  if (place.includes("://")) return place;
  if (location.protocol !== "file:" || place === store) return store;
  const relative = place.split("/").map(encodeURIComponent).join("/");
  return decodeURIComponent(new URL(relative, location.href).pathname);
}
const place = /^[\w.\/:@%+=-]+$/.test(storePlace()) ? storePlace() : shell(storePlace());

function command() {
  const where = [catalog.within, ...brushed().map(term)].filter(Boolean).join(" and ");
  return `gaitforge query ${place}${where ? ` --where ${shell(where)}` : ""}`;
}

// ---- charts: one a column; bins stand side by side, values are rows

const SUMS = ["episodes", "share"]; // measures that need no outcomes
const WIDTH = 300, TOP = 13, BASE = 112, ROW = 18, NAMES = 112, ENDS = 252;

class Chart {
  constructor(column) {
    this.column = column;
    this.cursor = this.anchor = 0;
    this.slots = column.bins && column.missing ? column.size + 1 : column.size; // a gap before "missing"
    const unit = column.unit && column.unit !== "1" ? column.unit : "";
    this.clear = make("button", { type: "button", hidden: "" }, "clear");
    this.clear.onclick = () => brush(column, null);
    this.told = make("p", { class: "told" });
    this.svg = document.createElementNS(SVG, "svg");
    const label = `${words(column.name)}${unit ? ` in ${unit}` : ""}`;
    for (const [key, value] of Object.entries({
      tabindex: 0, role: "slider", "aria-label": label,
      "aria-valuemin": 0, "aria-valuemax": column.size - 1,
    })) this.svg.setAttribute(key, value);
    this.figure = make("figure", { class: "chart" },
      make("figcaption", {}, make("span", { title: column.meaning }, words(column.name), " ", make("small", {}, unit)), this.clear),
      make("div", { class: "drawing" }, this.svg), this.told);
    this.listen();
  }

  /** Where a code is: the middle and half the thickness of its bar, along the chart. */
  place(code) {
    if (!this.column.bins) return [code * ROW + ROW / 2, ROW / 2 - 2];
    const step = WIDTH / this.slots, slot = code < this.column.bins ? code : code + 1;
    return [(slot + 0.5) * step, step / 2 - 0.4];
  }

  codeAt(event) {
    const box = this.svg.getBoundingClientRect(), { bins, size } = this.column;
    const along = bins ? (event.clientX - box.left) / box.width * this.slots
      : (event.clientY - box.top) / box.width * WIDTH / ROW;
    const slot = Math.floor(along);
    return Math.max(0, Math.min(size - 1, bins && slot > bins ? slot - 1 : slot));
  }

  range(a, b) {
    brush(this.column, Uint8Array.from({ length: this.column.size }, (_, code) =>
      code >= Math.min(a, b) && code <= Math.max(a, b)));
  }

  /** Keep a bar's episodes; `add` (and rows always) adds it to the brush or takes it out. */
  take(code, add) {
    const before = this.column.mask, one = new Uint8Array(this.column.size);
    if (before && (add || !this.column.bins)) one.set(before);
    else if (before && before[code] && runs(before).length === 1 && before.reduce((a, b) => a + b) === 1)
      return brush(this.column, null);
    one[code] = before && (add || !this.column.bins) ? 1 - before[code] : 1;
    brush(this.column, one);
  }

  listen() {
    let start = null, moved = false;
    const svg = this.svg;
    svg.onpointerdown = (event) => {
      if (event.button) return;
      start = this.codeAt(event);
      moved = false;
      svg.setPointerCapture(event.pointerId);
    };
    svg.onpointermove = (event) => {
      const code = this.codeAt(event);
      if (start !== null && (code !== start || moved)) {
        moved = true;
        if (code !== this.cursor || !this.column.mask) this.range(start, code);
      }
      this.point(code);
    };
    svg.onpointerup = (event) => {
      if (start !== null && !moved) this.take(start, event.shiftKey || event.ctrlKey || event.metaKey);
      this.anchor = this.cursor;
      start = null;
    };
    svg.onpointercancel = () => { start = null; };
    svg.onpointerleave = () => { if (start === null && !svg.matches(":focus")) this.told.textContent = ""; };
    svg.onpointerenter = svg.onfocus = () => {
      this.pointed = false;
      this.point(this.cursor);
    };
    svg.onkeydown = (event) => {
      const last = this.column.size - 1;
      const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -last, End: last };
      if (event.key in moves) {
        this.point(Math.max(0, Math.min(last, this.cursor + moves[event.key])));
        if (event.shiftKey) this.range(this.anchor, this.cursor);
        else this.anchor = this.cursor;
      } else if (event.key === "Enter" || event.key === " ") this.take(this.cursor, event.shiftKey);
      else if (event.key === "Escape") brush(this.column, null);
      else return;
      event.preventDefault();
    };
  }

  count(groups, outcomes) {
    const { bit, codes, size } = this.column, rows = bit ? rowsWithin(bit) : kept;
    this.counts = counted(rows, codes, size, groups, outcomes);
  }

  /** Say what is under the cursor. */
  point(code) {
    this.cursor = code;
    const [middle, half] = this.place(code), { bins, labels, mask } = this.column;
    if (!this.pointed) this.count(split ?? whole, true);
    this.pointed = true;
    const g = (split ?? whole).labels.length, { number, sum, good } = this.counts;
    const total = (values) => values.subarray(code * g, code * g + g).reduce((a, b) => a + b, 0);
    const episodes = total(number);
    this.told.textContent = `${labels[code]}: ${count(episodes)} episode${episodes === 1 ? "" : "s"}` +
      (episodes ? `, return ${fixed(total(sum) / episodes)}, success ${fixed(total(good) / episodes)}` : "");
    const box = bins ? { x: middle - half, y: TOP, width: 2 * half, height: BASE - TOP }
      : { x: 0.5, y: middle - ROW / 2 + 0.5, width: WIDTH - 1, height: ROW - 1 };
    for (const [key, value] of Object.entries(box)) this.box?.setAttribute(key, value);
    this.svg.setAttribute("aria-valuenow", code);
    this.svg.setAttribute("aria-valuetext", this.told.textContent + (mask?.[code] ? ", brushed" : ""));
  }

  update(groups, totals) {
    const { column, svg } = this, g = groups.labels.length;
    const what = element("measure").value;
    this.pointed = svg.matches(":hover, :focus");
    this.count(groups, this.pointed || !SUMS.includes(what));
    const { number, sum, good } = this.counts;
    const value = {
      episodes: (k) => number[k], share: (k) => number[k] / totals.number[k % g],
      return: (k) => sum[k] / number[k], success: (k) => good[k] / number[k],
    }[what];
    const bars = what === "episodes" || (what === "share" && g === 1);
    let low = 0, high = what === "success" ? 1 : 0;
    if (what === "return") [low, high] = [Infinity, -Infinity];
    for (let code = 0; code < column.size; code++) {
      let stacked = 0;
      for (let k = code * g; k < code * g + g; k++) {
        if (!number[k]) continue;
        stacked = bars ? stacked + value(k) : value(k);
        high = Math.max(high, stacked);
        if (what === "return") low = Math.min(low, stacked);
      }
    }
    if (!(high > low)) [low, high] = Number.isFinite(low) ? [low - 0.5, low + 0.5] : [0, 1];
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${column.bins ? BASE + 14 : column.size * ROW + (what === "episodes" ? 2 : 14)}`);
    this.axes(low, high, what);
    this.marks(g, value, bars, (at) => (at - low) / (high - low));
    this.box = draw(svg, "rect", { class: "cursor" });
    this.clear.hidden = !column.mask;
    if (this.pointed) this.point(this.cursor);
    else this.told.textContent = "";
  }

  axes(low, high, what) {
    const { column, svg } = this;
    const tell = what === "episodes" ? short : what === "share" ? (v) => `${+(100 * v).toPrecision(3)} %` : fixed;
    if (!column.bins) {
      const g = (split ?? whole).labels.length, { number } = this.counts;
      column.labels.forEach((label, code) => {
        const y = code * ROW + 13, most = 17;
        const shown = label.length > most ? `${label.slice(0, most - 1)}…` : label;
        draw(svg, "text", { class: "name", x: 2, y }, column.text ? words(shown) : shown);
        const episodes = number.subarray(code * g, code * g + g).reduce((a, b) => a + b, 0);
        draw(svg, "text", { x: WIDTH - 2, y, "text-anchor": "end" }, short(episodes));
      });
      if (what === "episodes") return;
      draw(svg, "text", { x: NAMES, y: column.size * ROW + 11 }, tell(low));
      draw(svg, "text", { x: ENDS, y: column.size * ROW + 11, "text-anchor": "end" }, tell(high));
      return;
    }
    draw(svg, "path", { d: `M0 ${BASE + 0.5}H${WIDTH}M0 ${TOP}H${WIDTH}`, stroke: "var(--line)" });
    draw(svg, "text", { x: 0, y: 10 }, tell(high));
    if (low !== 0) draw(svg, "text", { x: 0, y: BASE - 3 }, tell(low));
    const every = Math.ceil(column.bins / 4), step = WIDTH / this.slots;
    for (let edge = 0; edge <= column.bins; edge += every) {
      const anchor = edge === 0 ? "start" : edge * step > WIDTH - 8 ? "end" : "middle";
      draw(svg, "text", { x: edge * step, y: BASE + 12, "text-anchor": anchor }, column.edges[edge]);
    }
    if (column.missing)
      draw(svg, "text", { x: WIDTH, y: 10, "text-anchor": "end" }, "last bar: missing");
  }

  /** Two paths a group: the bars that the chart's own brush keeps, and the others, pale. */
  marks(g, value, bars, scaled) {
    const { column } = this, along = column.bins;
    const end = (share) => along ? BASE - share * (BASE - TOP) : NAMES + share * (ENDS - NAMES);
    const stacks = new Float64Array(column.size);
    for (let group = 0; group < g; group++) {
      const paths = { kept: "", pale: "" };
      let last, before; // the step line's last bin and its height
      for (let code = 0; code < column.size; code++) {
        const k = code * g + group;
        if (!this.counts.number[k]) continue;
        const [middle, half] = this.place(code), a = middle - half, b = middle + half;
        const from = bars ? end(scaled(stacks[code])) : 0;
        if (bars) stacks[code] += value(k);
        const to = end(scaled(bars ? stacks[code] : value(k)));
        let mark;
        if (bars) mark = along ? `M${a} ${from}V${to}H${b}V${from}Z` : `M${from} ${a}H${to}V${b}H${from}Z`;
        else if (along) mark = `M${a} ${code === last + 1 ? `${before}V${to}` : to}H${b}`;
        else mark = `M${to - 4} ${middle}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z`;
        [last, before] = [code, to];
        paths[!column.mask || column.mask[code] ? "kept" : "pale"] += mark;
      }
      for (const [kind, d] of Object.entries(paths))
        if (d) draw(this.svg, "path", { class: bars || !along ? kind : `${kind} line`, d, style: `--colour: ${colour(group)}` });
    }
  }
}

// ---- what all brushes keep: totals, legend, brushes, list

function showTotals(groups, totals) {
  const add = (values) => values.reduce((a, b) => a + b, 0);
  const [number, sum, good] = [add(totals.number), add(totals.sum), add(totals.good)];
  const share = n ? ` of ${count(n)} (${+(100 * number / n).toPrecision(3)} %)` : "";
  const rows = [["episodes", count(number), share],
    ["mean return", fixed(sum / number), ""], ["success", fixed(good / number), ""]];
  element("totals").replaceChildren(...rows.map(([name, value, more]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value, make("small", {}, more)))));
  const brushes = brushed().map((column) => {
    const chip = make("button", { type: "button", "aria-label": `Clear the brush ${term(column)}` }, term(column));
    chip.onclick = () => brush(column, null);
    return chip;
  });
  element("brushes").replaceChildren(...brushes);
  element("query").textContent = command();
  element("legend").hidden = !split;
  if (!split) return;
  const line = groups.labels.map((label, g) => make("tr", {},
    make("th", { scope: "row" }, make("span", { class: "swatch", style: `background:${colour(g)}` }), label),
    ...[count(totals.number[g]), fixed(totals.sum[g] / totals.number[g]), fixed(totals.good[g] / totals.number[g])]
      .map((text) => make("td", {}, text))));
  const heads = [words(split.column.name), "episodes", "mean return", "success"];
  element("legend").replaceChildren(make("table", {},
    make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
    make("tbody", {}, ...line)));
}

let ids, lowestFirst, listed = LISTED;

function episodeName(id) {
  const unique = Number(id >> 32n), number = Number(id & 0xffffffffn);
  if (unique <= 0) return String(id);
  return `${unique.toString(16).padStart(6, "0")}-${String(number).padStart(5, "0")}`;
}

/** Row numbers in ascending order of float32 values; sorts numbers that hold value and row. */
function ascending(values) {
  const bits = new Int32Array(values.buffer);
  const keys = Float64Array.from(bits, (each, row) => (each < 0 ? each ^ 0x7fffffff : each) * n + row);
  return Uint32Array.from(keys.sort(), (key) => (key % n + n) % n);
}

/** The first episodes that all brushes keep, in the chosen order; at most `most`. */
function firstKept(most) {
  const order = element("order").value, found = [];
  for (let k = 0; k < n && found.length < most; k++) {
    const row = order === "stored" ? k : lowestFirst[order === "lowest" ? k : n - 1 - k];
    if (out[row] === 0) found.push(row);
  }
  return found;
}

function commandLine(text) {
  const button = make("button", { type: "button" }, "Copy");
  const code = make("code", {}, text);
  button.onclick = () => copy(code, button);
  return make("p", { class: "command" }, code, button);
}

async function copy(code, button) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  } catch {
    getSelection().selectAllChildren(code); // no clipboard here: Ctrl+C takes it
  }
}

function listedEpisode(row) {
  const name = episodeName(ids[row]);
  const of = (column) => column?.codes ? column.labels[column.codes[row]] : "";
  const cell = catalog.cells.map((each) => words(of(named(each)))).join(" · ");
  const success = of(named("success")) === "true";
  const line = make("details", {}, make("summary", {},
    make("code", {}, name), make("span", {}, cell), make("span", {}, fixed(returns[row])),
    make("span", { title: success ? "success" : "no success", role: "img",
      "aria-label": success ? "success" : "no success" }, success ? "✓" : "✗")));
  line.ontoggle = async () => {
    if (line.children.length > 1) return;
    await Promise.all(columns.map(load));
    line.append(commandLine(`gaitforge view ${place} --episode ${name}`),
      commandLine(`gaitforge query ${place} --episode ${name}`),
      make("dl", {}, ...columns.flatMap((column) =>
        [make("dt", {}, words(column.name)), make("dd", {}, of(column))])));
  };
  return line;
}

function showList() {
  const total = kept.length;
  element("list").replaceChildren(...firstKept(listed).map(listedEpisode));
  element("more").hidden = listed >= total;
  element("more").textContent = `${LISTED} more of ${count(total)}`;
}

// ---- one update a frame

let waiting = false;

function update() {
  waiting = false;
  const start = performance.now(), groups = split ?? whole;
  kept = rowsWithin(0);
  const totals = counted(kept, zeros, 1, groups, true);
  for (const chart of charts.values()) chart.update(groups, totals);
  showTotals(groups, totals);
  showList();
  remember();
  performance.measure("update", { start });
}

function later() {
  listed = LISTED;
  if (!waiting) requestAnimationFrame(update);
  waiting = true;
}

async function choose(column, on) {
  await load(column);
  if (on && !charts.has(column)) {
    charts.set(column, new Chart(column));
    element("charts").append(charts.get(column).figure);
  } else if (!on && charts.has(column)) {
    charts.get(column).figure.remove();
    charts.delete(column);
    brush(column, null);
  }
  later();
}

async function splitBy(column) {
  if (column) await load(column);
  split = column ? grouping(column) : null;
  later();
}

// ---- the address keeps the state: #split=skill&measure=return&shown=level,return&brush.level=3-5

function remember() {
  const state = new URLSearchParams();
  if (split) state.set("split", split.column.name);
  if (element("measure").value !== "episodes") state.set("measure", element("measure").value);
  const shown = [...charts.keys()].map((column) => column.name).join(",");
  if (shown !== catalog.shown.join(",")) state.set("shown", shown);
  for (const column of brushed()) state.set(`brush.${column.name}`, runs(column.mask).map((run) => run.join("-")).join(","));
  history.replaceState(null, "", `#${state}`);
}

async function recall() {
  const state = new URLSearchParams(location.hash.slice(1));
  const wanted = state.get("shown")?.split(",") ?? catalog.shown;
  const shown = wanted.map(named).filter(Boolean);
  if (named(state.get("split"))) {
    element("split").value = state.get("split");
    await splitBy(named(state.get("split")));
  }
  if (state.has("measure")) element("measure").value = state.get("measure");
  for (const column of shown) await choose(column, true);
  for (const column of columns) {
    const text = state.get(`brush.${column.name}`);
    if (!text) continue;
    await choose(column, true);
    const pairs = text.split(",").map((run) => run.split("-").map(Number));
    brush(column, Uint8Array.from({ length: column.size }, (_, code) => pairs.some(([a, b = a]) => code >= a && code <= b)));
  }
  for (const box of element("columns").querySelectorAll("input")) box.checked = charts.has(columns[box.value]);
}

try {
  for (const column of columns) {
    element("split").append(make("option", { value: column.name }, words(column.name)));
    const box = make("input", { type: "checkbox", value: column.index });
    box.onchange = () => choose(column, box.checked);
    element("columns").append(make("label", { title: column.meaning }, box, " ", words(column.name)));
  }
  element("split").onchange = (event) => splitBy(named(event.target.value));
  element("measure").onchange = later;
  element("order").onchange = later;
  element("more").onclick = () => {
    later();
    listed = element("list").children.length + LISTED;
  };
  document.querySelector("[data-copy]").onclick = (event) => copy(element("query"), event.target);
  await Promise.all([...catalog.cells, "success"].map((name) => load(named(name))));
  const yes = named("success").labels.indexOf("true");
  successes = named("success").codes.map((code) => code === yes ? 1 : 0);
  returns = new Float32Array(await unpacked("returns"));
  ids = new BigInt64Array(await unpacked("ids"));
  for (let i = 1; i < n; i++) ids[i] += ids[i - 1];
  lowestFirst = ascending(returns);
  await recall();
  update();
  element("state").remove();
  element("explorer").hidden = false;
  performance.measure("ready");
  document.body.dataset.state = "ready";
} catch (error) {
  element("state").textContent = `This page cannot show the episodes here: ${error.message}. It needs a browser of 2023 or newer.`;
  throw error;
}
})();
