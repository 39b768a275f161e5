"""The mean of several experts' weights."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gaitforge.collectors.experts.expert import absolute_robot_of, load_trained


def average_experts(
    names: Sequence[str], shares: Sequence[float]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Weights and card of the mean of experts that come from one training, or from each other.

    The mean of such networks acts as well as any of them, and often better ("model soups",
    Wortsman et al., 2022, https://arxiv.org/abs/2203.05482). Inputs are normalised as the first
    expert's.

    Args:
        shares: weight of each expert, above 0; divided by their sum.

    Raises:
        ValueError: fewer than two experts, as `load_expert`, for other robots or networks, or
            shares that are not one number above 0 for each.
    """
    if len(names) < 2:
        raise ValueError("give at least two experts")
    if len(shares) != len(names) or not all(np.isfinite(shares)) or min(shares) <= 0:
        raise ValueError(f"give a share above 0 for each of {len(names)} experts")
    experts = [load_trained(name) for name in names]
    first = experts[0]
    shapes = {name: value.shape for name, value in first.weights.items()}
    for name, expert in zip(names, experts, strict=True):
        if expert.card["robot"] != first.card["robot"]:
            raise ValueError(
                f"{name} drives {expert.card['robot']}, and {names[0]} {first.card['robot']}"
            )
        if {key: value.shape for key, value in expert.weights.items()} != shapes:
            raise ValueError(f"{name} has another network than {names[0]}")
    parts = np.array(shares, np.float64) / sum(shares)
    mine = [_with_inputs_of(expert.weights, first.weights) for expert in experts]
    mean = {
        key: np.average([arrays[key] for arrays in mine], axis=0, weights=parts).astype(np.float32)
        for key in shapes
    }
    sources = [
        {"share": float(part), "hash": expert.hash, "steps": expert.card.get("steps")}
        for part, expert in zip(parts, experts, strict=True)
    ]
    coverage = {key: first.card[key] for key in ("skills", "terrains") if key in first.card}
    return mean, {"robot": absolute_robot_of(names[0])} | coverage | {"average_of": sources}


def _with_inputs_of(
    weights: dict[str, np.ndarray], reference: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The same network, float64, for inputs normalised like the reference's.

    W (x - m) / s + b = W (r / s) (x - n) / r + b + W (n - m) / s, with the reference's n and r.
    """
    wide = {key: value.astype(np.float64) for key, value in weights.items()}
    mean = wide["mean"].ravel()
    std = wide["std"].ravel()
    other_mean, other_std = (reference[key].astype(np.float64).ravel() for key in ("mean", "std"))
    first = wide["layer0.weight"]
    return wide | {
        "layer0.weight": first * (other_std / std),
        "layer0.bias": wide["layer0.bias"] + first @ ((other_mean - mean) / std),
        "mean": reference["mean"].astype(np.float64),
        "std": reference["std"].astype(np.float64),
    }
