"""Presets of FCNet's figures and tables, each with the statements that it is held against."""

from dataclasses import replace
from typing import Any

from gaitforge.flows.experiments.evaluations import CONTEXT, Evaluations
from gaitforge.flows.experiments.plan import Experiment, Learners, Published, Settings, statements
from gaitforge.flows.stages.train import SelectPlan
from gaitforge.learners.models.fcnet import paper_modes
from gaitforge.pipeline.presets.experiments import (
    ALL_CELLS,
    D4RL_EVALUATIONS,
    D4RL_MEASURE,
    GRID_EPISODES,
)
from gaitforge.plugins.papers.measurements import MeasurementPlan
from gaitforge.plugins.papers.measures.control_steps import RUNTIMES, ControlStep
from gaitforge.plugins.papers.measures.spectra import LOWEST, OTHERS

# The published code clears FCNet's memory and the Transformer's cache every n control steps, n the
# context (github.com/thkkk/FCNet, play_sub.py); in the first evaluation memories slide instead.
_CLEARED = "cleared"

_BOTH_WAYS: Evaluations = {_CLEARED: {"reset_every": CONTEXT}}

_PUBLISHED = "transformer-published"

_STRONGER = "transformer"


def _ahead(source: str, number: str = "", fcnet: str = "fcnet") -> tuple[Published, ...]:
    """FCNet ahead of both Transformers, with memories cleared, as in the paper, and sliding.

    Args:
        source: of the paper's statement, which is about its own Transformer; number: the paper's.
    """
    legged = fcnet.removeprefix("fcnet")
    paper, ours = {f"{_PUBLISHED}{legged}": number}, {f"{_STRONGER}{legged}": ""}
    return tuple(
        statement
        for measure in (f"{_CLEARED} score", "")
        for statement in (
            *statements(fcnet, paper, source, measure),
            *statements(fcnet, ours, f"{source}, with a stronger Transformer", measure),
        )
    )


def _transformers(**settings: Any) -> dict[str, Any]:
    """The paper's Transformer and ours, which has rotary positions and no dropout."""
    return dict.fromkeys((_PUBLISHED, _STRONGER), settings)


def fcnet_data_size(full: bool = False) -> Experiment:
    """FCNet's Figure 4 on nested parts of one store, of 6 million steps or (`full`) of 60."""
    shares = (0.0075, 0.0317, 0.1, 0.333, 1.0) if full else (0.075, 0.317, 1.0)
    return Experiment(
        {"fcnet": {}, **_transformers()},
        seeds=(0, 1, 2),
        settings={"split_seed": 0, "steps": 20_000 if full else 3000},
        vary={"data": shares},
        evaluate={**ALL_CELLS, "episodes": 75 if full else GRID_EPISODES},
        evaluations=_BOTH_WAYS,
        published=_ahead(
            "FCNet, Figure 4", "at 60 million steps 10.060 of the expert's 10.589 (Table 7)"
        ),
    )


def fcnet_clean() -> Experiment:
    """FCNet's Figure 4 after 1.9 and 6 million steps of data as the paper describes them.

    For a store of `legged-clean-6m`, under whose commands, which change, policies are scored.
    """
    plan = fcnet_data_size()
    return replace(plan, vary={"data": (0.317, 1.0)})


def fcnet_recipes(full: bool = False) -> Experiment:
    """FCNet's Tables 5 to 7: the published sizes and recipes; our Transformer with AdamW, too.

    Batches of 128 windows for 600 updates, or (`full`) of 1,024 for 50 epochs of 60 million steps.
    """
    name = "transformer-adamw"
    adamw = {"model": "transformer-legged", "optimiser": "adamw", "peak_lr": 1e-3}
    few = {"steps": 600, "batch_size": 128}
    learners: Learners = {
        "fcnet-legged": {},
        "transformer-published-legged": {},
        "transformer-legged": {},
        name: adamw,
    }
    with_adamw = "FCNet, Table 7, with a stronger Transformer and AdamW"
    return Experiment(
        learners,
        seeds=(0, 1, 2),
        settings={"split_seed": 0, **({"steps": 46_000} if full else few)},
        tested=True,
        evaluate=ALL_CELLS,
        evaluations=_BOTH_WAYS,
        published=(
            *_ahead("FCNet, Table 7", "10.060 of the expert's 10.589; no number", "fcnet-legged"),
            *statements("fcnet-legged", {name: ""}, with_adamw, f"{_CLEARED} score"),
            *statements("fcnet-legged", {name: ""}, with_adamw),
        ),
    )


