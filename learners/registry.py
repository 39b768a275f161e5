"""The models by name: kinds of network with their config and builder, and presets of sizes.

Nothing heavy is imported until a model is asked for.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from importlib import import_module
from typing import Any

from learners.tokens import TokenLayout


@dataclass(frozen=True)
class ModelKind:
    """Where a kind of network lives: its module, config class, and build function."""

    module: str
    config_class: str
    build_function: str

    def config(self, **values: Any) -> Any:
        """A new config of this kind."""
        return getattr(import_module(self.module), self.config_class)(**values)


KINDS: dict[str, ModelKind] = {
    "fcnet": ModelKind("learners.fcnet", "FCNetConfig", "build_fcnet"),
    "bot": ModelKind("learners.bot", "BoTConfig", "build_bot"),
}


@dataclass(frozen=True)
class ModelSpec:
    """A kind of network and its sizes."""

    kind: str
    config: Any

    def to_json(self) -> dict[str, Any]:
        """A tree of JSON values that `spec_from_json` turns back into an equal spec."""
        return {"kind": self.kind, "config": asdict(self.config)}


def _fcnet() -> ModelSpec:
    return ModelSpec("fcnet", KINDS["fcnet"].config(hidden_dim=128, decoder_dim=64))


def _fcnet_legged() -> ModelSpec:
    return ModelSpec("fcnet", KINDS["fcnet"].config())


def _bot() -> ModelSpec:
    return ModelSpec(
        "bot", KINDS["bot"].config(embed_dim=32, feedforward_dim=64, n_layers=6, history=8)
    )


PRESETS: dict[str, Callable[[], ModelSpec]] = {
    "fcnet": _fcnet,
    "fcnet-legged": _fcnet_legged,
    "bot": _bot,
}


def preset(name: str, overrides: Mapping[str, Any] | None = None) -> ModelSpec:
    """A fresh spec by name, with some of its config's fields replaced.

    Raises ValueError for an unknown name or field.
    """
    if name not in PRESETS:
        raise ValueError(f"no model {name!r}; known are {', '.join(PRESETS)}")
    spec = PRESETS[name]()
    known = [field.name for field in fields(spec.config)]
    for field in overrides or {}:
        if field not in known:
            raise ValueError(f"model {name} has no setting {field!r}; it has {', '.join(known)}")
    return replace(spec, config=replace(spec.config, **(overrides or {})))


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
