"""The CMU humanoid: collecting expert rollouts, a part a snippet, and training an expert.

As in `flows.stages.collect`, committed parts are skipped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectors.humanoid.clips.reference import clip_digest, read_clip
from collectors.humanoid.clips.snippets import Snippet
from collectors.humanoid.data import SnippetGrid, humanoid_schema, part_arrays, part_catalog
from collectors.humanoid.environment import TrackingEnvironment
from collectors.humanoid.experts.experts import PD, Expert, load_expert
from collectors.humanoid.rollout import record_episode
from datasets import Store, create_store, open_store
from flows.progress import Advance, Reporter
from flows.records.activity import PartActivity
from flows.records.part_records import (
    PartCollected,
    records_folder,
    records_of_commits,
    write_part_record,
)
from flows.records.records import digest, provenance, to_tree, write_record
from flows.stages.humanoid_evaluation import HumanoidSource, Rollouts, evaluate_snippets

if TYPE_CHECKING:
    from collectors.humanoid.experts.training import ResidualTrainingConfig


@dataclass(frozen=True)
class HumanoidPlan:
    """What to collect.

    Attributes:
        grid: the episodes, a part a snippet; reference: file with their clips.
        expert: "pd", or a folder with an expert for every snippet.
    """

    grid: SnippetGrid
    reference: str
    expert: str = PD

    def parts(self) -> dict[str, Snippet]:
        """Part -> its snippet, in the plan's order.

        A name changes with anything that changes the part's content, and with nothing else: a plan
        of more snippets leaves the parts of the others.

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
            named[f"{digest(content)[:6]}-{snippet.name}"] = snippet
        return named

    def load_expert(self, snippet: Snippet) -> Expert:
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


def prepare_humanoid(plan: HumanoidPlan, store_path: Path | str) -> dict[str, Snippet]:
    """Make the store and its record of the plan; returns the parts, see `HumanoidPlan.parts`.

    Raises:
        ValueError: as `HumanoidPlan.parts`, or another schema is there.
    """
    parts = plan.parts()
    schema = humanoid_schema(plan.load_expert(plan.grid.parsed()[0]).policy.has_value)
    create_store(store_path, schema, to_tree(asdict(plan)))
    record = {"plan": asdict(plan), "parts": list(parts), **provenance()}
    write_record(records_folder(store_path) / f"humanoid-{digest(plan)}.json", record)
    return parts


def collect_humanoid(
    plan: HumanoidPlan,
    store_path: Path | str,
    reporter: Reporter,
    parts: Sequence[str] | None = None,
) -> list[PartCollected]:
    """Collect the parts that the store lacks, of all or of the given ones, in this process.

    Interrupted, it loses the part in work and nothing else. Several processes may work on parts of
    one plan.

    Returns:
        The records of the parts that are wanted, in order.
    """
    named = prepare_humanoid(plan, store_path)
    wanted = list(named if parts is None else parts)
    store = open_store(store_path)
    missing = store.missing(wanted)
    total = sum(plan.grid.steps_at_most(named[part]) for part in wanted)
    left = sum(plan.grid.steps_at_most(named[part]) for part in missing)
    with reporter.step("collect", total, "step", total - left) as advance:
        for part in missing:
            collect_humanoid_part(plan, store, store_path, part, named[part], advance)
    return records_of_commits(store, store_path, wanted)


def collect_humanoid_part(
    plan: HumanoidPlan,
    store: Store,
    store_path: Path | str,
    part: str,
    snippet: Snippet,
    advance: Advance,
) -> PartCollected:
    """Roll out one part and commit it; one that was committed meanwhile stays as it is."""
    started = time.time()
    expert = plan.load_expert(snippet).policy
    # The number that tells this part's episodes from those of others in the store.
    unique = int(part[:6], 16) << 32
    env = TrackingEnvironment(Path(plan.reference), [snippet])
    try:
        with PartActivity(
            records_folder(store_path), part, plan.grid.steps_at_most(snippet)
        ) as activity:

            def heard(steps: int) -> None:
                activity.advance(steps)
                advance(steps, snippet.name)

            specs = plan.grid.episode_specs(snippet, unique)
            results = [record_episode(env, expert, spec, heard) for spec in specs]
            activity.writing()
            rolled_out = time.time()
            steps, per_episode = part_arrays(results, store.schema)
            catalog = part_catalog(results, snippet, (env.simulator, env.version), expert)
            made = store.write_part(part, steps, catalog, per_episode)
    finally:
        env.close()
    ended = time.time()
    record = PartCollected(
        part, made.episodes, made.steps, made.bytes, started, ended - rolled_out, ended
    )
    write_part_record(store_path, record)
    return record


def train_humanoid_expert(
    config: ResidualTrainingConfig, reference: Path, snippet: Snippet, out: Path, reporter: Reporter
) -> dict[str, Any]:
    """Train a snippet's expert in `out/<snippet>`, or go on with the training there.

    The weights and their card, with PD and expert evaluated from the snippet's start, are what
    `HumanoidPlan.expert = out` then finds.

    Returns:
        The card.
    """
    # Inside: both bring torch and rsl-rl.
    from collectors.experts.ppo_checkpoint import trained_steps
    from collectors.humanoid.experts.training import train_residual

    folder = out / snippet.name
    shown = trained_steps(folder)
    clip = read_clip(reference, snippet.clip)
    with reporter.step(f"train {snippet.name}", config.steps, "step", done=shown) as advance:

        def report(summary: dict[str, Any]) -> None:
            nonlocal shown
            note = ""
            if summary["normalised_return"] is not None:
                note = f"normalised return {summary['normalised_return']:.3f}"
            advance(summary["steps"] - shown, note)
            shown = summary["steps"]
            with open(folder / "history.jsonl", "a") as file:
                file.write(json.dumps(summary) + "\n")

        weights, card = train_residual(config, clip, snippet, folder, report)
    card |= provenance()
    write_record(weights.with_suffix(".json"), card)
    for name, source in (("pd", PD), ("expert", str(weights))):
        policy = HumanoidSource(name, expert=source)
        (score,) = evaluate_snippets(policy, reference, [snippet], Rollouts(), reporter)
        card[name] = score.as_record()
    write_record(weights.with_suffix(".json"), card)
    return card
