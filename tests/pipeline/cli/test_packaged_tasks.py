"""Tasks of other packages by their entry points."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gaitforge.datasets import open_store
from gaitforge.flows.tasks.registry import TASKS, collection_plan, evaluation_class
from tests.pipeline.command_line import Run, assert_refused

PLAN = """
from dataclasses import dataclass

from gaitforge.flows.tasks.gym import GymPlan

@dataclass(frozen=True)
class Hop(GymPlan):
    kind = "{kind}"

    env: str = "CartPole-v1"
    qualities: tuple[str, ...] = ("random",)
    steps: int = 30
    hops: int = 2
"""


Install = Callable[[str, str, str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a package's metadata with a task, and its module, on the path."""

    def add(package: str, task: str, target: str, source: str) -> None:
        place = tmp_path / package
        info = place / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[gaitforge.tasks]\n{task} = {target}\n")
        (place / f"{target.partition(':')[0]}.py").write_text(source)
        monkeypatch.syspath_prepend(str(place))

    return add


def test_a_packages_task_is_found_by_its_name_and_no_other_is_imported(install: Install) -> None:
    install("hoppers", "hop", "hoppers_plan:Hop", PLAN.format(kind="hop"))
    install("broken", "walk", "broken_plan:Walk", "raise KeyError('no\\nrobot')")
    plan = collection_plan("hop", {"hops": 3})
    assert (plan.kind, getattr(plan, "hops")) == ("hop", 3)  # noqa: B009, another package's field
    assert evaluation_class("hop").__name__ == "GymEvaluation"
    with pytest.raises(
        ValueError, match=r"unknown task 'run'; allowed: legged, gym, .*, hop, walk"
    ):
        collection_plan("run", {})


@pytest.mark.parametrize(
    ("target", "source", "message"),
    [
        ("p1:Hop", "raise KeyError('no\\nrobot')", "cannot be loaded: KeyError: 'no\\nrobot'"),
        ("p2:Hop", "", "cannot be loaded: AttributeError: module 'p2' has no attribute 'Hop'"),
        ("p3:Hop", "Hop = dict", "is not a CollectionPlan, but p3:Hop"),
        ("p4:Hop", PLAN.format(kind="jump"), "calls itself 'jump'; its kind must be 'hop'"),
    ],
)
def test_a_broken_entry_point_is_refused_in_a_line_that_names_its_package(
    install: Install, run: Run, tmp_path: Path, target: str, source: str, message: str
) -> None:
    install("hoppers", "hop", target, source)
    outcome = run("collect", tmp_path / "x.zarr", "--task", "hop")
    assert_refused(outcome, f"task 'hop' of the package hoppers {message}")


def test_a_packages_task_collects(install: Install, run: Run, tmp_path: Path) -> None:
    install("hoppers", "hop", "hoppers_own:Hop", PLAN.format(kind="hop"))
    done = run("collect", tmp_path / "x.zarr", "--task", "hop")
    assert done.code == 0, done.err
    assert open_store(tmp_path / "x.zarr").select().steps >= 30


def test_two_packages_with_one_name_are_both_named(install: Install) -> None:
    for package in ("hoppers", "jumpers"):
        install(package, "hop", f"{package}_plan:Hop", PLAN.format(kind="hop"))
    with pytest.raises(ValueError, match="packages jumpers, hoppers each have a task 'hop'"):
        collection_plan("hop", {})


def test_a_package_cannot_take_the_name_of_a_task_of_ours(install: Install) -> None:
    install("hoppers", "gym", "q1:Hop", "raise KeyError")
    assert set(TASKS) >= {"gym"}
    assert collection_plan("gym", {"env": "Hopper-v5"}).kind == "gym"
