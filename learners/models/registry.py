"""Registry of models: the kinds of network, and presets of their sizes.

This file imports no torch; a model's module is imported when the model is built. To add a model
here, write its file, register its config in KINDS and at least one size in PRESETS. A config
elsewhere is a model, too: as "module:Config", or by an entry point of the group gaitforge.models;
its sizes are `ModelPreset`s of gaitforge.model_presets (`common.extensions`). A network is an
nn.Module with

    forward(tokens (B, T, D)) -> actions (B, T, A)
    init_state(B) -> the state of B robots before their first step
    step(token (B, D), state) -> action (B, A) as in forward, and the next state
    reset_state(state, rows): reset the robots `rows` (indices), in place

Its config has `build` and `prefix_len`, the steps before a training window that the network reads,
and may have

    training: settings of `TrainConfig` that suit it
    receptive_field: the steps before the current one that can change its action; None, as without
        it, for all of an episode's
    earlier: what saved settings mean that lack a field

A network that reads a fixed number of steps is a `base.HistoryNetwork`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any

from gaitforge.common.errors import names_allowed
from gaitforge.common.extensions import (
    Extension,
    Registered,
    extension,
    extension_names,
    named_extension,
)
from gaitforge.common.limits import check_types
from gaitforge.learners.tokens import TokenLayout

# Kind -> "module:class" of its config, whose `build(layout, act_dim)` makes the network.
KINDS: dict[str, str] = {
    "fcnet": "gaitforge.learners.models.fcnet:FCNetConfig",
    "bot": "gaitforge.learners.models.bot:BoTConfig",
    "body-mlp": "gaitforge.learners.models.bot:BodyMLPConfig",
    "transformer": "gaitforge.learners.models.transformer:TransformerConfig",
    "dt": "gaitforge.learners.models.transformer:DecisionTransformerConfig",
    "history-mlp": "gaitforge.learners.models.mlp:HistoryMLPConfig",
    "mlp": "gaitforge.learners.models.mlp:MLPConfig",
}

NETWORKS = {
    "fcnet": "Fourier Controller Network",
    "bot": "BoT",
    "body-mlp": "MLP by body parts",
    "transformer": "Transformer over time",
    "dt": "Decision Transformer",
    "history-mlp": "MLP of several steps",
    "mlp": "MLP of one step",
}
"""Kind -> the network in a few words."""


def config_class(kind: str) -> Any:
    """The config class of a kind: one of KINDS, another package's, or "module:Config".

    Raises:
        UntrustedCodeError: "module:Config" that the user's command line does not name.
        ValueError: no such kind, or no config of a network.
    """
    if kind in KINDS:
        config = Extension(f"model {kind}", KINDS[kind])
    else:
        config = named_extension("model", kind) if ":" in kind else extension("model", kind)
    if config is None:
        names = dict.fromkeys([*KINDS, *extension_names("model")])
        raise ValueError(
            f"no kind of model {kind!r}; {names_allowed(kind, names, 'or module:Config')}"
        )
    network = config.load()
    is_config = isinstance(network, type) and is_dataclass(network)
    if not (is_config and hasattr(network, "build") and hasattr(network, "prefix_len")):
        raise ValueError(f"{config.where} is no dataclass with build and prefix_len: {config.path}")
    return network


def default_settings(kind: str) -> dict[str, Any]:
    """The fields of a kind's config and their defaults."""
    return {setting.name: setting.default for setting in fields(config_class(kind))}


@dataclass(frozen=True)
class ModelPreset:
    """A named size of a model.

    Attributes:
        kind: one of KINDS, or another package's model.
        parameters: trainable parameters for the preset's space; a test builds the network and
            compares. None of another package's model.
        values: settings of the config that differ from its defaults.
        space: tokens and actions for which `parameters` is counted, one of `spaces.SPACES`.
            Training takes tokens and actions from the data.
        objective: "return" if the model or its space needs a return-to-go, "bc, return" if it has
            its own loss of imitation, else "any".
        training: settings of `TrainConfig` that suit the model, besides the defaults; those of a
            paper's preset are the published ones.
        about: the network in a few words; empty for one of `NETWORKS`.
    """

    kind: str
    parameters: int | None
    values: Mapping[str, Any]
    space: str = "legged"
    objective: str = "any"
    training: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""

    @property
    def words(self) -> str:
        """The network in a few words, with the settings by which presets of a kind differ."""
        masking = self.values.get("masking")
        settings = [f"{masking.replace('none', 'no')} mask"] if masking else []
        settings += ["spectral"] if self.values.get("history_kind") == "spectral" else []
        return ", ".join([self.about or NETWORKS.get(self.kind, self.kind), *settings])


