"""Limits on the models' speeds, checked against a benchmark's figures.

Most bars are ratios of two times of the same run; the times themselves are for two quiet cores.
"""

from collections.abc import Iterator

from pipeline.bench.attention import PAPER_SPEED_UP_PERCENT
from pipeline.bench.control_step import DEMO, LEGGED, paper_modes, setting_name
from pipeline.bench.harness import Figures, bar
from pipeline.bench.train_step import AS_PRESET, FCNET, FFT_MODES, FOLDED


def check_bars(figures: Figures) -> list[dict[str, object]]:
    """Every bar as {bar, value, wanted, met}."""
    single = {each["nodes"]: each for each in figures["attention"]["single_sequence"]}
    return [
        *_train_bars(figures["train_step_ms"]),
        *_control_bars(figures["control_step_us"]),
        bar(
            "one sequence of 128 nodes: compiled attention faster than dense NumPy",
            single[128]["speed_up_percent"]["compiled"] if 128 in single else None,
            least=PAPER_SPEED_UP_PERCENT,
            unit="%",
        ),
    ]


def _train_bars(steps: Figures) -> Iterator[dict[str, object]]:
    folded = _time(steps, FCNET, FOLDED, "median_ms")
    fft = _time(steps, FCNET, FFT_MODES, "median_ms")
    transformer = _time(steps, "transformer-legged", AS_PRESET, "median_ms")
    name = "train step: the paper's FFT algorithm over the folded kernel"
    yield bar(name, _ratio(fft, folded), least=15)
    name = "train step: FCNet over the Transformer of its size"
    yield bar(name, _ratio(folded, transformer), most=1.1)


def _control_bars(steps: Figures) -> Iterator[dict[str, object]]:
    def us(model: str, setting: str = LEGGED) -> float | None:
        return _time(steps, model, setting, "median_us")

    fcnet, demo = us("fcnet-compiled"), setting_name(DEMO)
    yield bar("control step: compiled FCNet", fcnet, most=60, unit="µs")
    yield bar("control step: FCNet in ONNX Runtime", us("fcnet-onnx"), most=150, unit="µs")
    torch, compiled = us("fcnet-torch", demo), us("fcnet-compiled", demo)
    name = "across runtimes: the demo's FCNet, torch over compiled"
    yield bar(name, _ratio(torch, compiled), least=8)
    name = "across runtimes: BoT, torch over compiled"
    yield bar(name, _ratio(us("bot-torch"), us("bot-compiled")), least=4)
    for length, setting, least in ((64, LEGGED, 4), (512, "context_len=512", 8)):
        name = f"across runtimes, n = {length}: Transformer in torch over compiled FCNet"
        torch, compiled = us("transformer-torch", setting), us("fcnet-compiled", setting)
        yield bar(name, _ratio(torch, compiled), least=least)
    name = "control step: compiled FCNet at n = 1024 over n = 64"
    yield bar(name, _ratio(us("fcnet-compiled", "context_len=1024"), fcnet), most=1.3)
    name = "control step: the same with the paper's modes, 17 over 10"
    paper = f"context_len=1024,n_modes={paper_modes(1024)}"
    yield bar(name, _ratio(us("fcnet-compiled", paper), fcnet), most=1.3)


def _time(figures: Figures, model: str, setting: str, name: str) -> float | None:
    return figures.get(model, {}).get(setting, {}).get(name)


def _ratio(value: float | None, over: float | None) -> float | None:
    return None if value is None or over is None else value / over
