"""Checkpoints: one safetensors file with all tensors and, in its header, a JSON card.

A run resumes from `checkpoint.safetensors`; `best.safetensors` holds the policy with the lowest
validation loss so far. Files are replaced atomically. The .json files beside them are copies of the
cards for people.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from gaitforge.common.files import tensors_below, write_bytes_durably
from gaitforge.common.networks import optimiser_tensors
from gaitforge.common.trust import UntrustedCodeError, naming
from gaitforge.learners.models.base import BoundedNetwork
from gaitforge.learners.models.registry import ModelSpec, build_network, spec_from_json
from gaitforge.learners.policy_network import GaussianSpread, LabelScale, Normaliser, PolicyNetwork
from gaitforge.learners.run_files import KEPT, run_folder
from gaitforge.learners.tokens import Condition, Slices, TokenLayout

FORMAT_VERSION = 5
CHECKPOINT = KEPT["last"]
BEST = KEPT["best"]

_POLICY = "policy"
_AVERAGE = "average"
_VALUES = "values"
OPTIMISER = "optimiser"


class Checkpoint(NamedTuple):
    """All tensors of a checkpoint, and its card in JSON values."""

    tensors: dict[str, Tensor]
    card: Mapping[str, Any]


def policy_card(policy: PolicyNetwork, spec: ModelSpec) -> dict[str, Any]:
    """The part of a card that `policy_from` reads."""
    gaussian = policy.gaussian
    bound = policy.obs_normaliser.bound
    return {
        "format_version": FORMAT_VERSION,
        "model": spec.to_json(),
        "tokens": asdict(policy.layout),
        "act_dim": policy.act_dim,
        "gaussian": None if gaussian is None else {"fixed_std": gaussian.fixed_std},
        "bounded": isinstance(policy.network, BoundedNetwork),
        "return_zero": float(policy.return_zero),
        "condition": asdict(policy.condition),
        "action_filter": policy.action_filter,
        "input_bounds": None if bound is None else bound.tolist(),
        "label_scale": policy.label_scale and policy.label_scale.to_json(),
    }


def save_checkpoint(
    run_dir: Path,
    policy: PolicyNetwork,
    optimiser: torch.optim.Optimizer | None,
    card: Mapping[str, Any],
    averages: Mapping[str, Tensor] | None = None,
    values: nn.Module | None = None,
    name: str = CHECKPOINT,
) -> None:
    """Write or replace the checkpoint `name`.

    Args:
        optimiser: None if no run will resume from the file.
        card: `policy_card`'s and any further JSON values.
        averages: parameter name -> its moving average, if the run keeps one.
        values: critics and other modules beside the policy that a resumed run needs.
    """
    tensors = {f"{_POLICY}.{key}": value for key, value in policy.state_dict().items()}
    tensors |= {f"{_AVERAGE}.{key}": value for key, value in (averages or {}).items()}
    if values is not None:
        tensors |= {f"{_VALUES}.{key}": value for key, value in values.state_dict().items()}
    if optimiser is not None:
        tensors |= optimiser_tensors(optimiser, OPTIMISER)
    text = json.dumps(card, allow_nan=False)
    path = run_dir / name
    write_bytes_durably(path, to_safetensors(_apart(tensors), {"card": text}))
    write_bytes_durably(path.with_suffix(".json"), (json.dumps(card, indent=2) + "\n").encode())


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, each in memory of its own: a network may use a weight twice."""
    apart: dict[str, Tensor] = {}
    places = set[int]()
    for key, value in tensors.items():
        kept = value.detach().cpu().contiguous()
        place = kept.untyped_storage().data_ptr()
        apart[key] = kept.clone() if place in places else kept
        places.add(place)
    return apart


def checkpoint_path(run_dir: Path, which: str = "last") -> Path:
    """The path of a run's "last" or "best" checkpoint, or "step-N"; ValueError if there is none."""
    if which not in KEPT and not re.fullmatch(r"step-\d+", which):
        raise ValueError(f"no checkpoint {which!r}; allowed: {', '.join(KEPT)}, step-N")
    path = run_dir / KEPT.get(which, f"{which}.safetensors")
    if not path.is_file():
        kind = "no checkpoint" if which == "last" else f"no {which} checkpoint"
        raise ValueError(f"{kind} in {run_dir}; give the folder of a training run")
    return path


