"""Options that have no effect are refused, in every mode of every command, before any work."""

import argparse
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from gaitforge.flows.experiments.claim import Claim, claim
from gaitforge.flows.progress import Reporter
from gaitforge.pipeline.cli.main import build_parser, parsed
from gaitforge.pipeline.cli.parsing.options import flag, option
from gaitforge.pipeline.cli.parsing.parser import Parser, command
from gaitforge.pipeline.cli.parsing.values import positive
from gaitforge.pipeline.cli.work import CommandWork, Result, single, work
from gaitforge.pipeline.presets.experiments import experiment_preset
from gaitforge.pipeline.serve import prefect_server
from tests.pipeline.command_line import Run, assert_refused, tried

MODES = """
collect {new} --from-plan {dataset} | --parts 1 --seed 7 --set grid.seed=9 --terrain x --robot x
collect {new} --from-plan {dataset} | --preset demo --half --no-state --new-every-day --policy x
collect {new} --plan {plan} | --terrain stairs --robot nosuch --robots 3 --half --sim mujoco
collect {new} --plan {plan} | --level 9 --preset demo --share 0.5 --labeller x --where x --policy x
collect {new} | --share 0.3 --stretch 12 --labeller aliengo-locomotion --where level=1
collect {new} --sim mujoco | --isaacgym-python python3
train {store} --out {new} --plan {train_plan} | --model fcnet --steps 1 --batch-size 3 --seed 5
train {store} --out {new} --plan {train_plan} | --terrain flat --skill run --level 1 --device cpu
train {store} --out {new} --plan {train_plan} | --selection nosuch.json
evaluate aliengo-locomotion | --checkpoint last --beside nosuch.json --isaacgym-python python3
evaluate {trained} --out {new} | --beside nosuch.json
run demo --out {new} --train-time 4 | --where level=1 --selection nosuch.json --steps 7
run compare {store} --out {new} | --parts 3
run {demo_plan} --out {new} | --size full
run --list | --out x --seeds 1 --size full --set a=b
compare {store} --out {new} --train-time 5 | --steps 7
verify {store} | --seed 0 --robot nosuch --with-recorded-versions
dataset split {store} --out {new} --by skill | --seed 0
view {store} --out {new} | --episodes 3
view {store} --video {new}.gif | --limit 200 --episodes 3
view {evaluation} --out {new} | --terrain x --robot x --episodes 1 --limit 1 --where level=1
view {trained} --out {new} | --limit 1 --where level=1
export {trained} {new} | --where level=1 --tag x --set compression=none --terrain flat
notify --remove | --url http://x.org/a --on failed --hours 3
notify --url http://x.org/a --on failed | --hours 26
serve | --timezone UTC --host 127.0.0.1 --expose
"""
"""A command line, and options that have no effect there; those after "!" have one."""

_MADE = {"trained": "trained", "hopper": "hopper", "clips": "humanoid_reference"}
"""A place of `MODES` -> the fixture that makes it."""


@pytest.fixture
def places(store: Path, tmp_path: Path) -> dict[str, str]:
    """The files and folders that `MODES` names."""
    names = ("new", "dataset", "plan", "train_plan", "demo_plan")
    where = {name: tmp_path / name for name in names} | {"store": store}
    where["evaluation"] = tmp_path / "evaluation.json"
    return {name: str(path) for name, path in where.items()}