# Thousands of parameters -> layers, FCNet's width, and that of both Transformers; on legged data
# the three have as many parameters within 1 %.
_SIZES = {
    54: (4, 41, 32),
    117: (4, 75, 48),
    257: (4, 128, 72),
    803: (4, 262, 128),
    2610: (4, 514, 232),
    5210: (8, 518, 232),
}


def fcnet_sizes(full: bool = False) -> Experiment:
    """FCNet's Figure 8: over the parameters, with the loss on held-out episodes of Table 7.

    Layers and widths change with them, as in the paper; learning rates do not.
    """
    points: dict[str, Learners] = {}
    for thousands in (257, 803, 2610, 5210) if full else (54, 117, 257, 803):
        layers, width, attention_width = _SIZES[thousands]
        fcnet = {"n_layers": layers, "hidden_dim": width}
        attention = {"n_layers": layers, "hidden_dim": attention_width}
        points[str(thousands)] = {
            "fcnet": {"model_overrides": fcnet},
            **_transformers(model_overrides=attention),
        }
    return Experiment(
        {"fcnet": {}, **_transformers()},
        seeds=(0, 1, 2),
        settings={"split_seed": 0, "steps": 20_000 if full else 2000},
        tested=True,
        vary={"thousand_parameters": points},
        evaluate=ALL_CELLS,
        evaluations=_BOTH_WAYS,
        published=_ahead("FCNet, Figure 8"),
    )


