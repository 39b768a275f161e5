"""Parameter counts without building a network, and the width that gives a wanted count."""

from dataclasses import replace
from typing import Any

import torch

from learners.models.registry import (
    KINDS,
    ModelSpec,
    build_network,
    config_class,
    count_parameters,
    default_settings,
)
from learners.policy.tokens import TokenLayout

WIDTH = "hidden_dim"  # the setting that makes a network wider
TOLERANCE = 0.05  # baselines have "roughly" FCNet's size in Tan et al. 2024, C.3
PLAIN_WIDTH_STEP = 4  # numbers in a 128-bit vector register


def parameter_count(spec: ModelSpec, layout: TokenLayout, act_dim: int) -> int:
    """Trainable parameters of the network that `build_network` would make."""
    with torch.device("meta"):
        return count_parameters(build_network(spec, layout, act_dim))


def match_parameters(
    kind: str,
    target: int,
    layout: TokenLayout,
    act_dim: int,
    tolerance: float = TOLERANCE,
    **fixed: Any,
) -> ModelSpec:
    """The spec whose parameter count is closest to `target`, by its width alone.

    Widths are multiples of 2 * n_heads, or of 4 without heads. `fixed` are other settings of the
    config. Raises ValueError for an unknown kind or setting, or if no width comes within the
    relative `tolerance`.
    """
    settings = default_settings(kind) if kind in KINDS else {}
    if WIDTH not in settings:
        raise ValueError(f"no width to choose for {kind!r}: it has no setting {WIDTH}")
    unknown = sorted(fixed.keys() - (settings.keys() - {WIDTH}))
    if unknown:
        raise ValueError(f"a {kind} of a wanted size has no free setting {unknown[0]!r}")
    settings |= fixed
    step = 2 * settings["n_heads"] if "n_heads" in settings else PLAIN_WIDTH_STEP
    narrowest = ModelSpec(kind, config_class(kind)(**settings | {WIDTH: step}))

    def widened(steps: int) -> ModelSpec:
        return replace(narrowest, config=replace(narrowest.config, **{WIDTH: step * steps}))

    def count(steps: int) -> int:
        return parameter_count(widened(steps), layout, act_dim)

    upper = 1
    while count(upper) < target:
        upper *= 2
    lower = upper // 2
    while upper - lower > 1:
        middle = (lower + upper) // 2
        lower, upper = (middle, upper) if count(middle) < target else (lower, middle)
    best = min((max(lower, 1), upper), key=lambda steps: abs(count(steps) - target))
    if abs(count(best) - target) > tolerance * target:
        raise ValueError(
            f"no {kind} has {target:,} parameters within {tolerance:.0%}: the closest, "
            f"{WIDTH} {step * best}, has {count(best):,}"
        )
    return widened(best)
