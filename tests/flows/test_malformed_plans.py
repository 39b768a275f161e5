"""Plans and records of a wrong shape are refused in one line; none ends in another error."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.flows.experiments.experiment_stages import Claim
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import read_record, to_tree
from gaitforge.flows.settings import override
from gaitforge.flows.stages.dataset_plan import read_dataset_plan
from gaitforge.flows.stages.train import TrainPlan
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.pipeline.presets.experiments import experiment_preset

PLANS = {
    LeggedPlan: LeggedPlan(),
    TrainPlan: TrainPlan(),
    Claim: Claim("compare", experiment_preset("compare"), ("x.zarr",)),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=4,
)


def _places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    entries = tree.items() if isinstance(tree, dict) else ()
    for name, value in [*entries, *(enumerate(tree) if isinstance(tree, list) else ())]:
        yield from _places(value, (*path, name))


def _with(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = tree.copy()
    copy[path[0]] = _with(tree[path[0]], path[1:], value)
    return copy


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_value_of_another_shape_anywhere_in_a_plan_is_a_value_error(data: st.DataObject) -> None:
    check_values(PLANS[data.draw(st.sampled_from(list(PLANS)))], data)


def check_values(plan: Any, data: st.DataObject) -> None:
    """A plan is read from its tree; with a drawn value anywhere it is, or a ValueError."""
    kind = type(plan)
    tree = to_tree(plan)
    assert to_tree(plan_from_tree(kind, tree)) == tree
    wrong = _with(tree, data.draw(st.sampled_from(list(_places(tree)))), data.draw(JSON))
    with suppress(ValueError):
        plan_from_tree(kind, wrong)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_setting_of_another_shape_is_a_value_error(data: st.DataObject) -> None:
    check_settings(PLANS[data.draw(st.sampled_from(list(PLANS)))], data)


def check_settings(plan: Any, data: st.DataObject) -> None:
    """A drawn setting gives a plan that survives its file, or a ValueError."""
    name = data.draw(st.sampled_from([field.name for field in fields(plan)]))
    entry = data.draw(st.sampled_from(["", ".steps", ".mlp", ".mlp.best", ".friction"]))
    try:
        changed = override(plan, [f"{name}{entry}={json.dumps(data.draw(JSON))}"])
    except ValueError:
        return
    assert to_tree(plan_from_tree(type(plan), to_tree(changed))) == to_tree(changed)


DATASETS: list[Any] = [
    {},
    {"plans": 5, "parts": {}},
    {"plans": [], "parts": []},
    {"plans": [{"kind": "legged", "plan": {}}], "parts": {}},
    {"plans": [{"kind": 3, "plan": {}, "parts": []}], "parts": {}},
    {"plans": [{"kind": "legged", "plan": {}, "parts": []}], "parts": {}},
    {"plans": [{"kind": "legged", "plan": [], "parts": ["a"]}], "parts": {"a": "h"}},
    {"plans": [{"kind": "legged", "plan": {}, "parts": ["a"]}], "parts": {}},
    {"plans": [{"kind": "legged", "plan": {}, "parts": ["a"]}], "parts": {"a": 3}},
]


@pytest.mark.parametrize("tree", DATASETS)
def test_a_malformed_plan_of_a_dataset_names_its_fault(tree: Any, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"dataset": "gaitforge dataset", **tree}))
    with pytest.raises(ValueError, match=r"p\.json|no part|part a|Plan"):
        read_dataset_plan(path)


def test_a_record_without_a_field_says_so_and_is_else_a_dictionary(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text('{"inner": [{"a": 1}]}')
    record = read_record(path)
    assert record is not None
    assert record == {"inner": [{"a": 1}]}
    for look in (lambda: record["steps"], lambda: record["inner"][0]["b"]):
        with pytest.raises(ValueError, match=r"r\.json lacks '(steps|b)'"):
            look()
    assert record.get("steps") is None
    path.write_text("[1]")
    with pytest.raises(ValueError, match="no record"):
        read_record(path)


@pytest.mark.parametrize("best", ["x", True, [0.5], None, 10**400, 0, 2])
def test_the_share_of_a_learner_names_its_field(best: Any) -> None:
    with pytest.raises(ValueError, match=r"learners: mlp: .*best|learners.*number"):
        override(
            experiment_preset("compare"), [f'learners={{"mlp":{{"best":{json.dumps(best)}}}}}']
        )