def fcnet_context(full: bool = False) -> Experiment:
    """FCNet's Figure 9: windows as long as the context, and modes by the paper's Section 4.3.

    Every update reads as many steps, so that all contexts have as much data in all: the paper
    trains for as many epochs.
    """
    steps_a_batch = 24 * 64
    points: dict[str, Learners] = {}
    for length in (8, 16, 32, 64, 128):
        windows = {"window_len": length, "batch_size": steps_a_batch // length}
        modes = {"context_len": length, "n_modes": paper_modes(length)}
        points[str(length)] = {
            "fcnet": {**windows, "model_overrides": modes},
            **_transformers(**windows, model_overrides={"context_len": length}),
        }
    return Experiment(
        {"fcnet": {}, **_transformers()},
        seeds=(0, 1, 2),
        settings={"split_seed": 0, "steps": 20_000 if full else 2000},
        vary={"context": points},
        evaluate=ALL_CELLS,
        evaluations=_BOTH_WAYS,
        published=_ahead("FCNet, Figure 9"),
    )


def d4rl_values(full: bool = False) -> Experiment:
    """FCNet's Table 2 beside methods that learn values, on one set of each task.

    They have 10,000 updates, or (`full`) the papers' million; in the preset `d4rl` they have fewer,
    which tells nothing about them.
    """
    updates = 1_000_000 if full else 10_000
    valued = {**_MLP, "batch_size": 256, "steps": updates}
    numbers = {
        "cql": "103.5 and 90.7, means of three tasks",
        "bear": "103.5 and 63.3, means of three tasks",
        "brac-v": "103.5 and 41.4, means of three tasks",
    }
    return Experiment(
        {
            "fcnet": {"objective": "return", "steps": 1000},
            **{name: {**valued, "objective": name} for name in numbers},
        },
        seeds=(0, 1, 2),
        select=SelectPlan(where="terminated or truncated"),
        sets={"medium-expert": "quality in ('medium', 'expert')"},
        settings={"split_seed": 0},
        targets=(1.0,),
        evaluations=D4RL_EVALUATIONS,
        published=statements("fcnet", numbers, "FCNet, Table 2", D4RL_MEASURE),
    )


_MLP: Settings = {"model": "mlp", "model_overrides": {"hidden_dim": 256, "n_layers": 2}}


def adroit(full: bool = False) -> Experiment:
    """FCNet's Table 3 on sets of a planner (in place of people), of its clone and of an expert.

    Small: about half a minute of a core each. Full: the updates of Decision Transformer's paper
    and of D4RL's, and FCNet's width.
    """
    window = {"model_overrides": {"context_len": 20}, "window_len": 20}
    fcnet = {"model_overrides": {"hidden_dim": 512}} if full else {}
    learners: Learners = {
        "fcnet": {"objective": "return", "steps": 100_000 if full else 500, **fcnet},
        "dt": {"objective": "return", "steps": 100_000 if full else 500, **window},
        "bc": {
            **_MLP,
            "steps": 1_000_000 if full else 4000,
            "window_len": 1,
            "batch_size": 256,
            "optimiser": "adam",
            "peak_lr": 3e-4,
            "schedule": "constant",
            "warmup_fraction": 0.0,
            "weight_decay": 0.0,
        },
        "cql": {
            **_MLP,
            "objective": "cql",
            "batch_size": 256,
            "steps": 1_000_000 if full else 250,
        },
    }
    numbers = {"dt": "means 41.0 and 27.8; ahead on 9 of 12 sets"}
    numbers |= {"bc": "means 41.0 and 36.7", "cql": "means 41.0 and 40.3"}
    return Experiment(
        learners,
        seeds=tuple(range(5 if full else 3)),
        select=SelectPlan(where="terminated or truncated"),  # the return of others is unknown
        sets={
            **{name: f"quality = '{name}'" for name in ("human", "cloned")},
            "by-expert": "quality = 'expert'",
        },
        settings={"split_seed": 0, "held_out_fraction": 0.0},
        targets=(1.0,),
        published=statements("fcnet", numbers, "FCNet, Table 3"),
    )


_FIGURE_1 = "energy “mainly concentrated in the low-frequency part”, with m ≪ n modes"

_FIGURE_6 = "3 to 5 times as fast at 32 layers or a width of 2,048, below 20 ms"

_TABLE_1 = "O(m n (log n + m)) beside O(n²) for training, O(n m) beside O(n²) in memory"


def fcnet_spectra(stores: tuple[str, ...] = ()) -> MeasurementPlan:
    """FCNet's Figure 1: two synthetic motions, and what given stores hold."""
    published = (Published(LOWEST, OTHERS, "FCNet, Figure 1", _FIGURE_1),)
    return MeasurementPlan(
        {"spectra": {}},
        stores,
        published=published,
        title="FCNet, Figure 1: energy by frequency",
    )


# Tan et al. 2024, appendix C.4: what both networks have along the other axes.
_FIGURE_6_SIZES = {"n_layers": 4, "hidden_dim": 256, "context_len": 64}


def fcnet_latency(full: bool = False) -> MeasurementPlan:
    """FCNet's Figure 6 and Table 1: control steps and training steps over the sizes.

    Along an axis FCNet and both Transformers have the paper's sizes: a width of 256 each.
    """
    control: dict[str, Any] = {
        "networks": (*ControlStep.networks, "transformer-published-legged"),
        "scaled": ("fcnet-legged", "transformer-published-legged", "transformer-legged"),
        "sizes": _FIGURE_6_SIZES,
        "n_layers": (2, 8, 32),
    }
    if full:
        control |= {
            "n_layers": (2, 4, 8, 16, 32),
            "hidden_dim": (64, 128, 256, 512, 1024, 2048),
            "context_len": (16, 32, 64, 128, 256, 512),
        }
    training = {"context_len": (64, 128, 256, 512, 1024), "batch_size": 128}
    fcnet = "fcnet-legged"
    baseline = "transformer-published-legged"
    stronger = "transformer-legged"
    return MeasurementPlan(
        {
            "control-step": control,
            "train-step": training if full else {},
            "train-memory": training if full else {},
        },
        published=(
            *(Published(f"{fcnet} {runtime}", f"{baseline} {runtime}", "FCNet, Figure 6", _FIGURE_6)
              for runtime in RUNTIMES),
            *(Published(f"{fcnet} {runtime}", f"{stronger} {runtime}",
                        "FCNet, Figure 6, with a stronger Transformer")
              for runtime in RUNTIMES),
            Published(fcnet, stronger, "FCNet, Table 1", _TABLE_1),
        ),
        title="FCNet, Figure 6 and Table 1: control and training steps",
    )  # fmt: skip
