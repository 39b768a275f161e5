"""Checkpoints: one safetensors file that holds the weights and, in its header, a JSON card.

Weights and card are one file so that they can never disagree; it is replaced atomically. Beside
`checkpoint.safetensors`, from which a run goes on, lies `best.safetensors`: the policy with the
lowest validation loss so far. The .json files beside them are copies of their cards for people.
Nothing is ever unpickled.
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
from datasets.optimiser_state import load_optimiser_tensors, optimiser_tensors
from learners.models.registry import ModelSpec, build_network, spec_from_json
from learners.policy.gaussian import GaussianSpread
from learners.policy.normalisation import Normaliser
from learners.policy.policy_network import PolicyNetwork
from learners.policy.tokens import TokenLayout

FORMAT_VERSION = 2
CHECKPOINT = "checkpoint.safetensors"
CARD = "checkpoint.json"
BEST = "best.safetensors"
KEPT = {"last": CHECKPOINT, "best": BEST}

_POLICY = "policy."
_AVERAGE = "average."
_OPTIMISER = "optimiser"


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
    gaussian = policy.gaussian
    return {
        "format_version": FORMAT_VERSION,
        "model": spec.to_json(),
        "tokens": {
            "kind": policy.layout.kind,
            "obs_slices": dict(policy.layout.obs_slices),
            "keeps_last_action": policy.layout.keeps_last_action,
        },
        "act_dim": policy.action_normaliser.mean.numel(),
        "gaussian": None if gaussian is None else {"fixed_std": gaussian.fixed_std},
    }


def save_checkpoint(
    run_dir: Path,
    policy: PolicyNetwork,
    optimiser: torch.optim.Optimizer | None,
    card: Mapping[str, Any],
    averages: Mapping[str, Tensor] | None = None,
    name: str = CHECKPOINT,
) -> None:
    """Replace one of the run's checkpoints.

    Args:
        optimiser: None where no run will go on from the file.
        card: `policy_card`'s and any further JSON values.
        averages: parameter -> its moving average, if the run keeps one.
        name: of the file; the card's copy has the same with .json.
    """
    tensors = {_POLICY + key: value for key, value in policy.state_dict().items()}
    tensors |= {_AVERAGE + key: value for key, value in (averages or {}).items()}
    if optimiser is not None:
        tensors |= optimiser_tensors(optimiser, _OPTIMISER)
    text = json.dumps(card, allow_nan=False)
    contiguous = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    path = run_dir / name
    write_bytes_durably(path, to_safetensors(contiguous, {"card": text}))
    write_bytes_durably(path.with_suffix(".json"), (json.dumps(card, indent=2) + "\n").encode())


def checkpoint_path(run_dir: Path, which: str = "last") -> Path:
    """Where a run's "last" or "best" checkpoint is; ValueError where there is none."""
    if which not in KEPT:
        raise ValueError(f"no checkpoint {which!r}; a run keeps {', '.join(KEPT)}")
    path = run_dir / KEPT[which]
    if not path.is_file():
        kind = "no checkpoint" if which == "last" else f"no {which} checkpoint"
        raise ValueError(f"{kind} in {run_dir}; give the folder of a training run")
    return path


def read_checkpoint(run_dir: Path, which: str = "last") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tensors and the card of the "last" or the "best" checkpoint.

    Raises:
        ValueError: there is none, or it is truncated, damaged, or of another program or version.
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
            f"{path} is not a checkpoint of this program's format version {FORMAT_VERSION}"
        )
    return tensors, card


def policy_from(tensors: Mapping[str, Tensor], card: Mapping[str, Any]) -> PolicyNetwork:
    """Build the policy a card describes and give it its weights; ValueError if they do not fit.

    Where the run keeps a moving average of the weights, the policy has that.
    """
    spec = spec_from_json(card["model"])
    tokens = card["tokens"]
    layout = TokenLayout(
        tokens["kind"],
        tokens["obs_slices"],
        tokens.get("keeps_last_action", False),  # older cards know only observed ones
    )
    spread = card["gaussian"]
    policy = PolicyNetwork(
        build_network(spec, layout, card["act_dim"]),
        layout,
        Normaliser.identity(layout.obs_dim),
        Normaliser.identity(card["act_dim"]),
        gaussian=None if spread is None else GaussianSpread(card["act_dim"], spread["fixed_std"]),
    )
    averaged = {_POLICY + name: value for name, value in averages_in(tensors).items()}
    load_weights(policy, {**tensors, **averaged})
    return policy.eval()


def load_weights(policy: PolicyNetwork, tensors: Mapping[str, Tensor]) -> None:
    """Copy a checkpoint's weights and normalisers into `policy`; ValueError if they do not fit."""
    weights = _with_prefix(tensors, _POLICY)
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


def averages_in(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameter -> its moving average; empty where the run keeps none."""
    return _with_prefix(tensors, _AVERAGE)


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give the optimiser the state that was saved with the weights."""
    load_optimiser_tensors(optimiser, tensors, _OPTIMISER)


def load_policy(
    run_dir: str | Path,
    kind: str | None = None,
    obs_slices: Mapping[str, tuple[int, int]] | None = None,
    which: str = "last",
) -> PolicyNetwork:
    """The trained policy of a run, ready for control.

    Args:
        run_dir: the folder of a training run.
        kind: the kind of network the caller needs ("fcnet", "bot"), if it must be that one.
        obs_slices: the observation layout that the policy will be fed, to be checked; without the
            last action where the policy keeps it.
        which: "last", or "best" for the one with the lowest validation loss.

    Raises:
        ValueError: no usable checkpoint, another kind of network, or another observation layout.
    """
    tensors, card = read_checkpoint(Path(run_dir), which)
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
    for name in sorted(layout.stored_slices.keys() | given.keys()):
        trained, offered = layout.stored_slices.get(name), given.get(name)
        if trained != offered:
            raise ValueError(
                f"{owner} was trained on another observation layout: {name} at "
                f"{trained or 'no place'} there, at {offered or 'no place'} here"
            )


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
