"""Which actions the humanoid's stores hold."""

import pytest

from gaitforge.datasets import DatasetError
from gaitforge.datasets.schema import chosen_place
from gaitforge.plugins.mocapact.humanoid.snippet_grid import humanoid_schema


def test_the_actions_are_the_executed_ones_and_the_clean_ones_lie_beside_them() -> None:
    schema = humanoid_schema(has_value=False)
    assert chosen_place(schema, "executed", "h.zarr") is None
    assert chosen_place(schema, "", "h.zarr") is None
    with pytest.raises(DatasetError, match="the clean ones in mean_action"):
        chosen_place(schema, "clean", "h.zarr")
