"""The learners' speeds as charts, from the figures of `bench_learners.json` alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from collectors.timing import CONTROL_DT_S
from pipeline.report import charts
from pipeline.report.charts import Panel

Record = Mapping[str, Any]

LEGGED = "legged"
# What is drawn against FCNet's sizes, and how a chart calls it.
SWEPT = {
    "fcnet-compiled": "FCNet, compiled",
    "fcnet-onnx": "FCNet, ONNX",
    "fcnet-torch": "FCNet, PyTorch",
    "transformer": "Transformer",
    "retnet": "RetNet",
}
WITHOUT_CONTEXT = frozenset({"retnet"})
SWEEPS = {
    "context_len": ("context length, steps", "RetNet has none: its line is flat."),
    "n_layers": ("layers", "Baselines have as many parameters and layers as FCNet."),
    "hidden_dim": ("hidden size of FCNet", "Baselines have as many parameters as FCNet."),
}


def bench_panels(record: Record) -> list[Panel]:
    """Latency against each size, latency of all models, training tokens, and attention."""
    control = record["control_step_us"]
    panels = [_sweep_panel(control, field) for field in SWEEPS]
    panels += [_latency_panel(control), _tokens_panel(record["train_step_ms"])]
    return [*panels, _attention_panel(record["attention"]["layers"])]


def sweep(control: Record, model: str, field: str) -> list[tuple[int, float]]:
    """(size of FCNet, median µs) of a model where only this size differs from the legged one."""
    base = control["fcnet-compiled"][LEGGED]["fcnet"]
    points: dict[int, float] = {
        each["fcnet"][field]: each["median_us"]
        for each in control.get(model, {}).values()
        if all(value == base[name] for name, value in each["fcnet"].items() if name != field)
    }
    if field == "context_len" and model in WITHOUT_CONTEXT:
        sizes = {each["fcnet"][field] for each in control["fcnet-compiled"].values()}
        points = dict.fromkeys(sizes, points[base[field]])
    return sorted(points.items())


def _sweep_panel(control: Record, field: str) -> Panel:
    xlabel, note = SWEEPS[field]
    lines = []
    for model, label in SWEPT.items():
        points = sweep(control, model, field)
        if points:
            lines.append(charts.Curve(label, *zip(*points, strict=True)))
    title = f"Control step by {xlabel.split(',')[0]}"
    alt = f"{title}, in µs. {_told(lines)}"
    svg = charts.curves(lines, xlabel, "median, µs (logarithmic)", alt)
    return Panel(title, svg, f"One robot, one thread. {note}")


def _told(lines: Iterable[charts.Curve]) -> str:
    """The points of every line in words."""
    return "; ".join(
        f"{line.label}: "
        + ", ".join(f"{y:.4g} at {x:g}" for x, y in zip(line.x, line.y, strict=True))
        for line in lines
    )


def _latency_panel(control: Record) -> Panel:
    rows = [
        charts.LatencyBar(
            SWEPT.get(model, model), each[LEGGED]["median_us"], each[LEGGED]["p99_us"]
        )
        for model, each in control.items()
        if LEGGED in each
    ]
    told = ", ".join(f"{row.label} {row.median_us:.0f} µs" for row in rows)
    svg = charts.latency(rows, 1e6 * CONTROL_DT_S, f"Median time of one control step: {told}")
    return Panel("Control step of all models", svg, "The bar is the median, the tick the p99.")


def _tokens_panel(training: Record) -> Panel:
    named = list(_named_steps(training))
    labels, values = [name for name, _ in named], [each["tokens_per_s"] for _, each in named]
    told = ", ".join(f"{name} {value:,.0f}" for name, value in zip(labels, values, strict=True))
    svg = charts.rates(labels, values, "control steps/s", f"Control steps trained a second: {told}")
    return Panel("Training", svg, "Control steps a second: loss, gradient and optimiser.")


def _named_steps(training: Record) -> Iterator[tuple[str, Record]]:
    for model, settings in training.items():
        for setting, each in settings.items():
            yield (f"{model}, {setting}" if len(settings) > 1 else model), each


def _attention_panel(layers: list[Record]) -> Panel:
    random = [each for each in layers if each["mask"] == "random"]
    nodes = [each["nodes"] for each in random]
    names = list(random[0]["train_ms"])
    lines = [
        charts.Curve(name, nodes, [each["train_ms"][name] for each in random]) for name in names
    ]
    title = "Masked attention by nodes"
    alt = f"{title}, in ms. {_told(lines)}"
    svg = charts.curves(lines, "nodes", "ms (logarithmic)", alt)
    note = "Forward and backward, random masks with 90.8 % zeros, as many nodes a batch in all."
    return Panel(title, svg, note)
