"""Overrides of plans: read by the field's type, refused with what is allowed."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.flows.experiments.plan import Published
from gaitforge.flows.records.records import to_tree
from gaitforge.flows.settings import override, setting_names, with_named
from gaitforge.pipeline.presets.experiments import experiment_preset


@dataclass(frozen=True)
class Inner:
    """Settings of every kind."""

    count: int = 3
    rate: float = 0.5
    name: str = "a"
    flag: bool = False
    limit: float | None = None
    numbers: tuple[int, ...] = (1, 2)
    words: tuple[str, ...] = ()
    sizes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count must not be negative, got {self.count}")


@dataclass(frozen=True)
class Outer:
    """A group and a number beside it."""

    inner: Inner = field(default_factory=Inner)
    seed: int = 0


def refusal(*settings: str) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        override(Outer(), settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


VALUES = [
    ("inner.count=7", 7),
    ("inner.rate=1e-3", 1e-3),
    ("inner.rate=2", 2.0),
    ("inner.name=b", "b"),
    ("inner.name=", ""),
    ("inner.name=x=y", "x=y"),
    ("inner.flag=true", True),
    ("inner.flag=False", False),
    ("inner.limit=2.5", 2.5),
    ("inner.limit=none", None),
    ("inner.numbers=4, 5,6", (4, 5, 6)),
    ("inner.numbers=4", (4,)),
    ("inner.numbers=", ()),
    ("inner.words=flat,rough", ("flat", "rough")),
    ('inner.sizes={"hidden": 8}', {"hidden": 8}),
]


@pytest.mark.parametrize(("setting", "value"), VALUES)
def test_values_are_read_by_the_fields_type(setting: str, value: object) -> None:
    name = setting.partition("=")[0].removeprefix("inner.")
    found = getattr(override(Outer(), [setting]).inner, name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("setting", "value"), VALUES)
def test_an_experiments_evaluation_reads_its_entries_like_a_plan(
    setting: str, value: object
) -> None:
    entry, text = setting.removeprefix("inner.").split("=", 1)
    entries = override(Outer(), [f"inner.sizes.{entry}={text}"]).inner.sizes
    assert getattr(with_named(Inner(), entries), entry) == value


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        ({"count": "abc"}, "setting 'count' needs a whole number, not 'abc'"),
        ({"count": 1.5}, "setting 'count' needs a whole number, not '1.5'"),
        ({"numbers": [1, "x"]}, "setting 'numbers' needs a whole number, not '1,x'"),
        ({"flag": "maybe"}, "setting 'flag' needs true or false, not 'maybe'"),
    ],
)
def test_an_entry_that_does_not_fit_is_refused(entries: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        with_named(Inner(), entries)


def test_the_plan_itself_stays_as_it_was() -> None:
    plan = Outer()
    changed = override(plan, ["seed=5", "inner.count=1"])
    assert (plan.seed, plan.inner.count) == (0, 3)
    assert (changed.seed, changed.inner.count, changed.inner.rate) == (5, 1, 0.5)


def test_the_last_of_two_settings_counts() -> None:
    assert override(Outer(), ["seed=5", "seed=6"]).seed == 6


def test_no_settings_change_nothing() -> None:
    assert override(Outer(), []) == Outer()


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("seed", "--set needs NAME=VALUE, not 'seed'"),
        ("sed=5", "unknown setting 'sed'; did you mean 'seed'? allowed: inner, seed"),
        ("inner.cuont=5", "'inner.cuont'; did you mean 'inner.count'? allowed: count, flag, limit"),
        ("inner=5", "'inner' is a group of settings: inner.count, inner.rate"),
        ("seed.low=5", "'seed' has no settings of its own"),
        ("=5", "unknown setting ''"),
        ("seed=five", "setting 'seed' needs a whole number, not 'five'"),
        ("seed=1.5", "needs a whole number, not '1.5'"),
        ("inner.rate=fast", "needs a number, not 'fast'"),
        ("inner.flag=maybe", "needs true or false, not 'maybe'"),
        ("inner.limit=much", "needs a number, not 'much'"),
        ("inner.numbers=1,x", "needs a whole number, not '1,x'"),
        ("inner.sizes={hidden", "needs JSON, not '{hidden'"),
        ("inner.count=-1", "count must not be negative, got -1"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(setting: str, complaint: str) -> None:
    assert complaint in refusal(setting)


def test_names_are_those_that_override_accepts() -> None:
    assert setting_names(Outer())[-1] == "seed"
    demo = experiment_preset("demo")
    names = setting_names(demo)
    assert {
        "collect.grid.parts",
        "corrections.collect.grid.seed",
        "learners",
        "select.where",
    } <= set(names)
    for name in names:
        value = reduce(getattr, name.split("."), demo)
        changed = override(demo, [f"{name}={as_text(value)}"])
        assert to_tree(changed) == to_tree(demo), name


def test_entries_of_mappings_and_whole_groups_can_be_set() -> None:
    plan = override(
        experiment_preset("demo"),
        ["learners.bot.steps=7", "learners.bot.model_overrides.n_layers=1", "corrections=none"],
    )
    own = experiment_preset("demo").learners
    assert plan.learners["bot"] == {**own["bot"], "steps": 7, "model_overrides": {"n_layers": 1}}
    assert plan.learners["fcnet"] == own["fcnet"]
    assert plan.corrections is None
    assert plan.config("bot", 0).steps == 7
    assert list(override(plan, ["learners.mlp.steps=7"]).learners)[-1] == "mlp"
    with pytest.raises(ValueError, match="no model 'fcnett'"):
        override(plan, ["learners.fcnett.steps=7"])
    with pytest.raises(ValueError, match="'steps' has no settings of its own"):
        override(plan, ["learners.bot.steps.more=7"])


def test_records_in_a_list_are_set_as_json() -> None:
    demo = experiment_preset("demo")
    said = [{"ahead": "fcnet", "behind": "bot", "source": "a guess"}]
    plan = override(demo, [f"published={json.dumps(said)}"])
    assert plan.published == (Published("fcnet", "bot", "a guess"),)
    for text, complaint in (
        ("[{", "needs JSON"),
        ("{}", "needs a list"),
        ('[{"ahead":"fcnet"}]', "Published needs 'behind'"),
        ('[{"before":"fcnet"}]', "Published has no 'before'"),
    ):
        with pytest.raises(ValueError, match=complaint):
            override(demo, [f"published={text}"])


def as_text(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, Mapping):
        return json.dumps(dict(value))
    return "none" if value is None else str(value)


@given(st.integers(-(2**63) + 1, 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_come_back_as_they_were_written(whole: int, number: float) -> None:
    plan = override(Outer(), [f"seed={whole}", f"inner.rate={number!r}"])
    assert (plan.seed, plan.inner.rate) == (whole, number)
