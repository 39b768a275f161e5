"""Base of the plans that add a field to the episodes of a store, part by part.

The new arrays are a store of their own inside the first one (`gaitforge.datasets.edits.fields`),
with the same parts, so that every runner, resume, status and verify work as for a collection.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gaitforge.datasets import Field, Schema, Selection, open_store
from gaitforge.datasets.catalog.catalog import required_columns
from gaitforge.datasets.edits.fields import add_field, check_new_field
from gaitforge.datasets.layout import OVERLAYS
from gaitforge.datasets.storage.contents import overlay_folders
from gaitforge.flows.records.records import digest
from gaitforge.flows.tasks.interface import CollectionPlan, PartData, Workers


@dataclass(frozen=True)
class OverlayPlan(CollectionPlan):
    """A field to add.

    Attributes:
        source: address of the store.
        threads: of a local run.
    """

    parallelism = "threads"
    keeps_version = True

    source: str
    threads: Workers = 0

    @property
    @abstractmethod
    def field(self) -> Field:
        """The field, with its name, shape, unit and description."""

    @property
    @abstractmethod
    def definition(self) -> Mapping[str, object]:
        """Inputs that determine the values; hashed into the folder's name."""

    @property
    def folder(self) -> str:
        """The overlay's folder, named after field and definition."""
        return f"{self.field.name}-{digest(self.definition)[:8]}"

    @property
    def address(self) -> str:
        """Address of the field's arrays."""
        return f"{self.source.rstrip('/')}/{OVERLAYS}/{self.folder}"

    def complete(self) -> None:
        """Add the field to the store, unless it is added or parts are missing."""
        store = open_store(self.source)
        begun = self.folder in overlay_folders(store)
        if begun and not store.overlay(self.folder).missing(store.parts()):
            add_field(store, self.folder, self.definition)

    def episodes(self) -> Selection:
        """The store's episodes as they were collected, from which the field is computed.

        Raises:
            ValueError: no store, or one without episodes.
        """
        episodes = open_store(self.source).as_collected()
        if not len(episodes):
            raise ValueError(f"{self.source} has no episodes")
        return episodes

    def expected_steps(self) -> dict[str, int]:
        """See `CollectionPlan.expected_steps`: the parts that the store holds now."""
        manifests = self.episodes().catalog.manifests
        return {part: manifest.steps for part, manifest in manifests.items()}

    def schema(self) -> Schema:
        """See `CollectionPlan.schema`: the one field; ValueError if its store cannot get it."""
        store = open_store(self.source)
        check_new_field(store, self.field, self.folder)
        of = store.schema
        return Schema((self.field,), of.control_dt_s, of.robot, group_by=of.group_by)


def overlay_part(selection: Selection, field: Field, values: np.ndarray) -> PartData:
    """A part of an overlay: its field, and the episodes to which the values belong, in order."""
    columns = required_columns(selection.schema.group_by)
    table = selection.episodes(*columns)
    return PartData({field.name: values}, {}, {name: table[name].to_pylist() for name in columns})
