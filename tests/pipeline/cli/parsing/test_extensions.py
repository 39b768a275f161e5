"""Tasks, models, formats and simulators of other packages, by their entry points."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gaitforge.common.run_log import check_loggers
from gaitforge.datasets import open_store
from gaitforge.flows.experiments.claim import Claim
from gaitforge.flows.experiments.page_files import page_address
from gaitforge.flows.experiments.plan import Experiment
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.stage import run_stage
from gaitforge.flows.tasks.expert_trainers import network_trainer
from gaitforge.flows.tasks.registry import TASKS, collection_plan, evaluation_class
from gaitforge.learners.export.export import PolicyExportOptions
from gaitforge.learners.models.bodies import body_of, body_view, known_body
from gaitforge.learners.models.registry import preset
from gaitforge.learners.training.config import TrainConfig
from gaitforge.pipeline.report import experiment
from gaitforge.pipeline.report.experiment import stages_of
from tests.flows.making import CLAIM
from tests.learners.control.exporting import export_small
from tests.pipeline.command_line import TINY_GRID, Run, assert_refused

PLAN = """
from dataclasses import dataclass

from gaitforge.flows.tasks.legged import LeggedPlan

@dataclass(frozen=True)
class Hop(LeggedPlan):
    kind = "{kind}"

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
SIZES = """
from gaitforge.learners.models.registry import ModelPreset

SHORT = ModelPreset("line", 852, {"bias": False}, training={"batch_size": 3})
WRONG = ModelPreset("curve", None, {})
"""
PAGES = """
from gaitforge.pipeline.report.added_pages import CardPage, EpisodePages

CARD = CardPage("sums.html", "Sums & more", "adding:text")
EPISODES = EpisodePages("adding:stored", "adding:evaluated")

def text(selection, folder, condition):
    return f"{len(selection)} episodes: {condition}"

def stored(store, page, reporter):
    page.write_text("stored")

def evaluated(out, names, reporter, ghosts):
    for name in names:
        (out / "episodes").mkdir(exist_ok=True)
        (out / "episodes" / f"{name}.html").write_text(f"ghosts: {ghosts}")
"""
FORMAT = """
from gaitforge.datasets.formats import FormatEntry

path = "tests.datasets.formats.rows_format"
FORMAT = FormatEntry("ours", "folder", f"{path}:RowsImporter", f"{path}:RowsExporter")
"""
SIMULATOR = """
from gaitforge.collectors.physics.mujoco.backend import MujocoBackend

def installed_version():
    return "7.0"

class Slow(MujocoBackend):
    name = "slow"
"""
TRAINER = """
from gaitforge.flows.tasks.expert_trainers import ExpertTrainer
from gaitforge.pipeline.cli.work import Result, single

TRAINER = ExpertTrainer(
    "--hops", "how often", "N", "hop_trainer:begin", ("gaitforge expert train --hops 3 --out x",)
)

def begin(arguments):
    hops = int(arguments.hops)
    return single(arguments, "hop", lambda _: hops, lambda n: Result({"hops": n}), arguments.out)
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
POLICY_FORMAT = """
from dataclasses import dataclass

from gaitforge.learners.export.export import WrittenFiles
from gaitforge.learners.export.onnx_policy import OnnxPolicy
from gaitforge.learners.export.policy_formats import PolicyFormat, PolicyRuntime

HOP = PolicyFormat("hops", "hopping:write", "hopping:Hops", of_runtime=True)
LEGS = PolicyFormat("legs", "hopping:write_legs")
RUNTIME = PolicyRuntime("hops", "hopping:Hopping")

@dataclass(frozen=True)
class Hops:
    times: int = 1

def write(export, options):
    text = f"{export.facts.robot} {options.times}"
    return WrittenFiles({"hop/robot.txt": text.encode()}, None, ("it hops",))

def write_legs(export, options):
    if export.policy.act_dim == 12:
        raise ValueError("twelve joints are too many")

class Hopping(OnnxPolicy):
    def act(self, observation):
        return 0.0 * super().act(observation)
"""
LOGGER = """
from gaitforge.common.run_log import LoggerEntry

HERE = LoggerEntry("lining:Lines")
AWAY = LoggerEntry("lining:Lines", "no_liner")

class Lines:
    log = add_file = finish = print
