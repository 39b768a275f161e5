"""Tasks, models, formats and simulators of other packages, by their entry points."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gaitforge.datasets import open_store
from gaitforge.flows.tasks.registry import TASKS, collection_plan, evaluation_class
from tests.pipeline.command_line import TINY_GRID, Run, assert_refused

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
MODEL = """
from dataclasses import dataclass

from torch import nn

@dataclass(frozen=True)
class Linear:
    prefix_len = 0
    training = {"window_len": 7, "batch_size": 5}

    bias: bool = True

    def build(self, layout, act_dim):
        return Net(layout.dim, act_dim, self.bias)

class Net(nn.Linear):
    def init_state(self, batch_size):
        return ()

    def step(self, token, state):
        return self(token), state

    def reset_state(self, state, rows):
        pass
"""
FORMAT = """
from gaitforge.datasets.formats import FormatEntry

path = "gaitforge.datasets.formats.d4rl.d4rl"
FORMAT = FormatEntry("ours", "file", f"{path}_reader:D4rlImporter", f"{path}_writer:D4rlExporter")
"""
SIMULATOR = """
from gaitforge.collectors.physics.mujoco.backend import MujocoBackend

def installed_version():
    return "7.0"

class Slow(MujocoBackend):
    name = "slow"
"""
COUNT = """
import argparse

from gaitforge.pipeline.cli.parsing.entries import CommandEntry
from gaitforge.pipeline.cli.parsing.parser import command

ENTRY = CommandEntry("count experts", "counting:count")

@command("gaitforge expert count")
def count(arguments: argparse.Namespace) -> None:
    print("three")
"""
# Kind -> what asks for the extension "hop" of this kind.
ASKED: dict[str, Callable[[Path], list[str]]] = {
    "task": lambda at: ["collect", str(at / "x.zarr"), "--task", "hop"],
    "model": lambda at: ["train", str(at / "x.zarr"), "--model", "hop", "--out", str(at / "run")],
    "format": lambda at: ["import", "hop", str(at / "x"), str(at / "x.zarr")],
}

Install = Callable[[str, str, str, str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a package's metadata with one extension, and its module, on the path."""

    def add(package: str, kind: str, name: str, target: str, source: str) -> None:
        place = tmp_path / package
        info = place / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[gaitforge.{kind}s]\n{name} = {target}\n")
        (place / f"{target.partition(':')[0]}.py").write_text(source)
        monkeypatch.syspath_prepend(str(place))

    return add


def test_a_packages_task_is_found_by_its_name_and_no_other_is_imported(install: Install) -> None:
    install("hoppers", "task", "hop", "hoppers_plan:Hop", PLAN.format(kind="hop"))
    install("broken", "task", "walk", "broken_plan:Walk", "raise KeyError('no\\nrobot')")
    plan = collection_plan("hop", {"hops": 3})
    assert (plan.kind, getattr(plan, "hops")) == ("hop", 3)  # noqa: B009, another package's field
    assert evaluation_class("hop").__name__ == "GymEvaluation"
    with pytest.raises(
        ValueError, match=r"unknown task 'run'; allowed: legged, gym, .*, hop, .*walk"
    ):
        collection_plan("run", {})


@pytest.mark.parametrize(
    ("kind", "target", "source", "message"),
    [
        ("task", "p1:Hop", "raise KeyError('no\\nrobot')", "cannot be loaded: KeyError: 'no"),
        ("task", "p2:Hop", "", "cannot be loaded: AttributeError: module 'p2' has no attribute"),
        ("task", "p3:Hop", "Hop = dict", "is not a CollectionPlan, but p3:Hop"),
        ("task", "p4:Hop", PLAN.format(kind="jump"), "calls itself 'jump'; its kind must be 'hop'"),
        ("model", "m1:Hop", "raise KeyError('no\\nlayer')", "cannot be loaded: KeyError: 'no"),
        ("model", "m2:Hop", "Hop = dict", "is no dataclass with build and prefix_len: m2:Hop"),
        ("format", "f1:Hop", "raise KeyError('no\\nfile')", "cannot be loaded: KeyError: 'no"),
        ("format", "f2:Hop", "Hop = dict", "is no FormatEntry: f2:Hop"),
    ],
)
def test_a_broken_entry_point_is_refused_in_a_line_that_names_its_package(
    install: Install,
    run: Run,
    store: Path,
    tmp_path: Path,
    kind: str,
    target: str,
    source: str,
    message: str,
) -> None:
    install("hoppers", kind, "hop", target, source)
    (tmp_path / "x.zarr").symlink_to(store)
    outcome = run(*ASKED[kind](tmp_path))
    assert_refused(outcome, f"{kind} 'hop' of the package hoppers {message}")


@pytest.mark.parametrize("kind", ASKED)
def test_two_packages_with_one_name_are_both_named(
    install: Install, run: Run, store: Path, tmp_path: Path, kind: str
) -> None:
    for package in ("hoppers", "jumpers"):
        install(package, kind, "hop", f"{package}_{kind}:Hop", "")
    (tmp_path / "x.zarr").symlink_to(store)
    outcome = run(*ASKED[kind](tmp_path))
    assert_refused(outcome, f"the packages jumpers, hoppers each have a {kind} 'hop'")


