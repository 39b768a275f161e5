"""A new reward of a store, computed from its stored fields; nothing is simulated."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gaitforge.common.extensions import called, function_key, named_function
from gaitforge.datasets import Field, Schema, Selection
from gaitforge.datasets.catalog.edit_log import added_field, edited
from gaitforge.datasets.edits.operations import REWARD
from gaitforge.flows.progress import Advance
from gaitforge.flows.tasks.interface import PartData, Simulation
from gaitforge.plugins.what_if.overlay import OverlayPlan, overlay_part


@dataclass(frozen=True)
class RelabelPlan(OverlayPlan):
    """A new reward.

    Attributes:
        reward: "module:function", called with the fields of one episode: name -> (T, *shape), or
            (*shape) for a field per episode; it returns the T rewards. It always gets the
            collected reward, so that the same plan twice changes nothing.
    """

    kind = work = "relabel"

    reward: str = ""

    @property
    def definition(self) -> Mapping[str, object]:
        """See `OverlayPlan.definition`."""
        return {"of": self.reward, "file": function_key(self.reward)}

    @property
    def field(self) -> Field:
        """See `OverlayPlan.field`."""
        text = (named_function(self.reward).__doc__ or self.reward).strip().splitlines()[0]
        return Field(REWARD, (), "float32", "1", f"{text} ({self.reward})")

    def episodes(self) -> Selection:
        """See `OverlayPlan.episodes`; with added fields, except rewards."""
        collected = super().episodes()
        edits = [edit for edit in collected.store.edits() if edit.kind == "field"]
        kept_edits = [edit for edit in edits if added_field(edit).field.name != REWARD]
        catalog = edited(collected.catalog, kept_edits)
        return type(collected)(collected.store, catalog, np.arange(catalog.num_rows))

    def simulate(self, threads: int = 1) -> "Relabelling":
        """See `CollectionPlan.simulate`."""
        return Relabelling(self)


class Relabelling(Simulation):
    """Calls a function for one episode after another."""

    def __init__(self, plan: RelabelPlan):
        self._plan, self._function = plan, named_function(plan.reward)
        self._episodes = plan.episodes()
        self._field = plan.field

    def roll_out(self, part: str, schema: Schema, advance: Advance) -> PartData:
        """See `Simulation.roll_out`.

        Raises:
            ValueError: the function failed, or returned no finite reward for each step.
        """
        first, stop = self._episodes.catalog.part_bounds[part]
        selection = self._episodes.with_rows(np.arange(first, stop))
        fields = {field.name: selection.read(field.name) for field in selection.schema.fields}
        per_step = selection.schema.names("step")
        rewards = np.empty(selection.steps, np.float32)
        name = self._plan.reward
        ids = selection.episode_ids()
        for k, (start, length) in enumerate(
            zip(selection.starts.tolist(), selection.lengths.tolist(), strict=True)
        ):
            steps = slice(start, start + length)
            episode = {
                n: values[steps] if n in per_step else values[k] for n, values in fields.items()
            }
            returned = np.asarray(called(self._function, name, episode))
            if returned.shape != (length,) or returned.dtype.kind not in "fiub":
                raise ValueError(
                    f"{name} must return {length} rewards for episode {ids[k]}, not an array of "
                    f"shape {returned.shape} and type {returned.dtype}"
                )
            if not np.isfinite(returned).all():
                raise ValueError(f"{name} returned a reward that is not finite in episode {ids[k]}")
            rewards[steps] = returned
            advance(length, "")
        return overlay_part(selection, self._field, rewards)
