"""Export of a selection as FCNet's memory maps, which `fcnet_schema.py` describes."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gaitforge.common.errors import DatasetError, amount, listed
from gaitforge.datasets.formats.protocol import Advance, Carried, Exporter
from gaitforge.datasets.formats.sources import blocks, check_fields
from gaitforge.datasets.schema import CLEAN, Field, Schema
from gaitforge.datasets.selection import EpisodeSelection
from gaitforge.plugins.gym.fcnet import fcnet_schema as layout

_EXACT = ("float16", "float32")
_MAX_LENGTH = np.iinfo(np.int32).max


class FcnetExporter(Exporter):
    """Writes labels to imitate: clean actions by default, as the layout has no rewards.

    See `protocol.Exporter`.
    """

    actions = CLEAN

    def check(self, selection: EpisodeSelection, destination: Path) -> None:
        """See `protocol.Exporter`."""
        check_fields(selection, "FCNet's layout", ("obs", "action"))
        schema = selection.schema
        address = selection.store.address
        obs = schema.field("obs")
        action = schema.field("action")
        if len(obs.shape) != 1:
            raise DatasetError(f"FCNet's maps need obs of one axis per step, not {obs.shape}")
        for name, size in layout.STATE.items():
            start, stop = obs.slices.get(name, (0, 0))
            if stop - start != size:
                channels = f"the slice {name} of {size} channels in obs"
                slices = listed(obs.slices)
                raise DatasetError(f"FCNet's maps need {channels}; {address} has slices {slices}")
        if action.shape != (layout.ACTION_DIM,):
            raise DatasetError(f"FCNet's maps need {layout.ACTION_DIM} actions, not {action.shape}")
        for field in (obs, action):
            if field.dtype not in _EXACT:
                raise DatasetError(f"FCNet's maps are float32 and would round {field.name}")
        if selection.lengths.max() > _MAX_LENGTH:
            raise DatasetError("FCNet's maps count the steps of an episode in 32 bits")

    def write(self, selection: EpisodeSelection, temporary: Path, advance: Advance) -> Carried:
        """See `protocol.Exporter`."""
        temporary.mkdir()
        obs = selection.schema.field("obs")
        channels = np.concatenate([np.arange(*obs.slices[name]) for name in layout.STATE])
        differing = 0
        steps = selection.steps
        shapes = (("src", steps, layout.STATE_DIM), ("tgt", steps, layout.ACTION_DIM))
        paths = [temporary / layout.map_name(*shape) for shape in shapes]
        with open(paths[0], "wb") as src, open(paths[1], "wb") as tgt:
            for block in blocks(selection):
                values = block.read(["obs", "action"])
                src.write(np.ascontiguousarray(values["obs"][:, channels], "<f4").data)
                tgt.write(np.ascontiguousarray(values["action"], "<f4").data)
                differing += _differing_last_actions(obs, values, block.lengths)
                advance(block.n_steps)
        meta = temporary / layout.map_name("meta", len(selection))
        meta.write_bytes(np.ascontiguousarray(selection.lengths, "<i4").data)
        return _carried(selection.schema, differing)

    def as_read(
        self, schema: Schema, arrays: Mapping[str, np.ndarray], lengths: np.ndarray
    ) -> dict[str, np.ndarray]:
        """See `protocol.Exporter`: channels in the paper's order, last actions rebuilt."""
        slices = schema.field("obs").slices
        action = arrays["action"].astype(np.float32)
        obs = layout.observation(arrays["obs"], slices, action, lengths)
        return {"obs": obs, "action": action}


def _differing_last_actions(
    obs: Field, values: Mapping[str, np.ndarray], lengths: np.ndarray
) -> int:
    """Episodes whose stored last action is not the one that an import rebuilds."""
    if layout.LAST_ACTION not in obs.slices:
        return 0
    last_actions = values["obs"][:, slice(*obs.slices[layout.LAST_ACTION])]
    rebuilt = layout.previous_actions(values["action"], lengths)
    if last_actions.shape != rebuilt.shape:
        return len(lengths)
    differs = (last_actions != rebuilt).any(axis=1)
    return int(np.logical_or.reduceat(differs, np.cumsum(lengths) - lengths).sum())


def _carried(schema: Schema, differing: int) -> Carried:
    extra = [name for name in schema.names() if name not in ("obs", "action")]
    left = [f"{name}: the layout has no place for it" for name in extra]
    left.append("the catalog: the layout has only the episodes' lengths")
    channels = (*layout.STATE, layout.LAST_ACTION)
    if slices := [name for name in schema.field("obs").slices if name not in channels]:
        left.append(f"slices {listed(slices)} of obs: not in FCNet's state")
    if differing:
        problem = (
            "an import rebuilds it from the actions, but the executed ones had noise or limits"
        )
        left.append(f"last_action of {amount(differing, 'episode')}: {problem}")
    return Carried(kept=("obs -> src, by the channels' names", "action -> tgt"), left=tuple(left))
