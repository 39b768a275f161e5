"""The models' speeds as one HTML page, from the figures of `bench_learners.json` alone."""

from collections.abc import Iterator
from pathlib import Path

from gaitforge.collectors.timing import CONTROL_DT_S
from gaitforge.pipeline.report import charts
from gaitforge.pipeline.report.figures import Panel
from gaitforge.pipeline.report.pages import Record, render, write_texts

LEGGED = "legged"
# What is drawn against FCNet's sizes, and how a chart calls it.
SWEPT = {
    "fcnet-compiled": "FCNet, compiled",
    "fcnet-onnx": "FCNet, ONNX",
    "fcnet-torch": "FCNet, PyTorch",
    "transformer-torch": "Transformer, PyTorch",
    "retnet-torch": "RetNet, PyTorch",
}
WITHOUT_CONTEXT = frozenset({"retnet-torch"})
SWEEPS = {
    "context_len": ("context length, steps", "RetNet has none: its line is flat."),
    "n_layers": ("layers", "Baselines have as many parameters and layers as FCNet."),
    "hidden_dim": ("hidden size of FCNet", "Baselines have as many parameters as FCNet."),
}


def write_bench_page(record: Record, out: Path) -> None:
    """Write `bench.html` from the record of `bench_learners.json`.

    Raises:
        ValueError: the folder cannot be written.
    """
    text = render("bench.html", bench=record, bench_charts=bench_panels(record))
    write_texts(out, {"bench.html": text})


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
    return charts.curves(title, lines, xlabel, "median, µs", f"One robot, one thread. {note}")


def _latency_panel(control: Record) -> Panel:
    rows = [
        charts.LatencyBar(
            SWEPT.get(model, model), each[LEGGED]["median_us"], each[LEGGED]["p99_us"]
        )
        for model, each in control.items()
        if LEGGED in each
    ]
    note = "The bar is the median, the tick the p99."
    return charts.latency("Control step of all models", rows, 1e6 * CONTROL_DT_S, note)


def _tokens_panel(training: Record) -> Panel:
    named = list(_named_steps(training))
    labels, values = [name for name, _ in named], [each["tokens_per_s"] for _, each in named]
    note = "Control steps per second: loss, gradient and optimiser."
    return charts.rates("Training", labels, values, "control steps/s", note)


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
    note = "Forward and backward, random masks with 90.8 % zeros, equally many nodes per batch."
    return charts.curves("Masked attention by nodes", lines, "nodes", "ms", note)
