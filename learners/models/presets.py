"""Sizes of models by name, each for one space.

The paper's settings carry the name of their data; what the number of parameters has to be, and
where it is published, is in `tests/learners/test_sizes.py`. The rivals have within 5 % as many
parameters as FCNet of the same suffix; `sizes.match_parameters` found their widths.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """A kind of `registry.KINDS`, values of its config (the rest as by default), and a space."""

    kind: str
    values: Mapping[str, Any]
    space: str


SMALL_WIDTH = {"hidden_dim": 72}
# Sferrazza et al. 2024, Figures 12a and 12b; an embedding of 64 for each of the five heads, as in
# the published code. The MLP there keeps 64 a node.
BODY_ENCODER = {"embed_dim": 320, "n_heads": 5, "n_layers": 16, "feedforward_dim": 1024}
BODY_MLP = {"embed_dim": 64, "feedforward_dim": 2500}
BODIES = {"mocapact": "cmu-humanoid"} | {
    f"adroit-{task}": f"adroit-{task}" for task in ("door", "hammer", "relocate")
}


def _body_presets(space: str, body: str) -> dict[str, Preset]:
    """The Body Transformer's three maskings and its two rivals, for one body."""
    maskings = {"bot": "hard", "bot-mix": "mix", "bot-soft": "soft", "transformer": "none"}
    presets = {
        f"{name}-{space}": Preset("bot", BODY_ENCODER | {"body": body, "masking": masking}, space)
        for name, masking in maskings.items()
    }
    return presets | {f"mlp-{space}": Preset("body-mlp", BODY_MLP | {"body": body}, space)}


PRESETS: dict[str, Preset] = {
    "fcnet": Preset("fcnet", {"hidden_dim": 128, "decoder_dim": 64}, "legged"),
    "fcnet-legged": Preset("fcnet", {}, "legged"),
    "bot": Preset(
        "bot", {"embed_dim": 32, "feedforward_dim": 64, "n_layers": 6, "history": 8}, "legged"
    ),
    "transformer": Preset("transformer", SMALL_WIDTH, "legged"),
    "transformer-legged": Preset("transformer", {"hidden_dim": 128}, "legged"),
    "dt": Preset("dt", SMALL_WIDTH, "legged-return"),
    "dt-legged": Preset("dt", {"hidden_dim": 128}, "legged-return"),
    "retnet": Preset("retnet", SMALL_WIDTH, "legged"),
    "retnet-legged": Preset("retnet", {"hidden_dim": 128}, "legged"),
    "history-mlp": Preset("history-mlp", {"hidden_dim": 56}, "legged"),
    "history-mlp-legged": Preset("history-mlp", {"hidden_dim": 164}, "legged"),
    "mlp": Preset("mlp", {"hidden_dim": 336}, "legged"),
    "mlp-legged": Preset("mlp", {"hidden_dim": 608}, "legged"),
    **{
        f"fcnet-d4rl-{task}": Preset("fcnet", {"hidden_dim": 512}, f"d4rl-{task}")
        for task in ("hopper", "halfcheetah", "walker2d")
    },
    **{
        name: entry
        for space, body in BODIES.items()
        for name, entry in _body_presets(space, body).items()
    },
}