"""
DATA_CHECK = """
from gaitforge.datasets.data_checks import DataCheck, DataFinding

def of_sample(episodes, steps):
    return [DataFinding("gap", "note", f"{len(episodes)} episodes, {steps} steps", 3)]

def of_merge(selections):
    return [DataFinding("gap", "warning", f"{len(selections)} stores", 3)]

CHECK = DataCheck("gaps find", of_sample, of_merge)
"""
EXPERT_FORMAT = """
import numpy as np

from gaitforge.collectors.experts.expert_formats import ExpertFormat

FORMAT = ExpertFormat("still.json", "ours_still:read", "still write")

class Still:
    name = "still"

    def __init__(self, robot):
        self.robot = robot

    def parameters(self):
        return 0

    def reset(self, ids):
        pass

    def act(self, observation):
        return np.zeros((len(observation.policy), 12), np.float32)

def read(path, card, robot):
    return Still(robot), card["weights"]
"""
COUNTED = """
from dataclasses import dataclass, replace
from functools import partial

from gaitforge.flows.experiments.kinds import PlanKind
from gaitforge.flows.experiments.staged_plan import StagedPlan
from gaitforge.flows.records.records import read_record, write_record
from gaitforge.flows.settings import override
from gaitforge.flows.stages.stage import RecordedStage
from gaitforge.pipeline.presets.preset import Preset

@dataclass(frozen=True)
class Plan(StagedPlan):
    kind = "counted"

    seeds: tuple[int, ...] = (0, 1)
    step: int = 1

    def work(self, out):
        return [
            RecordedStage(f"count {n}", f"{n} {self.step}", run=partial(self.count, out, n),
                  outputs=(out / f"{n}.json",))
            for n in self.seeds
        ]

    def count(self, out, seed, reporter):
        write_record(out / f"{seed}.json", {"count": seed + self.step})

    def summary(self, out):
        return {"counts": [read_record(out / f"{n}.json")["count"] for n in self.seeds]}

    def with_options(self, values, settings):
        return override(replace(self, seeds=values.get("seeds", self.seeds)), settings)

    def check_grown(self, old, out):
        if self.step != old.step:
            raise ValueError("another step")

def page(out, reporter):
    path = out / "report.html"
    path.write_text("counted")
    return path

def rows(summary):
    return [{"count": str(count)} for count in summary["counts"]]

KIND = PlanKind("counted:Plan", "counted:page", "counted:rows")
OTHER = PlanKind("counted:page", "counted:page", "counted:rows")
PRESET = Preset("counted:Plan", "what counting gives", 0.5)
SUITE = Preset("counted:suite", "what mlp learns")

def suite():
    from gaitforge.flows.experiments.plan import Experiment
    return Experiment({"mlp": {"steps": 2}})
