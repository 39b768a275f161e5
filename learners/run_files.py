"""Names of a run folder's files, and the trained policies that ship; imports no torch.

A policy that ships is a run's folder in `SHIPPED`: its weights, its plan and settings, and a card.
"""

import json
from pathlib import Path
from typing import Any

KEPT = {"last": "checkpoint.safetensors", "best": "best.safetensors"}

SHIPPED = Path(__file__).parent / "assets"
CARD = "card.json"


def shipped_policies() -> list[str]:
    """Names of the trained policies that ship."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{KEPT['last']}"))


def is_shipped(run: str | Path) -> bool:
    """Whether a name means a policy that ships.

    A file or folder that has the name comes first: nobody's own run is hidden.
    """
    return str(run) in shipped_policies() and not Path(run).exists()


def run_folder(run: str | Path) -> Path:
    """The folder of a run, or that of a policy that ships, by its name."""
    return SHIPPED / run if is_shipped(run) else Path(run)


def shipped_card(name: str) -> dict[str, Any]:
    """What a shipped policy learned from, how well it does, and where it does not."""
    return json.loads((SHIPPED / name / CARD).read_text(encoding="utf-8"))
