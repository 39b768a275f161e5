"""The CMU humanoid: expert rollouts on snippets of motion capture, one part per snippet."""

from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from gaitforge.datasets import Schema
from gaitforge.datasets.schema import joined_arrays
from gaitforge.flows.progress import Advance
from gaitforge.flows.records.records import digest
from gaitforge.flows.tasks.interface import CollectionPlan, PartData, Simulation, Workers
from gaitforge.plugins.mocapact.humanoid.clips.reference import clip_digest
from gaitforge.plugins.mocapact.humanoid.clips.snippets import Snippet
from gaitforge.plugins.mocapact.humanoid.environment import TrackingEnvironment, installed_version
from gaitforge.plugins.mocapact.humanoid.experts.experts import PD, ClipExpert, load_expert
from gaitforge.plugins.mocapact.humanoid.rollout import run_episode
from gaitforge.plugins.mocapact.humanoid.snippet_grid import (
    MOST_EPISODES,
    SnippetGrid,
    humanoid_schema,
    part_catalog,
)

TAG_DIGITS = 6
"""Hexadecimal digits of a part's digest in its name, and in its episodes' names."""

FURTHER_DIGITS = 5
"""Digits of it in the numbers of its episodes: 20 of 32 bits, which leaves `MOST_EPISODES`."""


@dataclass(frozen=True)
class HumanoidPart:
    """A part: its snippet, and what tells its episodes from those of others in the store."""

    snippet: Snippet
    unique: int


@dataclass(frozen=True)
class HumanoidPlan(CollectionPlan):
    """What to collect with the humanoid.

    Attributes:
        grid: the episodes; reference: file with their clips.
        expert: "pd", or a folder with an expert for every snippet.
        processes: of a local run.
    """

    kind = "humanoid"
    parallelism = "processes"
    evaluation = "gaitforge.plugins.mocapact.evaluation:HumanoidEvaluation"

    grid: SnippetGrid
    reference: str
    expert: str = PD
    processes: Workers = 0

    def parts(self) -> dict[str, HumanoidPart]:
        """The parts by name, in the plan's order; more snippets leave the others as they are.

        Raises:
            ValueError: no such clip, or no expert for a snippet.
        """
        named = {}
        settings = asdict(replace(self.grid, snippets=(self.grid.snippets[0],)))
        for snippet in self.grid.parsed():
            content = {
                **settings,
                "snippets": [snippet.name],
                "clip": clip_digest(Path(self.reference), snippet.clip),
                "expert": self.load_expert(snippet).policy.hash,
            }
            digits = digest(content)
            part = HumanoidPart(snippet, _first_id(digits))
            named[f"{digits[:TAG_DIGITS]}-{snippet.name}"] = part
        return named

    def episode_ids(self) -> dict[str, range]:
        """See `CollectionPlan.episode_ids`."""
        count = self.grid.episodes
        return {
            name: range(part.unique, part.unique + count) for name, part in self.parts().items()
        }

    def expected_steps(self) -> dict[str, int]:
        """See `CollectionPlan.expected_steps`."""
        return {name: self.grid.steps_at_most(p.snippet) for name, p in self.parts().items()}

    def only(self, part: str) -> "HumanoidPlan":
        """See `CollectionPlan.only`: the part's snippet."""
        snippet = part.partition("-")[2]
        if snippet not in self.grid.snippets:
            return self
        return replace(self, grid=replace(self.grid, snippets=(snippet,)))

    def simulator(self) -> tuple[str, str] | None:
        """See `CollectionPlan.simulator`."""
        with suppress(PackageNotFoundError):  # the environment says so
            return TrackingEnvironment.simulator, installed_version()
        return None

    def schema(self) -> Schema:
        """See `CollectionPlan.schema`."""
        return humanoid_schema(self.load_expert(self.grid.parsed()[0]).policy.has_value)

    def simulate(self, threads: int = 1) -> "HumanoidSimulation":
        """See `CollectionPlan.simulate`."""
        return HumanoidSimulation(self)

    def load_expert(self, snippet: Snippet) -> ClipExpert:
        """The expert of a snippet.

        Raises:
            ValueError: there is none, or it was trained on other frames of that name.
        """
        expert = load_expert(self.expert, snippet)
        clip = clip_digest(Path(self.reference), snippet.clip)
        if expert.card.get("clip", clip) != clip:
            raise ValueError(
                f"the expert of snippet {snippet.name} at {self.expert} was trained on another "
                f"clip {snippet.clip} than that of {self.reference}"
            )
        return expert


def _first_id(digits: str) -> int:
    """The id of a part's first episode, from a digest of the part's content.

    44 bits of it: of 24, which the name has, two of MoCapAct's 2,589 snippets would share some
    with a probability of 18 %.
    """
    further = int(digits[TAG_DIGITS : TAG_DIGITS + FURTHER_DIGITS], 16)
    return int(digits[:TAG_DIGITS], 16) << 32 | further * MOST_EPISODES


class HumanoidSimulation(Simulation):
    """One humanoid; its environment is compiled for each snippet."""

    def __init__(self, plan: HumanoidPlan):
        self._plan = plan

    def roll_out(self, part: str, schema: Schema, advance: Advance) -> PartData:
        """See `Simulation.roll_out`."""
        plan = self._plan
        planned = plan.only(part).parts()[part]
        snippet = planned.snippet
        expert = plan.load_expert(planned.snippet).policy
        with closing(TrackingEnvironment(Path(plan.reference), [snippet])) as env:
            specs = plan.grid.episode_specs(snippet, planned.unique)
            results = [
                run_episode(env, expert, spec, lambda n: advance(n, snippet.name), recorded=expert)
                for spec in specs
            ]
            catalog = part_catalog(results, snippet, (env.simulator, env.version), expert)
        records = [result.record for result in results]
        return PartData(*joined_arrays(records, schema), catalog)
