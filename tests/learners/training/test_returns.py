"""The returns that a conditioned policy sees as 0 and 1."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gaitforge.datasets import Field, Schema, Selection, Store, open_store
from gaitforge.datasets.edits.assemble import apply_edits
from gaitforge.datasets.edits.operations import add_field
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.learners.training.building import build_policy
from gaitforge.learners.training.config import TrainConfig
from tests.datasets.edits.test_fields import make_field
from tests.datasets.making import part_input
from tests.learners.making import SHORT

LENGTHS = (4, 6, 5)
REFERENCES = {"random": -60.0, "expert": -10.0}
CONFIG = replace(SHORT, model="mlp", model_overrides={"hidden_dim": 8}, objective="return")


@pytest.fixture
def costs(tmp_path: Path) -> Store:
    """Episodes of a reward of -2 a step, in a store that keeps the returns of two policies."""
    steps = sum(LENGTHS)
    reward = np.full(steps, -2.0, np.float32)
    rng = np.random.default_rng(0)
    arrays = {"obs": rng.normal(size=(steps, 3)), "action": rng.normal(size=(steps, 2))}
    fields = (Field("obs", (3,), slices={"state": (0, 3)}), Field("action", (2,)), Field("reward"))
    attributes = {"reference_returns": REFERENCES}
    store = Store.create(
        tmp_path / "costs.zarr", Schema(fields, 0.02, "box", attributes=attributes)
    )
    columns = part_input(list(LENGTHS))["episodes"] | {"return": [-2.0 * n for n in LENGTHS]}
    steps_of = {name: values.astype(np.float32) for name, values in arrays.items()}
    store.write_part("p", {**steps_of, "reward": reward}, columns)
    return open_store(store.path)


def policy_of(config: TrainConfig, selection: Selection) -> PolicyNetwork:
    return build_policy(config, selection)[0]


def test_returns_may_be_negative(costs: Store) -> None:
    asked = replace(CONFIG, return_scale=-150.0, return_zero=-1200.0)
    policy = policy_of(asked, costs.select())
    assert (policy.return_at(0.0), policy.return_at(1.0)) == (-1200.0, -150.0)
    with pytest.raises(ValueError, match=r"above 0, got -150; set return_scale, or a lower return"):
        policy_of(replace(asked, return_zero=0.0), costs.select())


def test_a_new_reward_has_no_reference_returns(costs: Store) -> None:
    of_store = policy_of(replace(CONFIG, return_zero=None), costs.select())
    assert (of_store.return_at(0.0), of_store.return_at(1.0)) == (-60.0, -10.0)
    add_field(costs, make_field(costs, Field("reward"), {"p": np.ones(sum(LENGTHS), np.float32)}))
    relabelled = policy_of(replace(CONFIG, return_zero=None), open_store(costs.path).select())
    assert (relabelled.return_at(0.0), relabelled.return_at(1.0)) == (0.0, 5.0)
    applied = open_store(apply_edits(open_store(costs.path), costs.path.parent / "applied.zarr"))
    again = policy_of(replace(CONFIG, return_zero=None), applied.select())
    assert (again.return_at(0.0), again.return_at(1.0)) == (0.0, 5.0), "of a store made from it"
