"""Checkpoints: one safetensors file that holds the weights and, in its header, a JSON card.

Weights and card are one file so that they can never disagree; it is replaced atomically.
`checkpoint.json` beside it is a copy of the card for people. Nothing is ever unpickled.
"""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from datasets.files import write_bytes_durably
from learners.normalisation import Normaliser
from learners.policy_network import PolicyNetwork
from learners.registry import ModelSpec, build_network, spec_from_json
from learners.tokens import TokenLayout

FORMAT_VERSION = 1
CHECKPOINT = "checkpoint.safetensors"
CARD = "checkpoint.json"

_POLICY = "policy."
_OPTIMISER = "optimiser."


def git_revision() -> str:
    """The commit this program runs from, or "unknown" outside a checkout."""
    try:
        finished = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return finished.stdout.strip()


def policy_card(policy: PolicyNetwork, spec: ModelSpec) -> dict[str, Any]:
    """The part of a card from which the policy can be built again."""
    return {
        "format_version": FORMAT_VERSION,
        "model": spec.to_json(),
        "tokens": {"kind": policy.layout.kind, "obs_slices": dict(policy.layout.obs_slices)},
        "act_dim": policy.action_normaliser.mean.numel(),
    }


def save_checkpoint(
    run_dir: Path,
    policy: PolicyNetwork,
    optimiser: torch.optim.Optimizer | None,
    card: Mapping[str, Any],
) -> None:
    """Replace the run's checkpoint. `card` is `policy_card`'s and any further JSON values."""
    tensors = {_POLICY + name: value for name, value in policy.state_dict().items()}
    if optimiser is not None:
        for index, state in optimiser.state_dict()["state"].items():
            for name, value in state.items():
                tensors[f"{_OPTIMISER}{index}.{name}"] = value
    text = json.dumps(card, allow_nan=False)
    contiguous = {name: value.detach().contiguous() for name, value in tensors.items()}
    write_bytes_durably(run_dir / CHECKPOINT, to_safetensors(contiguous, {"card": text}))
    write_bytes_durably(run_dir / CARD, (json.dumps(card, indent=2) + "\n").encode())


def read_checkpoint(run_dir: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tensors and the card.

    Raises:
        ValueError: there is none, or it is truncated, damaged, or of another program or version.
    """
    path = run_dir / CHECKPOINT
    if not path.is_file():
        raise ValueError(f"no checkpoint in {run_dir}; give the folder of a training run")
    try:
        with safe_open(path, framework="pt") as stored:
            card = json.loads((stored.metadata() or {}).get("card", "null"))
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} is truncated or damaged ({reason}); train again") from error
    if not isinstance(card, dict) or card.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{path} is not a checkpoint of this program's format version {FORMAT_VERSION}"
        )
    return tensors, card


def policy_from(tensors: Mapping[str, Tensor], card: Mapping[str, Any]) -> PolicyNetwork:
    """Build the policy a card describes and give it its weights; ValueError if they do not fit."""
    spec = spec_from_json(card["model"])
    layout = TokenLayout(card["tokens"]["kind"], card["tokens"]["obs_slices"])
    policy = PolicyNetwork(
        build_network(spec, layout, card["act_dim"]),
        layout,
        Normaliser.identity(layout.obs_dim),
        Normaliser.identity(card["act_dim"]),
    )
    load_weights(policy, tensors)
    return policy.eval()


def load_weights(policy: PolicyNetwork, tensors: Mapping[str, Tensor]) -> None:
    """Copy a checkpoint's weights and normalisers into `policy`; ValueError if they do not fit."""
    weights = {
        name.removeprefix(_POLICY): value
        for name, value in tensors.items()
        if name.startswith(_POLICY)
    }
    expected = policy.state_dict()
    wrong = sorted(
        name
        for name in weights.keys() | expected.keys()
        if name not in weights
        or name not in expected
        or weights[name].shape != expected[name].shape
    )
    if wrong:
        raise ValueError(
            f"the checkpoint is of another model: {len(wrong)} tensors do not fit, the first is "
            f"{wrong[0]}"
        )
    policy.load_state_dict(weights)


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give the optimiser the state that was saved with the weights."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith(_OPTIMISER):
            index, name = key.removeprefix(_OPTIMISER).split(".", 1)
            state.setdefault(int(index), {})[name] = value
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})


def load_policy(
    run_dir: str | Path,
    kind: str | None = None,
    obs_slices: Mapping[str, tuple[int, int]] | None = None,
) -> PolicyNetwork:
    """The trained policy of a run, ready for control.

    Args:
        run_dir: the folder of a training run.
        kind: the kind of network the caller needs ("fcnet", "bot"), if it must be that one.
        obs_slices: the observation layout that the policy will be fed, to be checked.

    Raises:
        ValueError: no usable checkpoint, another kind of network, or another observation layout.
    """
    tensors, card = read_checkpoint(Path(run_dir))
    try:
        policy = policy_from(tensors, card)
    except KeyError as error:
        raise ValueError(f"the card of {run_dir} lacks {error}; train again") from error
    except ValueError as error:
        raise ValueError(f"{run_dir}: {error}") from error
    found = card["model"]["kind"]
    if kind is not None and found != kind:
        raise ValueError(f"{run_dir} holds a model of kind {found}, not {kind}")
    if obs_slices is not None:
        check_layout(policy.layout, obs_slices, str(run_dir))
    return policy


def check_layout(
    layout: TokenLayout, obs_slices: Mapping[str, tuple[int, int]], owner: str
) -> None:
    """ValueError naming the first field whose place in the observation differs."""
    given = {name: (int(start), int(stop)) for name, (start, stop) in obs_slices.items()}
    for name in sorted(layout.obs_slices.keys() | given.keys()):
        trained, offered = layout.obs_slices.get(name), given.get(name)
        if trained != offered:
            raise ValueError(
                f"{owner} was trained on another observation layout: {name} at "
                f"{trained or 'no place'} there, at {offered or 'no place'} here"
            )
