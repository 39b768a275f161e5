"""The command and pages of this plug-in, by the names of their entry points; loads no work."""

from gaitforge.pipeline.cli.parsing.entries import CommandEntry
from gaitforge.pipeline.report.added_pages import CardPage, EpisodePages

_HERE = "gaitforge.plugins.player"

COMMAND = CommandEntry(
    "write a page that plays episodes in 3-D, with their curves",
    f"{_HERE}.commands:view_command",
    group="look at data",
    after="info",
)
EXPLORER = CardPage("explorer.html", "Explorer", f"{_HERE}.explorer:explorer_of")
EPISODES = EpisodePages(
    stored=f"{_HERE}.run_pages:write_stored_page",
    evaluated=f"{_HERE}.run_pages:write_evaluation_pages",
    command="gaitforge view",
)