def read_checkpoint(run_dir: Path, which: str = "last") -> Checkpoint:
    """All tensors and the card of a checkpoint, see `checkpoint_path`.

    Raises ValueError if there is none, it is damaged, or it has another format version.
    """
    path = checkpoint_path(run_dir, which)
    try:
        with safe_open(path, framework="pt") as stored:
            card = json.loads((stored.metadata() or {}).get("card", "null"))
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} is truncated or damaged ({reason}); train again") from error
    if not isinstance(card, dict) or card.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{path} is not a checkpoint of this program (format version {FORMAT_VERSION})"
        )
    return Checkpoint(tensors, card)


def policy_from(tensors: Mapping[str, Tensor], card: Mapping[str, Any]) -> PolicyNetwork:
    """The policy of a checkpoint, in eval mode; ValueError if weights and card do not fit.

    If the run keeps a moving average of the weights, the policy gets the average.
    """
    try:
        layout = TokenLayout(**card["tokens"])
        act_dim = card["act_dim"]
        gaussian = card["gaussian"]
        network = build_network(spec_from_json(card["model"]), layout, act_dim)
        policy = PolicyNetwork(
            BoundedNetwork(network) if card["bounded"] else network,
            layout,
            Normaliser.identity(layout.obs_dim),
            Normaliser.identity(act_dim),
            gaussian=None if gaussian is None else GaussianSpread(act_dim, **gaussian),
            return_zero=card["return_zero"],
            condition=Condition(**card["condition"]),
        ).filtered(card.get("action_filter", 1.0))
        policy.obs_normaliser.bounded(card.get("input_bounds"))
        if (scale := card.get("label_scale")) is not None:
            policy.label_scale = LabelScale.from_json(scale)
    except (KeyError, TypeError) as error:
        raise ValueError(f"the checkpoint's card cannot be read: {error!r}; train again") from error
    load_weights(policy, tensors, averaged=True)
    return policy.eval()


def load_weights(
    policy: PolicyNetwork, tensors: Mapping[str, Tensor], averaged: bool = False
) -> None:
    """Load a checkpoint's weights, or their averages if the run keeps any and `averaged`.

    Raises ValueError if they do not fit the policy.
    """
    weights = tensors_below(_POLICY, tensors)
    if averaged:
        weights |= tensors_below(_AVERAGE, tensors)
    expected = policy.state_dict()
    shared = weights.keys() & expected.keys()
    wrong = sorted(
        weights.keys() ^ expected.keys()
        | {name for name in shared if weights[name].shape != expected[name].shape}
    )
    if wrong:
        raise ValueError(
            f"the checkpoint is of another model: {len(wrong)} tensors do not fit, the first is "
            f"{wrong[0]}"
        )
    policy.load_state_dict(weights)


def load_values(values: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load a checkpoint's modules beside the policy; ValueError if they do not fit."""
    try:
        values.load_state_dict(tensors_below(_VALUES, tensors))
    except RuntimeError:
        raise ValueError("the checkpoint's critics are of another objective or size") from None


def load_policy(
    run_dir: str | Path, obs_slices: Slices | None = None, which: str = "last"
) -> PolicyNetwork:
    """The trained policy of a run folder, or one that ships, by its name.

    Args:
        obs_slices: the stored observation's fields that the policy will get, checked if given.
        which: "last", "best" for the lowest validation loss, or "step-N", see
            `TrainConfig.keep_every`.

    Raises ValueError if there is no usable checkpoint, or the observation has another layout.
    """
    tensors, card = read_checkpoint(run_folder(run_dir), which)
    try:
        with naming(run_dir):
            policy = policy_from(tensors, card)
    except UntrustedCodeError:
        raise
    except ValueError as error:
        raise ValueError(f"{run_dir}: {error}") from error
    if obs_slices is not None:
        check_layout(policy.layout, obs_slices, str(run_dir))
    return policy


def check_layout(layout: TokenLayout, obs_slices: Slices, owner: str) -> None:
    """Raise ValueError naming the first field whose place in the observation differs."""
    slices = {name: (int(start), int(stop)) for name, (start, stop) in obs_slices.items()}
    for name in sorted(layout.stored_slices.keys() | slices.keys()):
        trained = layout.stored_slices.get(name)
        offered = slices.get(name)
        if trained != offered:
            raise ValueError(
                f"{owner} was trained on another observation layout: {name} at "
                f"{trained or 'no place'} there, at {offered or 'no place'} here"
            )
