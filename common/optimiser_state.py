"""A torch optimiser's state as flat named tensors, for checkpoints; needs no torch itself."""

from collections.abc import Mapping
from typing import Any, Protocol


class _Optimiser(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


def optimiser_tensors(optimiser: _Optimiser, prefix: str) -> dict[str, Any]:
    """{"PREFIX.INDEX.KEY": tensor}, such as "actor-adam.0.exp_avg"."""
    return {
        f"{prefix}.{index}.{key}": value
        for index, state in optimiser.state_dict()["state"].items()
        for key, value in state.items()
    }


def load_optimiser_tensors(optimiser: _Optimiser, tensors: Mapping[str, Any], prefix: str) -> None:
    """Restore what `optimiser_tensors` gave; learning rates and the like stay the optimiser's."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in tensors_below(prefix, tensors).items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = value
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})


def tensors_below(prefix: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors named "PREFIX.REST", as REST -> tensor."""
    start = f"{prefix}."
    return {key[len(start) :]: value for key, value in tensors.items() if key.startswith(start)}
