"""Presets of the papers' figures and tables, each with the statements that it is held against."""

from dataclasses import replace
from typing import Any

from gaitforge.collectors.experts.expert import shipped_experts
from gaitforge.collectors.robots.robot import list_robots
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
from gaitforge.plugins.papers.measures.attention import (
    COMPILED,
    NUMPY_DENSE,
    NUMPY_MASKED,
    TORCH_DENSE,
)
from gaitforge.plugins.papers.measures.control_steps import RUNTIMES, ControlStep
from gaitforge.plugins.papers.measures.spectra import LOWEST, OTHERS
from gaitforge.plugins.papers.reinforcement import AREA, ReinforcementPlan

# Rewards per second of the published A1 (github.com/carlosferrazza/BodyTransformer, a1_walk/
# legged_gym/legged_gym/envs/a1/a1_field_config.py), and legged_gym's episodes of 20 s. Deviations:
# the bell of the speed is half as wide, speeds are along the heading, and air time of the feet and
# torques beyond their limits, 2.0 and -0.2 there, have no term here.
_A1_EPISODES: Settings = {
    "episode_s": 20.0,
    "rewards": {
        "track_linear_velocity": 2.0,
        "track_yaw_rate": 0.05,
        "speed_error": -2.0,
        "alive": 2.0,
        "power": -2e-5,
        "joint_limits": -0.1,
    },
}
# The adaptive rate of the experts' trainings falls too far for few robots. Without the filter,
# noise carries a robot whose mean action stands.
_A1_WALK: Settings = {
    **_A1_EPISODES,
    "robot": "a1",
    "terrains": ("rough",),
    "skills": ("walk",),
    "robots": 256,
    "steps": 2_000_000,
    "entropy": 0.0,
    "target_kl": 0.02,
    "action_filter_hz": 5.0,
    "threads": 1,
    "learning_rate": 3e-4,
}
# At the levels 1 and 4 an MLP of 27,000 parameters nearly always succeeds after 0.7 million steps.
_A1_WALK_EVALUATION: Settings = {
    **_A1_EPISODES,
    "grid": {"terrains": ("rough",), "skills": ("walk",), "levels": (4, 8), "episodes": 100},
    "threads": 1,
}
# Sferrazza et al. 2024, Figure 12c: 2,048 environments and batches of 8,192. The published code
# (github.com/carlosferrazza/BodyTransformer) has 10,000 updates: of 32 steps for the humanoids
# (reinforcement_learning/IsaacGymEnvs/isaacgymenvs/launch.py; the horizon is IsaacGymEnvs' own), of
# legged_gym's 24 for 4,096 A1s (a1_walk/legged_gym/legged_gym/envs/a1/a1_field_config.py).
_FULL_HUMANOID: Settings = {
    "environments": 2048,
    "horizon": 32,
    "mini_batches": 8,
    "steps": 10_000 * 32 * 2048,
    "device": "cuda",
}
_FULL_A1: Settings = {
    **_A1_WALK,
    "sim": "mujoco_warp",
    "robots": 4096,
    "horizon": 24,
    "mini_batches": 12,
    "steps": 10_000 * 24 * 4096,
    "device": "cuda",
}
# The paper's MLP: 699,467 parameters in actor, critic and std of its humanoid (Figure 12c).
_PAPER_MLP: Settings = {"embed_dim": 64, "feedforward_dim": 150}
_HILL = "humanoid-hill"
_HILL_LAYERS = 12
"""Of the Transformers on the hills, in launch.py."""
_EARLIER = {"initial_weights": "torch"}


def _bot_rl_learners(full: bool) -> dict[str, dict[str, Any]]:
    """Networks of the paper's Figures 5, 10 and 11, and BoT-Mix with PyTorch's initial weights."""
    layers, width = (10, 64) if full else (3, 32)
    sizes = {
        "n_layers": layers,
        "embed_dim": width,
        "feedforward_dim": 2 * width,
        "n_heads": 2,
        "positional_embedding": True,
    }
    mlp = {"hidden_dim": 390, "n_layers": 3} if full else {"hidden_dim": 128, "n_layers": 2}
    maskings = {
        "transformer": "none",
        "bot-hard": "hard",
        "bot-mix": "mix",
        "bot-mix-random": "mix-random",
    }
    bots: dict[str, dict[str, Any]] = {
        name: {"model": "bot", "model_overrides": {**sizes, "masking": masking}}
        for name, masking in maskings.items()
    }
    mix = bots["bot-mix"]["model_overrides"]
    return {
        "mlp": {"model_overrides": mlp},
        "body-mlp": {"model_overrides": _PAPER_MLP},
        **bots,
        "bot-shared": {"model": "bot", "model_overrides": {**mix, "shared_tokenizer": True}},
        "bot-mix-torch": {**bots["bot-mix"], **_EARLIER},
    }


