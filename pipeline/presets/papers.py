"""Presets of the papers' figures and tables, each with the statements that it is held against."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gaitforge.collectors.experts.expert import shipped_experts
from gaitforge.collectors.robots.robot import list_robots
from gaitforge.collectors.scenarios.skills import SKILLS
from gaitforge.collectors.scenarios.terrains import TERRAINS
from gaitforge.flows.experiments.measurements import MeasurementPlan
from gaitforge.flows.experiments.plan import Experiment, Learners, Settings
from gaitforge.flows.experiments.published import Published
from gaitforge.flows.experiments.reinforcement import ReinforcementPlan
from gaitforge.flows.experiments.robustness import RobustnessPlan
from gaitforge.flows.stages.train import SelectPlan

GRID_EPISODES = 20
"""Evaluated episodes per cell."""
ALL_CELLS: Settings = {
    "terrains": tuple(TERRAINS),
    "skills": tuple(SKILLS),
    "levels": (4,),
    "episodes": GRID_EPISODES,
    "robots": 240,
}


@dataclass(frozen=True)
class PaperPreset:
    """An experiment that ships.

    Attributes:
        plan: makes it; with `full` at the papers' size, where it has one.
        shows: what it shows, in a line.
        hours: of two cores, at its small size and with given stores: measured, or estimated from
            the cost of its updates where it ran on a GPU; None where the stores or the user decide.
        places: argument of `plan` that takes the stores or runs of the command line; "" for an
            `Experiment`, whose stages get them, or if it takes none.
    """

    plan: "Callable[..., AnyPlan]"
    shows: str
    hours: float | None = None
    full: bool = False
    places: str = ""


AnyPlan = Experiment | ReinforcementPlan | RobustnessPlan | MeasurementPlan


# The adaptive rate of the experts' trainings falls too far for few robots. Without the filter and
# the weight of the speed, noise carries a robot whose mean action stands.
_A1_WALK: Settings = {
    "robot": "a1",
    "terrains": ("rough",),
    "skills": ("walk",),
    "robots": 256,
    "steps": 2_000_000,
    "tracking_weight": 3.0,
    "entropy": 0.0,
    "target_kl": 0.02,
    "action_filter_hz": 5.0,
    "threads": 1,
    "learning_rate": 3e-4,
}
_A1_WALK_EVALUATION: Settings = {
    "grid": {"terrains": ("rough",), "skills": ("walk",), "levels": (1, 4), "episodes": 100},
    "threads": 1,
}
# Sferrazza et al. 2024, Figure 12c: 2,048 environments, batches of 8,192; the MLP's last layers.
_FULL: Settings = {"horizon": 24, "mini_batches": 6, "steps": 100_000_000, "device": "cuda"}
_FULL_A1: Settings = {**_A1_WALK, **_FULL, "robots": 2048, "sim": "mujoco_warp"}


def _bot_rl(full: bool = False) -> ReinforcementPlan:
    """The Body Transformer paper's Figures 5, 10 and 11: about 30,000 parameters each, 2 tasks.

    Args:
        full: the paper's size instead, 690,000 in actor and critic, its four tasks and five seeds,
            for a GPU. Deviation: the CPU steps the humanoids; the paper tells no number of steps.
    """
    layers, width = (10, 64) if full else (3, 32)
    bot = {"n_layers": layers, "embed_dim": width, "feedforward_dim": 2 * width, "n_heads": 2}
    bot["positional_embedding"] = True
    kinds = {"none": "transformer", "hard": "bot-hard", "mix": "bot-mix"}
    kinds |= {"mix-random": "bot-mix-random"}
    mlp = {"hidden_dim": 390, "n_layers": 3} if full else {"hidden_dim": 128, "n_layers": 2}
    learners: Learners = {
        "mlp": {"model_overrides": mlp},
        **{
            name: {"model": "bot", "model_overrides": {**bot, "masking": masking}}
            for masking, name in kinds.items()
        },
        "bot-shared": {
            "model": "bot",
            "model_overrides": {**bot, "masking": "mix", "shared_tokenizer": True},
        },
    }
    names = ("Mod", "Board", "Hill") if full else ("Mod",)
    settings = {**_FULL, "environments": 2048} if full else {"steps": 2_000_000, "target_kl": 0.03}
    humanoids = {f"humanoid-{n.lower()}": {"env": f"Humanoid-{n}-v0", **settings} for n in names}
    return ReinforcementPlan(
        learners,
        tasks={"a1-walk": _FULL_A1 if full else _A1_WALK, **humanoids},
        evaluate={"a1-walk": _A1_WALK_EVALUATION},
        seeds=tuple(range(5 if full else 3)),
        published=(
            *statements("bot-mix", {"mlp": "", "transformer": ""}, "BoT, Figure 5"),
            *statements("bot-mix", {"bot-mix-random": ""}, "BoT, Figure 10"),
            *statements("bot-mix", {"bot-shared": ""}, "BoT, Figure 11"),
        ),
    )


def statements(
    learner: str, others: Mapping[str, str], source: str, measure: str = ""
) -> tuple[Published, ...]:
    """Statements that a learner is ahead of others; their numbers as text."""
    return tuple(Published(learner, name, source, text, measure) for name, text in others.items())


def _fcnet_data_size(full: bool = False) -> Experiment:
    """FCNet's Figure 4 on nested parts of one store, of 6 million steps or (`full`) of 60."""
    shares = (0.0075, 0.0317, 0.1, 0.333, 1.0) if full else (0.075, 0.317, 1.0)
    numbers = {"transformer": "at 60 million steps 10.060 of the expert's 10.589 (Table 7)"}
    return Experiment(
        {"fcnet": {}, "transformer": {}},
        seeds=(0, 1, 2),
        settings={"split_seed": 0, "steps": 20_000 if full else 3000},
        vary={"data": shares},
        evaluate={**ALL_CELLS, "episodes": 75 if full else GRID_EPISODES},
        published=statements("fcnet", numbers, "FCNet, Figure 4"),
    )


