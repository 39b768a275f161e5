"""What this plug-in brings, by the names of its entry points; loads none of its work."""

from gaitforge.collectors.experts.expert_formats import ExpertFormat
from gaitforge.pipeline.cli.parsing.entries import CommandEntry

_HERE = "gaitforge.plugins.robots"

EXPERT_FORMAT = ExpertFormat(
    card="imported-expert.json",
    reader=f"{_HERE}.imported_experts.importing:load_imported",
    writer="gaitforge expert import",
)
ROBOT_INIT = CommandEntry(
    "write a robot's folder, card and MJCF, from an MJCF or URDF of any making",
    f"{_HERE}.commands:robot_init",
)
ROBOT_VARY = CommandEntry(
    "write bodies drawn around a robot: other sizes, masses, links and gains",
    f"{_HERE}.commands:robot_vary",
)
EXPERT_IMPORT = CommandEntry(
    "import a policy of mjlab, Isaac Lab or legged_gym as an expert",
    f"{_HERE}.commands:expert_import",
)
EXPERT_TRUST = CommandEntry(
    "let the TorchScript program of an expert run, for which you know its maker",
    f"{_HERE}.commands:expert_trust",
)
EXPERT_TEMPLATE = CommandEntry(
    "print the layout of a project's usual policy, to fill in",
    f"{_HERE}.commands:expert_template",
)
EXPERT_CHECK = CommandEntry(
    "check an imported expert: known answers, a stand, a walk, its terms; exit 1 on a fault",
    f"{_HERE}.commands:expert_check",
)