def bot_rl(full: bool = False) -> ReinforcementPlan:
    """The Body Transformer paper's Figures 5, 10 and 11: about 30,000 parameters each, 2 tasks.

    Its MLP, `body-mlp`, has the paper's size at once: ten times as many parameters.

    Args:
        full: the paper's sizes and steps instead, 690,000 in actor and critic, its four tasks and
            five seeds, for a GPU. Deviation: the CPU steps the humanoids.
    """
    learners = _bot_rl_learners(full)
    names = ("mod", "board", "hill") if full else ("mod",)
    settings = _FULL_HUMANOID if full else {"steps": 2_000_000, "target_kl": 0.03}
    humanoids = {f"humanoid-{n}": {"env": f"Humanoid-{n.title()}-v0", **settings} for n in names}
    deeper = {
        name: {"model_overrides": {**learner["model_overrides"], "n_layers": _HILL_LAYERS}}
        for name, learner in learners.items()
        if learner.get("model") == "bot"
    }
    ahead = {"body-mlp": "", "transformer": ""}
    return ReinforcementPlan(
        learners,
        tasks={"a1-walk": _FULL_A1 if full else _A1_WALK, **humanoids},
        evaluate={"a1-walk": _A1_WALK_EVALUATION},
        exceptions={_HILL: deeper} if full else {},
        seeds=tuple(range(5 if full else 3)),
        initial_weights="normal",
        published=(
            *statements("bot-mix", ahead, "BoT, Figure 5"),
            *statements("bot-mix", ahead, "BoT, Figure 5: sample efficiency", AREA),
            *statements("bot-mix", {"bot-mix-torch": ""}, "BoT's code: initial weights", AREA),
            *statements("bot-mix", {"bot-mix-random": ""}, "BoT, Figure 10"),
            *statements("bot-mix", {"bot-shared": ""}, "BoT, Figure 11"),
        ),
        title="Body Transformer (BoT), Figures 5, 10 and 11: networks trained by PPO",
    )


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

    For a store of `legged-clean-6m`; policies are scored under commands that change, too.
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


def bot_masks() -> Experiment:
    """BoT's Figure 9a where there is data: masks of the quadruped's body.

    All have the sizes of `bot-hard`, whose 6 layers are as many as the body's graph is wide. Random
    masks are trees no wider than that. Equal updates, which cost them about the same; a time
    measured first varies with the machine.
    """
    maskings = {"bot-hard": "hard", "bot-mix": "mix", "bot-soft": "soft", "bot-random": "random",
                "bot-mix-random": "mix-random", "bot-unmasked": "none"}  # fmt: skip
    learners: dict[str, Any] = {
        name: {"model": "bot-hard", "model_overrides": {"masking": masking}}
        for name, masking in maskings.items()
    }
    position = {"masking": "mix", "positional_embedding": True}
    # Without positions a shared tokenizer gives all legs the same action for the same observation.
    further = {"bot-position": position, "bot-shared": {**position, "shared_tokenizer": True}}
    for name, overrides in further.items():
        learners[name] = {"model": "bot-hard", "model_overrides": overrides}
    behind = dict.fromkeys(("bot-mix", "bot-soft", "bot-random", "bot-unmasked"), "")
    return Experiment(
        learners,
        seeds=(0, 1, 2),
        settings={"split_seed": 0, "ema_decay": 0.995, "steps": 1500},
        evaluate=ALL_CELLS,
        published=statements("bot-hard", behind, "BoT, Figure 9a (MoCapAct)"),
    )


def bot_depth() -> Experiment:
    """BoT's Figure 9b on a quadruped: over the layers; the body's graph is 6 edges wide."""
    maskings = {"bot-hard": "hard", "bot-mix": "mix", "bot-unmasked": "none"}
    return Experiment(
        {
            name: {"model": "bot-hard", "model_overrides": {"masking": masking}}
            for name, masking in maskings.items()
        },
        seeds=(0, 1, 2),
        settings={"split_seed": 0, "ema_decay": 0.995, "steps": 800},
        vary={"model_overrides.n_layers": (2, 3, 4, 6, 8)},
        evaluate=ALL_CELLS,
        published=statements("bot-hard", {"bot-unmasked": ""}, "BoT, Figures 3a and 9b (MoCapAct)"),
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


def adroit_demonstrations(full: bool = False) -> Experiment:
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
    for motion in ("stand", "squat", "arm_swing", "step", "walk")
    for variant in (8, 9)
)
"""Two of ten variants of each motion of `gaitforge humanoid reference`."""
# Deviation: 4 layers, not the paper's 16, which cost 4 times as much; 142,232 and 143,696
# parameters.
_BOT_SMALL: Settings = {"embed_dim": 48, "n_heads": 4, "n_layers": 4, "feedforward_dim": 96}
_BODY_MLP_SMALL: Settings = {"embed_dim": 16, "feedforward_dim": 84}
# An update of the small BoT takes 0.13 s of a core, one of the MLP 0.009 s.
_TRACKING: Settings = {**_FEW_UPDATES, "steps": 6000, "peak_lr": 3e-4}
_TRACKING_S = 800.0
"""Seconds on one core of 6,000 updates of the small BoT."""