def _fcnet_recipes(full: bool = False) -> Experiment:
    """FCNet's Tables 5 to 7: the published sizes and recipes; the Transformer with AdamW, too.

    Batches of 128 windows for 600 updates, or (`full`) of 1,024 for 50 epochs of 60 million steps.
    """
    name = "transformer-adamw"
    adamw = {"model": "transformer-legged", "optimiser": "adamw", "peak_lr": 1e-3}
    few = {"steps": 600, "batch_size": 128}
    numbers = {"transformer-legged": "10.060 of the expert's 10.589; no number", name: ""}
    return Experiment(
        {"fcnet-legged": {}, "transformer-legged": {}, name: adamw},
        seeds=(0, 1, 2),
        settings={"split_seed": 0, **({"steps": 46_000} if full else few)},
        tested=True,
        evaluate=ALL_CELLS,
        published=statements("fcnet-legged", numbers, "FCNet, Table 7"),
    )


def _fcnet_sizes(full: bool = False) -> Experiment:
    """FCNet's Figure 8: widths, with the loss on held-out episodes of Table 7."""
    widths = (64, 128, 256, 512) if full else (32, 64, 128, 256)
    return Experiment(
        {"fcnet": {}, "transformer": {}},
        seeds=(0, 1, 2),
        settings={"split_seed": 0, "steps": 20_000 if full else 2000},
        tested=True,
        vary={"model_overrides.hidden_dim": widths},
        evaluate=ALL_CELLS,
        published=statements("fcnet", {"transformer": ""}, "FCNet, Figure 8"),
    )


def _fcnet_context(full: bool = False) -> Experiment:
    """FCNet's Figure 9: lengths of the context; as many modes as the shortest one has."""
    return Experiment(
        {"fcnet": {"model_overrides": {"n_modes": 5}}, "transformer": {}},
        seeds=(0, 1, 2),
        settings={"split_seed": 0, "steps": 20_000 if full else 2000},
        vary={"model_overrides.context_len": (8, 16, 32, 64, 128)},
        evaluate=ALL_CELLS,
        published=statements("fcnet", {"transformer": ""}, "FCNet, Figure 9"),
    )


def _bot_masks() -> Experiment:
    """BoT's Figure 9a where there is data: masks of the quadruped's body.

    Equal updates, which cost them about the same; a time measured first varies with the machine.
    """
    maskings = {"bot-hard": "hard", "bot-mix": "mix", "bot-soft": "soft", "bot-random": "random",
                "bot-mix-random": "mix-random", "bot-unmasked": "none"}  # fmt: skip
    learners: dict[str, Any] = {
        name: {"model": "bot-mix", "model_overrides": {"masking": masking}}
        for name, masking in maskings.items()
    }
    position = {"masking": "mix", "positional_embedding": True}
    # Without positions a shared tokenizer gives all legs the same action for the same observation.
    further = {"bot-position": position, "bot-shared": {**position, "shared_tokenizer": True}}
    for name, overrides in further.items():
        learners[name] = {"model": "bot-mix", "model_overrides": overrides}
    behind = dict.fromkeys(("bot-mix", "bot-soft", "bot-random", "bot-unmasked"), "")
    return Experiment(
        learners,
        seeds=(0, 1, 2),
        settings={"split_seed": 0, "ema_decay": 0.995, "steps": 1500},
        evaluate=ALL_CELLS,
        published=statements("bot-hard", behind, "BoT, Figure 9a (MoCapAct)"),
    )