# Sferrazza et al. 2024, Figures 12a and 12b; as in the published code, the embedding is 64 for each
# of the five heads (320), and 64 in the MLP.
BODY_ENCODER = {"embed_dim": 320, "n_heads": 5, "n_layers": 16, "feedforward_dim": 1024}
BODY_MLP = {"embed_dim": 64, "feedforward_dim": 2500}
# Appendix E: "fixed variance of 0.01", of the Gaussian variant.
BODY_STD = {"fixed_std": 0.1}
# Learning rate and batch, of independent steps, from Figures 12a and 12b; the rest from the
# published code (github.com/carlosferrazza/BodyTransformer, imitation_learning/run_mocapact.py and
# run_adroit.py): torch's default AdamW at a constant rate, on actions in the units of the data.
BODY_TRAINING = {
    "window_len": 1,
    "batch_size": 256,
    "optimiser": "adamw",
    "peak_lr": 1e-4,
    "warmup_fraction": 0.0,
    "schedule": "constant",
    "weight_decay": 0.01,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "grad_clip": None,
    "normalise_actions": False,
}
# The best of four or five windows for each kind at equal time, see docs/decisions/windows.md.
FCNET_WINDOWS = {"window_len": 64, "batch_size": 24, "peak_lr": 5e-3, "warmup_fraction": 0.1}
ATTENTION_WINDOWS = FCNET_WINDOWS | {"peak_lr": 2e-3}
MLP_STEPS = {"window_len": 1, "batch_size": 256, "peak_lr": 3e-3, "warmup_fraction": 0.1}
BOT_TRAINING = {"window_len": 1, "batch_size": 256, "peak_lr": 6e-3, "warmup_fraction": 0.05}
# Tan et al. 2024, Tables 4 and 5. The published code (github.com/thkkk/FCNet, FCNet/DT/train.py and
# utils/runner.py) adds: weight decay is part of Adam's gradient, FCNet's gradients are not clipped,
# actions are in the units of the data. Table 5 states no weight decay; 1e-4 is that of Table 4, of
# the published code and our default.
FCNET_TRAINING = {
    "window_len": 64,
    "optimiser": "adam",
    "peak_lr": 5e-3,
    "warmup_fraction": 0.2,
    "schedule": "cosine",
    "weight_decay": 1e-4,
    "betas": (0.9, 0.98),
    "eps": 1e-9,
    "grad_clip": None,
    "normalise_actions": False,
}
# Table 6. It tells no betas: the optimiser's are those of its authors. Gradients of the Transformer
# are clipped (utils/runner.py of the published code), at 1.0.
TRANSFORMER_TRAINING = FCNET_TRAINING | {
    "batch_size": 1024,
    "optimiser": "lion",
    "betas": (0.9, 0.99),
    "grad_clip": 1.0,
}
# The Transformer of the published code, see `models.transformer`.
PUBLISHED_TRANSFORMER = {
    "n_heads": 8,
    "positions": "none",
    "dropout": 0.1,
    "embedding_norm": True,
}
_PUBLISHED_TRANSFORMER = "Transformer over time as in FCNet's code: no positions, dropout"
# Section 4.1, FCNet/DT/d4rl/convert_pkl_to_memmap.py: return-to-go on the scale of D4RL's score.
FCNET_D4RL = FCNET_TRAINING | {"batch_size": 128, "objective": "return", "return_zero": None}


