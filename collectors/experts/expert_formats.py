"""Kinds of experts that lie in folders, which plug-ins and other packages read, by entry points.

    [project.entry-points."gaitforge.expert_formats"]
    walking = "walkers.entries:EXPERT_FORMAT"

A folder names no code: a file in it has the name that an installed package's entry waits for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaitforge.common.errors import listed
from gaitforge.common.extensions import Registered, own_function

if TYPE_CHECKING:  # they bring NumPy, and help reads the entries
    from gaitforge.collectors.policy import RobotPolicy
    from gaitforge.collectors.robots.robot import RobotCard


Reader = Callable[[Path, dict[str, Any], "RobotCard"], tuple["RobotPolicy", str]]
"""Of a card's path, the card and the robot that it names: the policy and the hash of its files."""


@dataclass(frozen=True)
class ExpertFormat:
    """A kind of expert that lies in a folder.

    Attributes:
        card: name of the JSON file that marks such a folder; its key `robot` is as in the cards of
            our experts.
        reader: "module:name" of its `Reader`; the module loads when such a folder is read.
        writer: the command that writes such folders, for errors.
    """

    card: str
    reader: str
    writer: str

    def __post_init__(self) -> None:
        if Path(self.card).name != self.card or not self.card.endswith(".json"):
            raise ValueError(f"the card '{self.card}' is no name of a JSON file")

    def load(self) -> Reader:
        """The reader; ValueError if it cannot be imported."""
        return own_function(self.reader, "reader")


EXPERT_FORMATS = Registered("expert_format", ExpertFormat, {})
"""Every installed kind of expert in a folder, by its name."""


def format_of(folder: Path) -> ExpertFormat | None:
    """The kind of the expert in a folder, by the file that marks it; None if none reads it."""
    if not folder.is_dir():
        return None
    kinds = EXPERT_FORMATS.usable().values()
    marked = (kind for kind in kinds if (folder / kind.card).is_file())
    return next(marked, None)


def folders_allowed() -> str:
    """What follows the allowed experts in an error: the folders that installed packages read."""
    writers = [f"`{kind.writer}`" for kind in EXPERT_FORMATS.usable().values()]
    return f", or a folder that {' or '.join(writers)} wrote" if writers else ""


def why_unread(folder: Path) -> str:
    """What to add to an error on a folder with cards, of which no installed package reads one."""
    cards = [path.name for path in sorted(folder.glob("*.json"))]
    if not cards:
        return ""
    return (
        f"; no installed package reads the folder's {listed(cards)}: a plug-in with an entry point "
        "gaitforge.expert_formats for it is missing"
    )