def _tracking(
    learners: Learners, full: bool, published: tuple[Published, ...], **fields: Any
) -> Experiment:
    """Imitation of MoCapAct's task, scored on clips that no learner has seen.

    Learned from rollouts that reached their snippet's end: the authors' code drops the others.
    """
    return Experiment(
        learners,
        seeds=tuple(range(5)),
        sets={"": f"clip not in ({_HELD_OUT}) and not terminated"},
        settings={
            "split_seed": 0,
            **({"steps": 2_000_000} if full else _TRACKING),  # 100 epochs of 5 M
        },
        curve=20 if full else 4,
        published=published,
        **fields,
    )


_KEPT_RETURN = "mean validation normalised_return"


_KEPT_MEANS = {"transformer": "0.650 and 0.576", "mlp": "0.650 and 0.534"}


def _tracking_learners(full: bool) -> dict[str, Any]:
    """The learners of Figure 3a, of equal size."""
    sizes = {} if full else _BOT_SMALL
    mlp = {} if full else _BODY_MLP_SMALL
    return _body_learners("bot-mocapact", "mlp-mocapact", sizes, mlp)


def mocapact(full: bool = False) -> Experiment:
    """BoT's Figures 3a and 9a: masks and the MLP, 0.14 million parameters or the paper's 17.

    Equal updates, as in the paper.
    """
    sizes = {} if full else _BOT_SMALL
    learners = _tracking_learners(full)
    for masking in ("mix", "soft", "random"):
        overrides = {**sizes, "masking": masking}
        learners[f"bot-{masking}"] = {"model": "bot-mocapact", "model_overrides": overrides}
    learners["bot-stochastic"] = {**learners["bot-hard"], "objective": "gaussian-bc"}
    masks = {"bot-mix": "0.65 and 0.63", "bot-soft": "0.65 and 0.58", "bot-random": "0.65 and 0.60"}
    return _tracking(
        learners,
        full,
        (
            *statements("bot-hard", _KEPT_MEANS, "BoT, Figure 3a", _KEPT_RETURN),
            *statements("bot-hard", masks, "BoT, Figure 9a", _KEPT_RETURN),
            *statements(
                "bot-stochastic", {"bot-hard": "0.66 and 0.65"}, "BoT, Figure 9a", _KEPT_RETURN
            ),
        ),
    )


def mocapact_time() -> Experiment:
    """BoT's Figure 3a at equal time: an MLP makes some 15 updates in the time of one of BoT."""
    return _tracking(
        _tracking_learners(full=False),
        False,
        statements("bot-hard", _KEPT_MEANS, "BoT, Figure 3a, at equal time", _KEPT_RETURN),
        train_s=_TRACKING_S,
    )


def mocapact_sizes(full: bool = False) -> Experiment:
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


def mocapact_layers(full: bool = False) -> Experiment:
    """BoT's Figure 9b: over the layers; the body's graph has a diameter of 14."""
    sizes = {"masking": "hard", **({} if full else _BOT_SMALL)}
    learners = {"bot-hard": {"model": "bot-mocapact", "model_overrides": sizes}}
    return _tracking(learners, full, (), vary={"model_overrides.n_layers": (2, 4, 8, 12, 16)})


def bodies() -> Experiment:
    """One policy for many robots, on all shipped ones, whether a store has them or not.

    Robots have equal shares. Networks have about 265,000 parameters with the body's fields.
    """
    own_signs = {"model": "transformer", "own_joint_signs": True}
    return Experiment(
        {
            "transformer": {},
            "own-signs": own_signs,
            "fcnet": {},
            "bot": {"model_overrides": {"embed_dim": 64, "feedforward_dim": 144}},
        },
        seeds=(0, 1, 2),
        settings={"split_seed": 0, "steps": 3000, "equal_shares": "robot"},
        evaluate={**ALL_CELLS, "robot": ",".join(list_robots()), "episodes": 3, "robots": 60},
        expert=",".join(shipped_experts(list_robots())),
        published=statements("transformer", {"own-signs": ""}, "the joints' signs taken out"),
    )


_FIGURE_1 = "energy “mainly concentrated in the low-frequency part”, with m ≪ n modes"
_FIGURE_6 = "3 to 5 times as fast at 32 layers or a width of 2,048, below 20 ms"
_TABLE_1 = "O(m n (log n + m)) beside O(n²) for training, O(n m) beside O(n²) in memory"
_BOT = "BoT, Figures 6 and 13"
_SPARSE = "up to 206 % faster at 128 nodes; faster from a sparsity of about 0.6"


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


def bot_attention(full: bool = False) -> MeasurementPlan:
    """BoT's Figures 6 and 13: masked attention over nodes and sparsity."""
    return MeasurementPlan(
        {"attention": {"masks": 10_000} if full else {}},
        published=(
            Published(NUMPY_MASKED, NUMPY_DENSE, _BOT, _SPARSE),
            Published(COMPILED, TORCH_DENSE, f"{_BOT}, our networks"),
        ),
        title="Body Transformer (BoT), Figures 6 and 13: masked attention",
    )