def test_a_package_cannot_take_the_name_of_a_task_of_ours(install: Install) -> None:
    install("hoppers", "task", "gym", "q1:Hop", "raise KeyError")
    assert set(TASKS) >= {"gym"}
    assert collection_plan("gym", {"env": "Hopper-v5"}).kind == "gym"


def test_a_packages_task_collects(install: Install, run: Run, tmp_path: Path) -> None:
    install("hoppers", "task", "hop", "hoppers_own:Hop", PLAN.format(kind="hop"))
    done = run("collect", tmp_path / "x.zarr", "--task", "hop")
    assert done.code == 0, done.err
    assert open_store(tmp_path / "x.zarr").select().steps >= 30


def test_a_packages_model_is_listed_trained_evaluated_and_exported(
    install: Install, run: Run, store: Path, tmp_path: Path
) -> None:
    install("lines", "model", "line", "lines_model:Linear", MODEL)
    assert "line" in run("models").out
    for model in ("line", "lines_model:Linear"):
        trained = tmp_path / model.partition(":")[0]
        settings = ["--steps", "2", "--set", "config.held_out_fraction=0"]
        done = run("train", store, "--model", model, "--out", trained, *settings)
        assert done.code == 0, done.err
        card = (trained / "checkpoint.json").read_text()
        assert f'"kind": "{model}"' in card
        cell = ["--terrain", "flat", "--skill", "stand", "--episodes", "1"]
        done = run("evaluate", trained, *cell)
        assert done.code == 0, done.err
        done = run("export", trained, tmp_path / "exports" / trained.name, "--formats", "pt2")
        assert done.code == 0, done.err
    train = ["train", store, "--out", tmp_path / "x"]
    assert_refused(run(*train, "--model", "lone"), "no model 'lone'", "line, or module:Config")
    assert_refused(run(*train, "--model", "subprocess:Popen"), "is no dataclass with build")


def test_a_packages_format_is_listed_written_and_read(
    install: Install, run: Run, store: Path, tmp_path: Path
) -> None:
    install("ours", "format", "flat", "ours_format:FORMAT", FORMAT)
    assert "flat" in run("formats").out
    done = run("export", store, "flat", tmp_path / "flat.hdf5")
    assert done.code == 0, done.err
    done = run("import", "flat", tmp_path / "flat.hdf5", tmp_path / "back.zarr")
    assert done.code == 0, done.err
    assert open_store(tmp_path / "back.zarr").select().steps == open_store(store).select().steps


def test_a_packages_command_has_its_heading(install: Install, run: Run) -> None:
    grouped = COUNT.replace('"counting:count")', '"counting:count", group="look at data")')
    install("tallies", "command", "tally", "tallying:ENTRY", grouped)
    install("sums", "command", "sum", "summing:ENTRY", COUNT)
    install("odd", "command", "odd", "oddly:ENTRY", grouped.replace("look at data", "odd things"))
    helped = run("--help").out
    sections = dict(re.findall(r"^  ([a-z][^\n]*):\n((?:    .*\n)+)", helped, re.M))
    assert re.search(r"^    tally +count experts$", sections["look at data"], re.M)
    assert re.search(r"^    sum +count experts$", sections["others"], re.M)
    assert re.search(r"^    odd +count experts$", sections["odd things"], re.M)
    assert list(sections)[-2:] == ["odd things", "others"]


def test_a_packages_simulator_is_listed_and_collects(
    install: Install, run: Run, tmp_path: Path
) -> None:
    install("sims", "simulator", "slow", "sims_slow:Slow", SIMULATOR)
    install("bad", "simulator", "gone", "bad_gone:Gone", "import no_such_package")
    listing = run("sim", "list").out
    assert "7.0" in listing
    assert "No module named 'no_such_package'" in listing
    done = run("collect", tmp_path / "x.zarr", "--sim", "slow", *TINY_GRID)
    assert done.code == 0, done.err
    assert_refused(run("collect", tmp_path / "y.zarr", "--sim", "gone", *TINY_GRID), "gone")


def test_a_package_adds_an_action_to_a_command(install: Install, run: Run) -> None:
    install("counters", "command", "expert.count", "counting:ENTRY", COUNT)
    install("replacers", "command", "expert.list", "replacing:ENTRY", COUNT)
    install("broken", "command", "expert.walk", "breaking:ENTRY", "raise KeyError('no\\nwalk')")
    assert run("expert", "count").out == "three\n"
    assert "aliengo" in run("expert", "list").out, "no package replaces an action of ours"
    helped = run("expert", "--help").out
    assert "count experts" in helped
    assert_refused(run("expert", "walk", "--far"), "cannot be loaded: KeyError: 'no")
    assert "expert.count" not in run("--help").out
