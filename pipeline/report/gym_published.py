"""The scores that were published for D4RL's sets, to stand beside ours.

Tan et al. 2024 (Fourier Controller Networks), Table 2: mean and spread over three seeds of D4RL's
normalised score; the columns FCNet and DT.
"""

SOURCE = "Tan et al. 2024, Table 2"

PUBLISHED: dict[tuple[str, str], dict[str, tuple[float, float]]] = {
    ("halfcheetah", "medium-expert"): {"fcnet": (91.2, 0.3), "dt": (86.8, 1.3)},
    ("walker2d", "medium-expert"): {"fcnet": (108.8, 0.1), "dt": (108.1, 0.2)},
    ("hopper", "medium-expert"): {"fcnet": (110.5, 0.5), "dt": (107.6, 1.8)},
    ("halfcheetah", "medium"): {"fcnet": (42.9, 0.4), "dt": (42.6, 0.1)},
    ("walker2d", "medium"): {"fcnet": (75.2, 0.5), "dt": (74.0, 1.4)},
    ("hopper", "medium"): {"fcnet": (57.8, 6.0), "dt": (67.6, 1.0)},
    ("halfcheetah", "medium-replay"): {"fcnet": (39.8, 0.8), "dt": (36.6, 0.8)},
    ("walker2d", "medium-replay"): {"fcnet": (63.5, 7.5), "dt": (66.6, 3.0)},
    ("hopper", "medium-replay"): {"fcnet": (85.8, 1.7), "dt": (82.7, 7.0)},
}
"""(task, set) -> kind of model -> (mean, spread)."""


def published(task: str, set_name: str, kind: str) -> dict[str, float | None]:
    """{"mean", "std"} of one kind of model on one set; both None where nothing was published."""
    mean, std = PUBLISHED.get((task, set_name), {}).get(kind, (None, None))
    return {"mean": mean, "std": std}