@pytest.mark.parametrize("case", tried(MODES, "WITHOUT_EFFECT"))
def test_what_has_no_effect_is_refused(
    case: str,
    run: Run,
    places: dict[str, str],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prefect_server, "configured_server", lambda: "http://127.0.0.1:9/api")
    _write(case, places, run)
    for name, fixture in _MADE.items():
        if f"{{{name}}}" in case:
            places[name] = str(request.getfixturevalue(fixture))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    line, ineffective = case.format(**places).split(" | ")
    options, _, effective = ineffective.partition(" !")
    names = [name for name in re.findall(r"--[a-z-]+", options) if name not in effective.split()]
    outcome = run(*shlex.split(line), *shlex.split(options))
    assert_refused(outcome, "no effect" if len(names) != 1 else "has no effect")
    listed = outcome.err.partition(" ha")[0]
    # Of options with two forms the first one is named.
    assert set(re.findall(r"--[a-z-]+", listed)) == {
        n.replace("--no-state", "--state") for n in names
    }
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def _write(case: str, places: dict[str, str], run: Run) -> None:
    """Write the files that a case names."""
    if "{evaluation}" in case:
        words = "evaluate aliengo-locomotion --terrain flat --skill stand --episodes 1 --threads 1"
        assert run(*words.split(), "--out", places["evaluation"]).code == 0
    if "{dataset}" in case or "{plan}" in case:
        record = json.loads(run("plan", places["store"]).out)
        Path(places["dataset"]).write_text(json.dumps(record))
        Path(places["plan"]).write_text(json.dumps(record["plans"][0]["plan"]))
    if "{train_plan}" in case:
        Path(places["train_plan"]).write_text('{"config": {"model": "mlp", "steps": 2}}')
    if "{demo_plan}" in case:
        made = Path(f"{places['demo_plan']}-made", "plan.json")
        claim(Claim("demo", experiment_preset("demo"), ()), made.parent)
        Path(places["demo_plan"]).write_text(made.read_text())


@pytest.mark.parametrize("at_once", [True, False])
def test_a_command_that_never_reads_an_option_refuses_it(
    at_once: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever a command forgets, also one that is written later."""
    done: list[str] = []

    @command(
        "", option("--mode", "which"), option("--size", "how large", positive, 3), flag("--b", "x")
    )
    def acts(arguments: argparse.Namespace) -> None:
        done.append(f"{arguments.size if arguments.mode == 'sized' else ''}")

    @work(
        "", option("--mode", "which"), option("--size", "how large", positive, 3), flag("--b", "x")
    )
    def plans(arguments: argparse.Namespace) -> CommandWork:
        size = arguments.size if arguments.mode == "sized" else ""

        def run(_: Reporter) -> Result:
            done.append(str(size))
            return Result([], [])

        return single(arguments, "plans", run, lambda result: result)

    parser = Parser(prog="own")
    (acts if at_once else plans).fill(parser)

    def call(*words: str) -> None:
        arguments = parser.parse_args(words, argparse.Namespace(words=words, command="own"))
        arguments.run(arguments)

    call("--mode", "sized", "--size", "5")
    call("--mode", "other")
    assert done == ["5", ""]
    for words in (["--size", "3"], ["--size=3"]):
        with pytest.raises(ValueError, match="--size has no effect beside --mode"):
            call("--mode", "other", *words)
    with pytest.raises(ValueError, match="--b has no effect here"):
        call("--b")
    if not at_once:
        assert done == ["5", ""], "refused before the work"


def _commands(parser: argparse.ArgumentParser, *words: str) -> Iterator[tuple[str, ...]]:
    inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not inner:
        yield words
    for name, one in (pair for action in inner for pair in action.choices.items()):
        yield from _commands(one, *words, name)


def test_every_command_goes_through_the_check() -> None:
    """No handler is called past it: each gets arguments that note what is read."""
    for words in _commands(build_parser()):
        parser: argparse.ArgumentParser = build_parser(words)
        for word in words:
            [choices] = [
                a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)
            ]
            parser = choices[word]
        assert parser.get_default("run").__qualname__ == "command.<locals>.decorate.<locals>.run", (
            words
        )


def test_a_form_sends_no_defaults() -> None:
    from gaitforge.pipeline.cli.parsing.forms import command_line, form_fields

    parser = build_parser(["collect"])
    [choices] = [a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    fields = form_fields(choices["collect"])
    values = {f.name: f.parameter.default for f in fields} | {"store": "x", "plan": "p.json"}
    line = ["collect", *command_line(fields, values)]
    given = parsed(line).given
    assert set(given) == {"command", "store", "plan"}