_MLP: Settings = {"model": "mlp", "model_overrides": {"hidden_dim": 256, "n_layers": 2}}


def _adroit(full: bool = False) -> Experiment:
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


def _body_learners(model: str, mlp: str, sizes: Settings, mlp_sizes: Settings) -> dict[str, Any]:
    """BoT-Hard, the Transformer without a mask, and the MLP: the paper's, with other sizes."""
    hard, none = ({**sizes, "masking": masking} for masking in ("hard", "none"))
    return {
        "bot-hard": {"model": model, "model_overrides": hard},
        "transformer": {"model": model, "model_overrides": none},
        "mlp": {"model": mlp, "model_overrides": mlp_sizes},
    }


# The published rate, 1e-4 throughout, is for a hundred times as many updates.
_FEW_UPDATES: Settings = {"peak_lr": 1e-3, "schedule": "cosine", "warmup_fraction": 0.1}


def _adroit_demonstrations(full: bool = False) -> Experiment:
    """BoT's Figure 9c: success after the first 5, 10 and 25 demonstrations; door, hammer, relocate.

    About 90,000 parameters each, or (`full`) the paper's 17 million for 200 epochs of 25.
    """
    sizes = {"embed_dim": 32, "n_heads": 2, "n_layers": 10, "feedforward_dim": 64}
    small, mlp = ({}, {}) if full else (sizes, {"embed_dim": 8, "feedforward_dim": 144})
    names = ("bot-adroit-door", "mlp-adroit-door")
    said = {"transformer": "consistently", "mlp": "competitive or ahead"}
    return Experiment(
        _body_learners(*names, {**small, "body": "own"}, {**mlp, "body": "own"}),
        seeds=tuple(range(5 if full else 3)),
        sets={"human": "quality = 'human'"},
        settings={
            "split_seed": 0,
            "held_out_fraction": 0.0,
            "steps": 4000 if full else 500,
            **({} if full else _FEW_UPDATES),
        },
        vary={"episodes": (5, 10, 25)},
        published=statements("bot-hard", said, "BoT, Figure 9c", "success"),
    )


_HELD_OUT = ", ".join(
    f"'{motion}_{variant:02d}'"
    for motion in ("stand", "squat", "arm_swing", "step")
    for variant in (8, 9)
)
"""Two of ten variants of each motion of `gaitforge humanoid reference`."""
_BOT_SMALL: Settings = {"embed_dim": 48, "n_heads": 4, "n_layers": 16, "feedforward_dim": 96}
_BODY_MLP_SMALL: Settings = {"embed_dim": 16, "feedforward_dim": 256}


def _tracking(
    learners: Learners, full: bool, published: tuple[Published, ...], **fields: Any
) -> Experiment:
    """Imitation of MoCapAct's task, scored on clips that no learner has seen."""
    few = {"steps": 400, **_FEW_UPDATES}
    return Experiment(
        learners,
        seeds=tuple(range(5 if full else 3)),
        sets={"": f"clip not in ({_HELD_OUT})"},
        settings={"split_seed": 0, **({"steps": 2_000_000} if full else few)},  # 100 epochs of 5 M
        curve=20 if full else 4,
        published=published,
        **fields,
    )


_KEPT_RETURN = "mean validation normalised_return"


