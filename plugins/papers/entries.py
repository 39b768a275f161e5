"""What this plug-in brings, by the names of its entry points; loads none of its work."""

from gaitforge.flows.experiments.kinds import PlanKind
from gaitforge.pipeline.presets.preset import Preset

_HERE = "gaitforge.plugins.papers"
_FCNET = f"{_HERE}.fcnet_presets"
_BOT = f"{_HERE}.bot_presets"


def _kind(module: str, plan: str) -> PlanKind:
    page = f"{_HERE}.{module}_page"
    return PlanKind(
        f"{_HERE}.{module}:{plan}",
        page=f"{page}:write_page",
        rows=f"{page}:summary_rows",
        beside="gaitforge.pipeline.report.results:shown_verdicts",
    )


MEASUREMENT = _kind("measurements", "MeasurementPlan")
REINFORCEMENT = _kind("reinforcement", "ReinforcementPlan")
ROBUSTNESS = _kind("robustness", "RobustnessPlan")

FCNET_DATA_SIZE = Preset(
    f"{_FCNET}:fcnet_data_size", "FCNet's Figure 4: over the data", 1.3, full=True
)
FCNET_CLEAN = Preset(f"{_FCNET}:fcnet_clean", "FCNet's Figure 4 on data of legged-clean-6m", 1.0)
FCNET_RECIPES = Preset(
    f"{_FCNET}:fcnet_recipes",
    "FCNet's Tables 5 to 7: published sizes and recipes",
    1.3,
    full=True,
)
FCNET_SIZES = Preset(
    f"{_FCNET}:fcnet_sizes", "FCNet's Figure 8: over the parameters", 1.3, full=True
)
FCNET_CONTEXT = Preset(
    f"{_FCNET}:fcnet_context", "FCNet's Figure 9: over the context", 1.4, full=True
)
D4RL_VALUES = Preset(
    f"{_FCNET}:d4rl_values",
    "FCNet's Table 2: methods that learn values, with 10,000 updates",
    0.9,
    full=True,
)
BOT_MASKS = Preset(f"{_BOT}:bot_masks", "BoT's Figure 9a: masks, tokenizers and positions", 0.9)
BOT_DEPTH = Preset(f"{_BOT}:bot_depth", "BoT's Figure 9b on a quadruped: over the layers", 1.2)
ADROIT = Preset(f"{_FCNET}:adroit", "FCNet's Table 3: the Adroit hand's sets", 1.1, full=True)
ADROIT_DEMONSTRATIONS = Preset(
    f"{_BOT}:adroit_demonstrations",
    "BoT's Figure 9c: over the number of demonstrations",
    0.75,
    full=True,
)
MOCAPACT = Preset(
    f"{_BOT}:mocapact", "BoT's Figures 3a and 9a: masks on held-out clips", 4.0, full=True
)
MOCAPACT_TIME = Preset(
    f"{_BOT}:mocapact_time", "BoT's Figure 3a at equal time on held-out clips", 2.0
)
MOCAPACT_SIZES = Preset(f"{_BOT}:mocapact_sizes", "BoT's Figure 3b: over the width", 4.0, full=True)
MOCAPACT_LAYERS = Preset(
    f"{_BOT}:mocapact_layers", "BoT's Figure 9b: over the layers", 6.0, full=True
)
BODIES = Preset(
    f"{_BOT}:bodies", "one policy for many robots, with the joints' signs taken out", 2.1
)
BOT_RL = Preset(
    f"{_BOT}:bot_rl",
    "BoT's Figures 5, 10 and 11: eight networks trained by PPO",
    20.0,
    full=True,
)
FCNET_SPECTRA = Preset(
    f"{_FCNET}:fcnet_spectra",
    "FCNet's Figure 1: energy by frequency, also of stores",
    0.01,
    places="stores",
)
FCNET_LATENCY = Preset(
    f"{_FCNET}:fcnet_latency",
    "FCNet's Figure 6 and Table 1: control and training steps",
    0.15,
    full=True,
)
BOT_ATTENTION = Preset(
    f"{_BOT}:bot_attention",
    "BoT's Figures 6 and 13: masked attention, time and operations",
    0.01,
    full=True,
)
ROBUSTNESS_PRESET = Preset(
    f"{_HERE}.robustness:RobustnessPlan",
    "trained policies under other conditions",
    0.2,
    places="policies",
)
