"""Parameter counts: of a model without making it, of all presets, and a model of a wanted count."""

from dataclasses import replace
from typing import Any

import torch

from learners.models.presets import PRESETS
from learners.models.registry import KINDS, ModelSpec, build_network, count_parameters, preset
from learners.models.spaces import SPACES
from learners.policy.tokens import TokenLayout

# The setting that makes a kind wider or narrower.
WIDTH_FIELDS = {
    "fcnet": "hidden_dim",
    "transformer": "hidden_dim",
    "dt": "hidden_dim",
    "retnet": "hidden_dim",
    "history-mlp": "hidden_dim",
    "mlp": "hidden_dim",
}
TOLERANCE = 0.05  # the rivals' sizes are compared "roughly equal" in Tan et al. 2024, C.3
PLAIN_WIDTH_STEP = 4  # numbers in a 128-bit vector register


def parameter_count(spec: ModelSpec, layout: TokenLayout, act_dim: int) -> int:
    """Trainable numbers of the network that `build_network` would make; none of them is made."""
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
    """The spec of `kind` whose parameter count comes closest to `target`, by its width alone.

    Widths are multiples of what the heads need, 2 * n_heads, or of 4 without heads.

    Args:
        tolerance: how far off the count may be, as a fraction of the target.
        fixed: other settings of the kind's config; the rest are its defaults.

    Raises:
        ValueError: an unknown kind or setting, or no width comes close enough.
    """
    if kind not in WIDTH_FIELDS:
        raise ValueError(f"no width to choose for {kind!r}; known are {', '.join(WIDTH_FIELDS)}")
    width_field = WIDTH_FIELDS[kind]
    settings = KINDS[kind].settings()
    unknown = sorted(fixed.keys() - (settings.keys() - {width_field}))
    if unknown:
        raise ValueError(f"a {kind} of a wanted size has no free setting {unknown[0]!r}")
    settings |= fixed
    step = 2 * settings["n_heads"] if "n_heads" in settings else PLAIN_WIDTH_STEP
    narrowest = ModelSpec(kind, KINDS[kind].config(**settings | {width_field: step}))

    def widened(steps: int) -> ModelSpec:
        return replace(narrowest, config=replace(narrowest.config, **{width_field: step * steps}))

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
            f"{width_field} {step * best}, has {count(best):,}"
        )
    return widened(best)


def describe_models() -> list[dict[str, Any]]:
    """Every preset as {model, kind, space, objective, parameters}.

    parameters counts the network for its space. objective is "return" where the model or its space
    takes a return-to-go, else "any".
    """
    rows = []
    for name, entry in PRESETS.items():
        space = SPACES[entry.space]
        rows.append(
            {
                "model": name,
                "kind": entry.kind,
                "space": entry.space,
                "objective": "return" if space.layout.kind == "return" else "any",
                "parameters": parameter_count(preset(name), space.layout, space.act_dim),
            }
        )
    return rows
