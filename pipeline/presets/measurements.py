"""Presets of the papers' figures and tables that need no training."""

from collections.abc import Mapping

from gaitforge.flows.experiments.measurements import MeasurementPlan
from gaitforge.flows.experiments.published import Published
from gaitforge.flows.measures.attention import COMPILED, NUMPY_DENSE, NUMPY_MASKED, TORCH_DENSE
from gaitforge.flows.measures.control_steps import RUNTIMES
from gaitforge.flows.measures.spectra import LOWEST, OTHERS
from gaitforge.pipeline.presets.papers import PaperPreset

_FIGURE_1 = "energy “mainly concentrated in the low-frequency part”, with m ≪ n modes"
_FIGURE_6 = "3 to 5 times as fast at 32 layers or a width of 2,048, below 20 ms"
_TABLE_1 = "O(m n (log n + m)) beside O(n²) for training, O(n m) beside O(n²) in memory"
_BOT = "BoT, Figures 6 and 13"
_SPARSE = "up to 206 % faster at 128 nodes; faster from a sparsity of about 0.6"


def _fcnet_spectra(stores: tuple[str, ...] = ()) -> MeasurementPlan:
    """FCNet's Figure 1: two synthetic motions, and what given stores hold."""
    published = (Published(LOWEST, OTHERS, "FCNet, Figure 1", _FIGURE_1),)
    return MeasurementPlan({"spectra": {}}, stores, published=published)


def _fcnet_latency(full: bool = False) -> MeasurementPlan:
    """FCNet's Figure 6 and Table 1: control steps and training steps over the sizes."""
    control = {
        "n_layers": (2, 4, 8, 16, 32),
        "hidden_dim": (64, 128, 256, 512, 1024, 2048),
        "context_len": (16, 32, 64, 128, 256, 512),
    }
    training = {"context_len": (64, 128, 256, 512, 1024), "batch_size": 128}
    fcnet = "fcnet-legged"
    baseline = "transformer-legged"
    return MeasurementPlan(
        {
            "control-step": control if full else {},
            "train-step": training if full else {},
            "train-memory": training if full else {},
        },
        published=(
            *(Published(f"{fcnet} {runtime}", f"{baseline} {runtime}", "FCNet, Figure 6", _FIGURE_6)
              for runtime in RUNTIMES),
            Published(fcnet, baseline, "FCNet, Table 1", _TABLE_1),
        ),
    )  # fmt: skip


def _bot_attention(full: bool = False) -> MeasurementPlan:
    """BoT's Figures 6 and 13: masked attention over nodes and sparsity."""
    return MeasurementPlan(
        {"attention": {"masks": 10_000} if full else {}},
        published=(
            Published(NUMPY_MASKED, NUMPY_DENSE, _BOT, _SPARSE),
            Published(COMPILED, TORCH_DENSE, f"{_BOT}, our networks"),
        ),
    )


MEASUREMENTS: Mapping[str, PaperPreset] = {
    "fcnet-spectra": PaperPreset(
        _fcnet_spectra,
        "FCNet's Figure 1: energy by frequency, also of stores",
        hours=0.01,
        places="stores",
    ),
    "fcnet-latency": PaperPreset(
        _fcnet_latency, "FCNet's Figure 6 and Table 1: control and training steps", 0.06, True
    ),
    "bot-attention": PaperPreset(
        _bot_attention, "BoT's Figures 6 and 13: masked attention, time and operations", 0.01, True
    ),
}