def _body_presets(
    space: str, body: str, transformer: int, hops: int, mlp: int
) -> dict[str, ModelPreset]:
    """Presets of the Body Transformer's three maskings and its two baselines, for one body.

    transformer, mlp: their parameter counts. hops: number of hop distances; "soft" has one learned
    bias for each.
    """
    maskings = {"bot": "hard", "bot-mix": "mix", "bot-soft": "soft", "transformer": "none"}
    presets = {
        f"{name}-{space}": ModelPreset(
            "bot",
            transformer + hops * (masking == "soft"),
            BODY_ENCODER | BODY_STD | {"body": body, "masking": masking},
            space,
            training=BODY_TRAINING,
        )
        for name, masking in maskings.items()
    }
    values = BODY_MLP | {"body": body}
    return presets | {
        f"mlp-{space}": ModelPreset("body-mlp", mlp, values, space, training=BODY_TRAINING)
    }


def _matched_body_presets() -> dict[str, ModelPreset]:
    """BoT's maskings and the body MLP for the Aliengo, with as many parameters as "fcnet".

    "bot" is BoT-Mix. With hard masks alone there are as many layers as the body's graph is wide, 6:
    with 3 each leg sees but itself and the trunk.
    """
    sizes = {"embed_dim": 80, "feedforward_dim": 160, "n_layers": 3, "history": 16}
    deep = {"embed_dim": 64, "feedforward_dim": 96, "n_layers": 6, "history": 16, "masking": "hard"}
    maskings = {"bot": "mix", "bot-mix": "mix", "bot-unmasked": "none"}
    presets = {
        name: ModelPreset("bot", 247_852, sizes | {"masking": masking}, training=BOT_TRAINING)
        for name, masking in maskings.items()
    }
    presets["bot-hard"] = ModelPreset("bot", 249_356, deep, training=BOT_TRAINING)
    values = {"embed_dim": 24, "feedforward_dim": 256, "history": 16}
    presets["body-mlp"] = ModelPreset("body-mlp", 257_052, values, training=MLP_STEPS)
    # The same with FCNet's sliding modes of 64 steps in place of 16 stacked ones: 16 numbers, too.
    for name in ("bot-mix", "body-mlp"):
        spectral = {**presets[name].values, "history": 64, "history_kind": "spectral"}
        presets[f"{name}-spectral"] = replace(presets[name], values=spectral)
    return presets


def _d4rl_preset(task: str, parameters: int) -> dict[str, ModelPreset]:
    space = f"d4rl-{task}"
    sizes = {"hidden_dim": 512}
    return {f"fcnet-{space}": ModelPreset("fcnet", parameters, sizes, space, "return", FCNET_D4RL)}


# A baseline has the width whose parameter count is closest to that of the FCNet preset with the
# same suffix, within 5 %.
_SHIPPED: dict[str, ModelPreset] = {
    "fcnet": ModelPreset(
        "fcnet", 254_668, {"hidden_dim": 128, "decoder_dim": 64}, training=FCNET_WINDOWS
    ),
    "fcnet-legged": ModelPreset(
        "fcnet", 787_852, {}, training=FCNET_TRAINING | {"batch_size": 1024}
    ),
    **_matched_body_presets(),
    "transformer": ModelPreset(
        "transformer", 258_708, {"hidden_dim": 72}, training=ATTENTION_WINDOWS
    ),
    "transformer-legged": ModelPreset(
        "transformer",
        803_980,
        {"hidden_dim": 128},
        training=TRANSFORMER_TRAINING,
    ),
    "transformer-published": ModelPreset(
        "transformer",
        258_852,
        PUBLISHED_TRANSFORMER | {"hidden_dim": 72},
        training=ATTENTION_WINDOWS | {"grad_clip": 1.0},
        about=_PUBLISHED_TRANSFORMER,
    ),
    "transformer-published-legged": ModelPreset(
        "transformer",
        804_236,
        PUBLISHED_TRANSFORMER | {"hidden_dim": 128},
        training=TRANSFORMER_TRAINING,
        about=_PUBLISHED_TRANSFORMER,
    ),
    "dt": ModelPreset("dt", 259_068, {"hidden_dim": 72}, "legged-return", "return"),
    "dt-legged": ModelPreset("dt", 804_620, {"hidden_dim": 128}, "legged-return", "return"),
    "history-mlp": ModelPreset("history-mlp", 258_004, {"hidden_dim": 56}, training=MLP_STEPS),
    "history-mlp-legged": ModelPreset("history-mlp", 790_984, {"hidden_dim": 164}),
    "mlp": ModelPreset("mlp", 254_364, {"hidden_dim": 336}, training=MLP_STEPS),
    "mlp-legged": ModelPreset("mlp", 791_020, {"hidden_dim": 608}),
    **_d4rl_preset("hopper", 2_593_283),
    **_d4rl_preset("halfcheetah", 2_598_278),
    **_d4rl_preset("walker2d", 2_598_278),
    **_body_presets("mocapact", "cmu-humanoid", 17_544_120, 15, 16_696_656),
    **_body_presets("adroit-door", "adroit-door", 17_131_292, 11, 14_305_524),
    **_body_presets("adroit-hammer", "adroit-hammer", 17_132_890, 11, 14_302_770),
    **_body_presets("adroit-relocate", "adroit-relocate", 17_131_934, 11, 14_308_726),
}
PRESETS = Registered("model_preset", ModelPreset, _SHIPPED)
"""Name -> preset: the sizes here, and those of plug-ins and other packages."""


