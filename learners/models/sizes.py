"""Parameter counts without allocating a network, and the width for a given count."""

from dataclasses import replace
from typing import Any

import torch

from gaitforge.learners.models import registry
from gaitforge.learners.policy.tokens import TokenLayout

WIDTH = "hidden_dim"  # the setting that is searched
TOLERANCE = 0.05  # Tan et al. 2024, C.3: baselines have "roughly" FCNet's size
PLAIN_WIDTH_STEP = 4  # float32 values in a 128-bit vector register


def parameter_count(spec: registry.ModelSpec, layout: TokenLayout, act_dim: int) -> int:
    """Trainable parameters of the network of `spec`, counted on the meta device."""
    with torch.device("meta"):
        return registry.count_parameters(registry.build_network(spec, layout, act_dim))


def match_parameters(
    kind: str,
    target: int,
    layout: TokenLayout,
    act_dim: int,
    tolerance: float = TOLERANCE,
    **fixed: Any,
) -> registry.ModelSpec:
    """The spec with the width whose parameter count is closest to `target`.

    Widths are multiples of 2 * n_heads, or of 4 without heads. `fixed` are other settings of the
    config. Raises ValueError for an unknown kind or setting, or if no width is within the relative
    `tolerance`.
    """
    settings = registry.default_settings(kind) if kind in registry.KINDS else {}
    if WIDTH not in settings:
        raise ValueError(f"no kind {kind!r} with a setting {WIDTH}")
    allowed = [name for name in settings if name != WIDTH]
    if unknown := sorted(fixed.keys() - set(allowed)):
        raise ValueError(
            f"{kind}: {unknown[0]!r} cannot be fixed here; allowed: {', '.join(allowed)}"
        )
    settings |= fixed
    step = 2 * settings["n_heads"] if "n_heads" in settings else PLAIN_WIDTH_STEP
    narrowest = registry.ModelSpec(kind, registry.config_class(kind)(**settings | {WIDTH: step}))

    def widened(steps: int) -> registry.ModelSpec:
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
            f"no {kind} has {target:,} parameters within {tolerance:.0%}: the closest has "
            f"{count(best):,} ({WIDTH} {step * best})"
        )
    return widened(best)