"""
# Kind -> what asks for the extension "hop" of this kind.
ASKED: dict[str, Callable[[Path], list[str]]] = {
    "task": lambda at: ["collect", str(at / "x.zarr"), "--task", "hop"],
    "model": lambda at: ["train", str(at / "x.zarr"), "--model", "hop", "--out", str(at / "run")],
    "format": lambda at: ["import", "hop", str(at / "x"), str(at / "x.zarr")],
    "collection": lambda at: ["collect", str(at / "x.zarr"), "--preset", "hop"],
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
    assert evaluation_class("hop").__name__ == "LeggedEvaluation"
    with pytest.raises(ValueError, match=r"unknown task 'run'; allowed: legged, .*hop, .*walk"):
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
        ("collection", "c1:Hop", "Hop = dict", "is no LeggedPlan: c1:Hop"),
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
    install("hoppers", "task", "legged", "q1:Hop", "raise KeyError")
    assert set(TASKS) >= {"legged"}
    assert collection_plan("legged", {}).kind == "legged"


def test_a_packages_task_collects(install: Install, run: Run, tmp_path: Path) -> None:
    install("hoppers", "task", "hop", "hoppers_own:Hop", PLAN.format(kind="hop"))
    small = ("--set", "grid.parts=1", "--set", "grid.episodes_per_part=2", "--set", "threads=1")
    done = run("collect", tmp_path / "x.zarr", "--task", "hop", *small)
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


def test_a_packages_size_of_a_model_is_listed_and_built_with_its_settings(
    install: Install, run: Run
) -> None:
    install("lines", "model", "line", "lines_own:Linear", MODEL)
    install("sizes", "model_preset", "line-short", "lines_sizes:SHORT", SIZES)
    [row] = [row for row in json.loads(run("models", "--json").out) if row["model"] == "line-short"]
    assert (row["kind"], row["space"], row["parameters"]) == ("line", "legged", 852)
    spec = preset("line-short")
    assert (spec.kind, spec.config.bias) == ("line", False)
    assert TrainConfig.recommended("line-short").batch_size == 3
    install("curves", "model_preset", "curve", "curves_sizes:WRONG", SIZES)
    with pytest.raises(ValueError, match=r"no kind of model 'curve'; allowed: fcnet, .*line"):
        preset("curve")
    install("numbers", "model_preset", "number", "number_sizes:NUMBER", "NUMBER = 3")
    with pytest.raises(
        ValueError, match="model_preset 'number' of the package numbers is no Model"
    ):
        preset("number")


def test_a_packages_body_is_known_by_its_name_and_by_its_data(install: Install) -> None:
    source = "from gaitforge.learners.models.bodies import Body\n\n"
    source += 'SNAKE = Body({"head": "", "tail": "head"}, {"bend": ("tail",)}, ("tail",))\n'
    install("snakes", "embodiment", "snake", "snakes:SNAKE", source)
    slices = {"bend": (0, 1), "command": (1, 3)}
    assert body_of(slices, 1) == "snake"
    graph, _ = body_view("snake", slices, 1)
    assert (graph.nodes, graph.observations) == (("head", "tail"), ((1, 2), (0,)))
    with pytest.raises(ValueError, match=r"no body 'eel'; allowed: .*snake"):
        known_body("eel")


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


def test_a_package_adds_a_page_to_the_card(
    install: Install, run: Run, store: Path, tmp_path: Path
) -> None:
    install("sums", "card_page", "sums", "adding:CARD", PAGES)
    words = ["--skill", "stand", "--no-channels", "--no-pictures", "--out", tmp_path / "card"]
    done = run("card", store, *words)
    assert done.code == 0, done.err
    assert (tmp_path / "card" / "sums.html").read_text() == "2 episodes: skill in ('stand')"
    card = (tmp_path / "card" / "card.html").read_text()
    assert '<a href="sums.html">Sums &amp; more</a>' in card


def test_a_package_writes_the_pages_of_a_run(install: Install, store: Path, tmp_path: Path) -> None:
    install("albums", "episode_page", "album", "adding:EPISODES", PAGES)
    claim = Claim("x", Experiment({"mlp": {}}, seeds=(0,)), (str(store),))
    shows = [stage for stage in stages_of(claim, tmp_path) if stage.name.startswith("show ")]
    assert shows
    run_stage(tmp_path, shows[0], Silent())
    assert shows[0].outputs[0].read_text() == "ghosts: True"
    name = shows[0].name.removeprefix("show ")
    assert page_address(tmp_path, name) == f"episodes/{name}.html"
    assert page_address(tmp_path, "other") == ""


def test_a_run_has_no_pages_where_no_package_writes_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(experiment, "episode_pages", lambda: None)
    names = [stage.name for stage in stages_of(CLAIM, tmp_path)]
    assert {"collect", "describe", "compare", "report"} <= {*names}
    assert not [name for name in names if name.startswith("show ")]


def test_a_packages_logger_is_known_by_its_name_and_says_what_it_lacks(install: Install) -> None:
    install("liners", "logger", "lines", "lining:HERE", LOGGER)
    install("lacking", "logger", "away", "lining:AWAY", LOGGER)
    check_loggers(["lines", "tensorboard"])
    with pytest.raises(ValueError, match=r"--log away needs no_liner, .*pip install no_liner$"):
        check_loggers(["away"])
    with pytest.raises(ValueError, match=r"did you mean 'lines'\? allowed: .*away, .*lines, "):
        check_loggers(["line"])


def test_a_packages_command_stands_after_the_one_that_it_names(install: Install, run: Run) -> None:
    placed = COUNT.replace(
        '"counting:count")', '"counting:count", group="look at data", after="query")'
    )
    install("tallies", "command", "tally", "tallying:ENTRY", placed)
    assert re.search(r"^    query .*\n    tally +count experts\n    info ", run("--help").out, re.M)


def test_a_package_examines_what_is_imported_merged_and_on_a_card(
    install: Install, run: Run, store: Path, tmp_path: Path
) -> None:
    install("ours", "format", "flat", "ours_flat:FORMAT", FORMAT)
    install("gaps", "data_check", "gaps", "gaps_check:CHECK", DATA_CHECK)
    count = len(open_store(store).select())
    assert run("export", store, "flat", tmp_path / "flat.hdf5").code == 0
    back = tmp_path / "back.zarr"
    imported = run("import", "flat", tmp_path / "flat.hdf5", back).out
    assert f"note: note, gap: {count} episodes, 50000 steps\n" in imported
    assert f"note: gaps find {back} examines all of it\n" in imported
    assert run("card", store, "--no-pictures", "--out", tmp_path / "card").code == 0
    for name in ("card.html", "card.md"):
        shown = (tmp_path / "card" / name).read_text()
        assert f"note, gap: {count} episodes, 50000 steps (3)" in shown
        assert re.search("(`|<code>)gaps find", shown)
    sides = ("--fractions", "a=0.5,b=0.5", "--stores", "--out", tmp_path)
    assert run("dataset", "split", store, *sides).code == 0
    merged = run("dataset", "merge", *(tmp_path / f"{side}.zarr" for side in "ab"), tmp_path / "c")
    assert "note: warning, gap: 2 stores\n" in merged.out
    install("broken", "data_check", "holes", "holes_check:CHECK", "CHECK = 3")
    done = run("import", "flat", tmp_path / "flat.hdf5", tmp_path / "again.zarr")
    assert f"note: note, gap: {count} episodes, 50000 steps\n" in done.out
    [warning] = [line for line in done.err.splitlines() if line.startswith("warning")]
    assert "data_check 'holes' of the package broken is no DataCheck" in warning


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("data_check", "card"),
        ("card_page", "card"),
        ("model_preset", "models"),
        ("format", "formats"),
        ("preset", "run --list"),
    ],
)
def test_a_broken_package_is_left_out_of_what_takes_all_of_a_kind(
    install: Install, run: Run, store: Path, tmp_path: Path, kind: str, words: str
) -> None:
    install("bad", kind, f"bad-{kind}", f"bad_{kind}:ENTRY", "raise RuntimeError('no\\nuse')")
    rest = [store, "--no-channels", "--no-pictures", "--out", tmp_path / "card"]
    done = run(*words.split(), *(rest if words == "card" else ()))
    assert done.code == 0, done.err
    [warning] = [line for line in done.err.splitlines() if line.startswith("warning")]
    assert f"{kind} 'bad-{kind}' of the package bad cannot be loaded: RuntimeError: no" in warning


def test_a_broken_packages_body_spoils_no_other(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("bad", "embodiment", "blob", "bad_bodies:BLOB", "BLOB = 3")
    assert body_of({"joint_vel": (0, 12)}, 12) == "quadruped"
    assert "embodiment 'blob' of the package bad is no Body" in capsys.readouterr().err
    with pytest.raises(ValueError, match="embodiment 'blob' of the package bad is no Body"):
        body_view("blob", {"joint_vel": (0, 12)}, 12)


@pytest.mark.parametrize(
    ("module", "source", "reason"),
    [
        ("odd_raises", "raise RuntimeError('no\\ndriver')", "RuntimeError: no driver"),
        ("odd_empty", "", "AttributeError: module 'odd_empty' has no attribute 'Odd'"),
        ("odd_number", "Odd = 3", "needs a class Odd and a function installed_version"),
        ("odd_alone", "class Odd: pass", "needs a class Odd and a function installed_version"),
        ("odd_version", SIMULATOR.replace("Slow", "Odd").replace('"7.0"', "1 / 0"), "ZeroDivision"),
    ],
)
def test_a_broken_packages_simulator_is_refused_in_a_line(
    install: Install, run: Run, tmp_path: Path, module: str, source: str, reason: str
) -> None:
    install("odd", "simulator", "odd", f"{module}:Odd", source)
    listing = run("sim", "list", "--json")
    assert listing.code == 0, listing.err
    [row] = [row for row in json.loads(listing.out) if row["name"] == "odd"]
    assert reason in row["why_not"]
    assert_refused(run("collect", tmp_path / "y.zarr", "--sim", "odd", *TINY_GRID), reason)


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


def test_a_package_adds_an_action_to_a_command_with_work_of_its_own(
    install: Install, run: Run, tmp_path: Path
) -> None:
    install("counters", "command", "export.count", "counting:ENTRY", COUNT)
    install("broken", "command", "export.walk", "breaking:ENTRY", "raise KeyError('no\\nwalk')")
    assert run("export", "count").out == "three\n"
    assert "gaitforge export count  count experts" in run("export", "--help").out
    assert_refused(run("export", "walk", tmp_path / "x"), "cannot be loaded: KeyError: 'no")
    assert_refused(run("export", "./count", tmp_path / "x"), "no training run at count")


def test_a_packages_policy_format_is_written_with_its_options(
    install: Install, run: Run, tmp_path: Path
) -> None:
    install("hops", "policy_format", "hop", "hopping:HOP", POLICY_FORMAT)
    install("legs", "policy_format", "legs", "hopping:LEGS", POLICY_FORMAT)
    asked = ("export", "fcnet-aliengo", tmp_path / "out")
    assert_refused(run(*asked, "--for", "hopp"), "no runtime 'hopp'", "hop")
    assert_refused(run(*asked, "--for", "legs"), "no runtime 'legs'")
    assert_refused(run(*asked, "--formats", "legs"), "twelve joints are too many")
    assert_refused(run(*asked, "--for", "hop", "--set", "time=2"), "unknown setting 'time'")
    assert not (tmp_path / "out").exists()
    done = json.loads(run(*asked, "--for", "hop", "--set", "times=2", "--json").out)
    assert (tmp_path / "out" / "hop" / "robot.txt").read_text() == "aliengo 2"
    assert (done["notes"], done["largest_error"]) == (["it hops"], {})
    again = json.loads(run(*asked, "--for", "hop", "--set", "times=2", "--json").out)
    assert again["already_there"]
    assert_refused(run(*asked, "--for", "hop"), "holds something else")


def test_a_packages_runtime_runs_an_exported_policy(
    install: Install, run: Run, tmp_path: Path
) -> None:
    install("hops", "policy_runtime", "hop", "hopping:RUNTIME", POLICY_FORMAT)
    export_small(tmp_path / "out", "mlp", options=PolicyExportOptions(("onnx",)))
    cells = ("--terrain", "flat", "--skill", "stand", "--episodes", "1", "--threads", "1")
    asked = ("evaluate", tmp_path / "out", *cells, "--json")
    returns = []
    for runtime in ("onnx", "hop"):
        out = tmp_path / f"{runtime}.json"
        evaluated = run(*asked, "--runtime", runtime, "--out", out)
        assert evaluated.code == 0, evaluated.err
        returns.append(json.loads(evaluated.out)["return"])
    assert returns[0] != returns[1]
    assert_refused(run(*asked, "--runtime", "hip"), "unknown runtime 'hip'", "hop")
    assert_refused(run("evaluate", "fcnet-aliengo", "--runtime", "hop"), "no exported policy")


def test_a_packages_expert_is_read_from_its_folder(
    install: Install, run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    # The reader that a file names is nobody's: only the file's name counts.
    card = {"robot": "go1", "weights": "0123", "reader": "subprocess:Popen"}
    (folder / "still.json").write_text(json.dumps(card))
    asked = ["collect", tmp_path / "x.zarr", "--expert", folder, "--skill", "stand", *TINY_GRID]
    assert_refused(run(*asked), "no expert", "the folder's still.json", "gaitforge.expert_formats")
    install("ours", "expert_format", "still", "ours_still:FORMAT", EXPERT_FORMAT)
    assert_refused(run("expert", "film", "--expert", "nobody"), "a folder that", "`still write`")
    done = run(*asked)
    assert done.code == 0, done.err
    [row, *_] = open_store(tmp_path / "x.zarr").select().episodes().to_pylist()
    assert (row["robot"], row["expert"], row["expert_hash"]) == ("go1", "still", "0123")


def test_a_broken_package_spoils_no_expert_of_another_kind(
    install: Install, run: Run, tmp_path: Path
) -> None:
    install(
        "spoilt", "expert_format", "amble", "spoilt_format:FORMAT", "raise KeyError('no\\nleg')"
    )
    install("ours", "expert_format", "still", "ours_still:FORMAT", EXPERT_FORMAT)
    (tmp_path / "still.json").write_text(json.dumps({"robot": "go1", "weights": "0123"}))
    cells = ["--terrain", "flat", "--skill", "stand", "--level", "0", "--episodes", "1"]
    done = run("evaluate", tmp_path, *cells, "--set", "robots=1", "--json")
    assert done.code == 0, done.err
    [warning] = [line for line in done.err.splitlines() if line.startswith("warning")]
    assert "expert_format 'amble' of the package spoilt cannot be loaded: KeyError" in warning


def test_a_package_brings_a_kind_of_plan_and_its_preset(
    install: Install, run: Run, tmp_path: Path
) -> None:
    install("counters", "plan_kind", "counted", "counted:KIND", COUNTED)
    install("presets", "preset", "count", "counted:PRESET", COUNTED)
    install("replacers", "preset", "demo", "counted:PRESET", COUNTED)
    listed = {row["preset"]: row for row in json.loads(run("run", "--list", "--json").out)}
    assert listed["count"]["hours_of_two_cores"] == 0.5
    assert listed["demo"]["hours_of_two_cores"] == 0.23, "no package replaces one of ours"
    out = tmp_path / "out"
    done = run("run", "count", "--out", out, "--seeds", "3,4", "--set", "step=2", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["counts"] == [5, 6]
    again = run("run", out, "--seeds", "3-5", "--json")
    assert json.loads(again.out)["counts"] == [5, 6, 7]
    assert json.loads(run("status", out, "--json").out)["state"] == "complete"
    assert run("report", out).out == f"{out / 'report.html'}\n"
    assert_refused(run("run", out, "--set", "step=3"), "another step")
    assert_refused(run("run", "count", "--out", out, "--steps", "3"), "--steps has no effect")
    assert_refused(run("run", "count", "x.zarr", "--out", out), "takes no stores")


def test_a_kind_whose_entry_point_names_no_plan_is_refused(
    install: Install, run: Run, tmp_path: Path
) -> None:
    install("counters", "plan_kind", "spoilt", "counted:OTHER", COUNTED)
    (tmp_path / "plan.json").write_text('{"kind": "spoilt", "plan": {}}')
    assert_refused(run("run", tmp_path), "counted:page is no StagedPlan whose kind is 'spoilt'")


def test_a_plan_of_a_kind_that_no_package_brings_is_refused_by_its_name(
    run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    file.write_text('{"kind": "endurance", "plan": {}}')
    reason = "a plan of the kind 'endurance', which no installed package brings"
    assert_refused(run("run", tmp_path), reason, "allowed: experiment")
    assert_refused(run("run", file, "--out", tmp_path / "out"), reason)
    assert not (tmp_path / "out").exists()


def test_compare_takes_a_packages_preset_as_a_suite(
    install: Install, run: Run, store: Path, tmp_path: Path
) -> None:
    install("suites", "preset", "mine", "counted:SUITE", COUNTED)
    install("counters", "preset", "count", "counted:PRESET", COUNTED)
    words = ["compare", store, "--runner", "slurm", "--dry-run", "--suite"]
    done = run(*words, "mine", "--out", tmp_path / "a")
    assert done.code == 0, done.err
    assert "train mlp-seed-0" in done.out
    assert_refused(run(*words, "count", "--out", tmp_path / "b"), "count needs no stores")


def test_a_packages_trainer_trains_experts_by_its_option(
    install: Install, run: Run, tmp_path: Path
) -> None:
    install("hoppers", "expert_trainer", "hop", "hop_trainer:TRAINER", TRAINER)
    assert network_trainer({"hops": 3}) is None, "it trains no networks"
    install("broken", "expert_trainer", "amble", "amble_trainer:TRAINER", "raise KeyError('no')")
    helped = run("expert", "train", "--help").out
    assert "--hops N" in helped
    assert "gaitforge expert train --hops 3" in helped
    train = ("expert", "train", "--hops", "3", "--out", tmp_path / "hop", "--json")
    done = run(*train)
    assert json.loads(done.out) == {"hops": 3}
    assert "warning: expert_trainer 'amble' of the package broken cannot be loaded" in done.err
    assert run(*train, "--steps", "9").code == 2, "the trainer reads no steps"
