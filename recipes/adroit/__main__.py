"""Train a policy of door, hammer or relocate: `python -m recipes.adroit AdroitHandDoor-v1`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from gaitforge.flows.settings import override
from gaitforge.pipeline.cli.parsing.options import add_options, option, setting
from gaitforge.pipeline.cli.parsing.parser import WRONG_INPUT, Parser
from gaitforge.pipeline.process_setup import prepare_process
from gaitforge.pipeline.terminal import TerminalReporter
from gaitforge.plugins.gym.expert_training import run_gym_training
from recipes.adroit.config import recommended
from recipes.adroit.demonstrations import demonstrate, planned_episodes
from recipes.adroit.on_policy import OnPolicy


def build_parser() -> Parser:
    """The parser of the command line."""
    parser = Parser(prog="python -m recipes.adroit", description=__doc__)
    add_options(
        parser,
        option("env", "AdroitHandDoor-v1, AdroitHandHammer-v1 or AdroitHandRelocate-v1"),
        option("--out", "output folder", Path, required=True),
        setting("threads=4"),
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Train, or resume the training in the folder; returns the exit code."""
    prepare_process()
    parser = build_parser()
    reporter = TerminalReporter()
    arguments = parser.parse_args(argv)
    try:
        config = override(recommended(arguments.env), arguments.settings)
        episodes = planned_episodes(config)
        with reporter.step(f"plan {config.env}", episodes, "episode") as advance:
            demonstrate(config, arguments.out, advance)
        recipe = run_gym_training(config, arguments.out, reporter, OnPolicy)
    except (ValueError, OSError) as error:
        print(f"{parser.prog}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return WRONG_INPUT
    print(recipe["returns"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
