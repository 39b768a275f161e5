"""The models by name: kinds of network with their config and builder, and presets of sizes.

Nothing heavy is imported until a model is asked for.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from typing import Any

from learners.models.presets import PRESETS
from learners.policy.tokens import TokenLayout


@dataclass(frozen=True)
class ModelKind:
    """Where a kind of network lives: its module, config class, and build function."""

    module: str
    config_class: str
    build_function: str

    def settings(self) -> dict[str, Any]:
        """The config's fields and their defaults."""
        config_class = getattr(import_module(self.module), self.config_class)
        return {field.name: field.default for field in fields(config_class)}

    def config(self, **values: Any) -> Any:
        """A new config of this kind."""
        return getattr(import_module(self.module), self.config_class)(**values)


KINDS: dict[str, ModelKind] = {
    "fcnet": ModelKind("learners.models.fcnet.fcnet", "FCNetConfig", "build_fcnet"),
    "bot": ModelKind("learners.models.bot.bot", "BoTConfig", "build_bot"),
    "body-mlp": ModelKind("learners.models.bot.body_mlp", "BodyMLPConfig", "build_body_mlp"),
    "transformer": ModelKind(
        "learners.models.transformer", "TransformerConfig", "build_transformer"
    ),
    "dt": ModelKind(
        "learners.models.decision_transformer",
        "DecisionTransformerConfig",
        "build_decision_transformer",
    ),
    "retnet": ModelKind("learners.models.retnet", "RetNetConfig", "build_retnet"),
    "history-mlp": ModelKind("learners.models.mlp", "HistoryMLPConfig", "build_history_mlp"),
    "mlp": ModelKind("learners.models.mlp", "MLPConfig", "build_mlp"),
}


@dataclass(frozen=True)
class ModelSpec:
    """A kind of network and its sizes."""

    kind: str
    config: Any

    def to_json(self) -> dict[str, Any]:
        """A tree of JSON values that `spec_from_json` turns back into an equal spec."""
        return {"kind": self.kind, "config": asdict(self.config)}


def preset(name: str, overrides: Mapping[str, Any] | None = None) -> ModelSpec:
    """A fresh spec by name, with some of its config's fields replaced.

    Raises ValueError for an unknown name or field, or sizes that the kind refuses.
    """
    if name not in PRESETS:
        raise ValueError(f"no model {name!r}; known are {', '.join(PRESETS)}")
    kind = KINDS[PRESETS[name].kind]
    known = kind.settings()
    for field in overrides or {}:
        if field not in known:
            raise ValueError(f"model {name} has no setting {field!r}; it has {', '.join(known)}")
    config = kind.config(**(dict(PRESETS[name].values) | dict(overrides or {})))
    return ModelSpec(PRESETS[name].kind, config)


def build_network(spec: ModelSpec, layout: TokenLayout, act_dim: int) -> Any:
    """The network (an nn.Module) of `spec` for tokens of `layout`, randomly initialised."""
    kind = KINDS[spec.kind]
    return getattr(import_module(kind.module), kind.build_function)(spec.config, layout, act_dim)


def spec_from_json(tree: Mapping[str, Any]) -> ModelSpec:
    """Rebuild a spec; ValueError for a kind or a setting that this program does not know."""
    name = tree.get("kind")
    if name not in KINDS:
        raise ValueError(f"no kind of model {name!r}; known are {', '.join(KINDS)}")
    try:
        return ModelSpec(name, KINDS[name].config(**tree["config"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"the settings of the {name} do not fit this program: {error}") from error


def count_parameters(network: Any) -> int:
    """Trainable numbers of an nn.Module."""
    return sum(value.numel() for value in network.parameters() if value.requires_grad)
