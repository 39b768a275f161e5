"""Presets of the Body Transformer's figures, each with the statements that it is held against."""

from typing import Any

from gaitforge.collectors.experts.expert import shipped_experts
from gaitforge.collectors.robots.robot import list_robots
from gaitforge.flows.experiments.plan import Experiment, Learners, Published, Settings, statements
from gaitforge.pipeline.presets.experiments import ALL_CELLS
from gaitforge.plugins.papers.measurements import MeasurementPlan
from gaitforge.plugins.papers.measures.attention import (
    COMPILED,
    NUMPY_DENSE,
    NUMPY_MASKED,
    TORCH_DENSE,
)
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


_BOT = "BoT, Figures 6 and 13"

_SPARSE = "up to 206 % faster at 128 nodes; faster from a sparsity of about 0.6"


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