def _mocapact(full: bool = False) -> Experiment:
    """BoT's Figures 3a and 9a: masks and the MLP, 0.4 million parameters or the paper's 17."""
    sizes = {} if full else _BOT_SMALL
    mlp = {} if full else _BODY_MLP_SMALL
    learners = _body_learners("bot-mocapact", "mlp-mocapact", sizes, mlp)
    for masking in ("mix", "soft", "random"):
        overrides = {**sizes, "masking": masking}
        learners[f"bot-{masking}"] = {"model": "bot-mocapact", "model_overrides": overrides}
    learners["bot-stochastic"] = {**learners["bot-hard"], "objective": "gaussian-bc"}
    means = {"transformer": "0.650 and 0.576", "mlp": "0.650 and 0.534"}
    masks = {"bot-mix": "0.65 and 0.63", "bot-soft": "0.65 and 0.58", "bot-random": "0.65 and 0.60"}
    return _tracking(
        learners,
        full,
        (
            *statements("bot-hard", means, "BoT, Figure 3a", _KEPT_RETURN),
            *statements("bot-hard", masks, "BoT, Figure 9a", _KEPT_RETURN),
            *statements(
                "bot-stochastic", {"bot-hard": "0.66 and 0.65"}, "BoT, Figure 9a", _KEPT_RETURN
            ),
        ),
    )


def _mocapact_sizes(full: bool = False) -> Experiment:
    """BoT's Figure 3b: over the width; (`full`) to the paper's 17 million parameters."""
    sizes = {"n_heads": 5} if full else _BOT_SMALL
    learners = _body_learners("bot-mocapact", "mlp-mocapact", sizes, _BODY_MLP_SMALL)
    widths = (10, 40, 160, 320) if full else (16, 32, 48, 64)
    return _tracking(
        {name: learners[name] for name in ("bot-hard", "transformer")},
        full,
        statements("bot-hard", {"transformer": ""}, "BoT, Figure 3b", _KEPT_RETURN),
        vary={"model_overrides.embed_dim": widths},
    )


def _mocapact_layers(full: bool = False) -> Experiment:
    """BoT's Figure 9b: over the layers; the body's graph has a diameter of 14."""
    sizes = {"masking": "hard", **({} if full else _BOT_SMALL)}
    learners = {"bot-hard": {"model": "bot-mocapact", "model_overrides": sizes}}
    return _tracking(learners, full, (), vary={"model_overrides.n_layers": (2, 4, 8, 12, 16)})


def _bodies() -> Experiment:
    """One policy for many robots, on all shipped ones, whether a store has them or not.

    Robots have equal shares. Networks have about 265,000 parameters with the body's fields.
    """
    own_signs = {"model": "transformer", "own_joint_signs": True}
    return Experiment(
        {
            "transformer": {},
            "own-signs": own_signs,
            "fcnet": {},
            "bot": {"model_overrides": {"embed_dim": 72}},
        },
        seeds=(0, 1, 2),
        settings={"split_seed": 0, "steps": 3000, "equal_shares": "robot"},
        evaluate={**ALL_CELLS, "robot": ",".join(list_robots()), "episodes": 3, "robots": 60},
        expert=",".join(shipped_experts(list_robots())),
        published=statements("transformer", {"own-signs": ""}, "the joints' signs taken out"),
    )


PAPERS: Mapping[str, PaperPreset] = {
    "fcnet-data-size": PaperPreset(_fcnet_data_size, "FCNet's Figure 4: over the data", 0.8, True),
    "fcnet-recipes": PaperPreset(
        _fcnet_recipes, "FCNet's Tables 5 to 7: published sizes and recipes", 0.9, True
    ),
    "fcnet-sizes": PaperPreset(_fcnet_sizes, "FCNet's Figure 8: over the width", 0.8, True),
    "fcnet-context": PaperPreset(_fcnet_context, "FCNet's Figure 9: over the context", 0.9, True),
    "bot-masks": PaperPreset(_bot_masks, "BoT's Figure 9a: masks, tokenizers and positions", 0.9),
    "adroit": PaperPreset(_adroit, "FCNet's Table 3: the Adroit hand's sets", 1.2, True),
    "adroit-demonstrations": PaperPreset(
        _adroit_demonstrations, "BoT's Figure 9c: over the number of demonstrations", 0.75, True
    ),
    "mocapact": PaperPreset(
        _mocapact, "BoT's Figures 3a and 9a: masks on held-out clips", 3.0, True
    ),
    "mocapact-sizes": PaperPreset(_mocapact_sizes, "BoT's Figure 3b: over the width", 3.0, True),
    "mocapact-layers": PaperPreset(_mocapact_layers, "BoT's Figure 9b: over the layers", 1.5, True),
    "bodies": PaperPreset(
        _bodies, "one policy for many robots, with the joints' signs taken out", 2.1
    ),
    "bot-rl": PaperPreset(
        _bot_rl, "BoT's Figures 5, 10 and 11: six networks trained by PPO", 20.0, True
    ),
}