def model_names() -> list[str]:
    """The presets, and the models that other packages name without one."""
    return list(dict.fromkeys([*PRESETS, *extension_names("model")]))


def model_preset(name: str) -> ModelPreset:
    """A preset; another package's model and "module:Config" have their config's defaults.

    Raises:
        ValueError: no such model.
    """
    if name in PRESETS:
        return PRESETS[name]
    if ":" not in name and name not in model_names():
        choices = names_allowed(name, model_names(), "or module:Config")
        raise ValueError(f"no model {name!r}; {choices}")
    return ModelPreset(name, None, {}, training=getattr(config_class(name), "training", {}))


def describe_models() -> list[dict[str, Any]]:
    """Every model as {model, kind, words, space, objective, parameters}; imports none."""
    shown = ("kind", "words", "space", "objective", "parameters")
    packaged = [name for name in extension_names("model") if name not in PRESETS]
    entries = PRESETS.usable() | {name: ModelPreset(name, None, {}) for name in packaged}
    return [
        {"model": name} | {key: getattr(entry, key) for key in shown}
        for name, entry in entries.items()
    ]


@dataclass(frozen=True)
class ModelSpec:
    """A kind of network and its config."""

    kind: str
    config: Any

    def to_json(self) -> dict[str, object]:
        """JSON values that `spec_from_json` reads."""
        return {"kind": self.kind, "config": asdict(self.config)}


def preset(name: str, overrides: Mapping[str, Any] | None = None) -> ModelSpec:
    """The spec of a preset, with some settings of its config replaced.

    Raises ValueError for an unknown preset or setting, or an invalid value.
    """
    entry = model_preset(name)
    values = dict(overrides or {})
    defaults = default_settings(entry.kind)
    for key in values:
        if key not in defaults:
            raise ValueError(f"model {name} has no setting {key!r}; {names_allowed(key, defaults)}")
    check_types(f"model {name}: setting", config_class(entry.kind), values)
    return ModelSpec(entry.kind, config_class(entry.kind)(**{**entry.values, **values}))


def build_network(spec: ModelSpec, layout: TokenLayout, act_dim: int) -> Any:
    """The network (an nn.Module) of `spec` for tokens of `layout`, randomly initialised."""
    return spec.config.build(layout, act_dim)


def spec_from_json(tree: Mapping[str, Any]) -> ModelSpec:
    """Rebuild a spec; ValueError for an unknown kind or setting."""
    name = str(tree.get("kind"))
    try:
        config = config_class(name)
        return ModelSpec(name, config(**{**getattr(config, "earlier", {}), **tree["config"]}))
    except (KeyError, TypeError) as error:
        raise ValueError(f"the saved settings of {name} cannot be read: {error}") from error


def depth_note(network: Any) -> str:
    """A line on masks that do not join all parts of the body that a network is for, or empty.

    See `BoT.depth_note`; networks without one have nothing to say.
    """
    inner = getattr(network, "network", network)  # of a bounded one
    return inner.depth_note() if hasattr(inner, "depth_note") else ""


def count_parameters(network: Any) -> int:
    """Trainable parameters of an nn.Module."""
    return sum(value.numel() for value in network.parameters() if value.requires_grad)
