"""Wrong input of every command: exit code 2, one line that says why, and nothing made."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from gaitforge.collectors.scenarios.skills import SKILLS
from gaitforge.collectors.scenarios.terrains import TERRAINS
from gaitforge.collectors.simulators import ISAACGYM_PYTHON_VARIABLE, backend_names
from gaitforge.pipeline.serve import prefect_server
from tests.datasets.making import small_store
from tests.pipeline.command_line import Run, assert_refused, tried

COMMANDS = """
fly | invalid choice: 'fly' | demo
collect | required: store
demo --outt x | --outt
completion fish | invalid choice: 'fish' | bash

train x --out y --steps -5 | at least 1, not '-5'
train x --out y --steps many | at least 1, not 'many'
train {store} --out {new} --model transformer-xl | transformer-xl | fcnet | bot
train {store} --out {new} --objective guess | guess | bc | return
train {store} --out {new} --set config.peak_lr=nan | needs a finite number, not 'nan'
train {store} --out {new} --batch-size 99999999999 | batch_size must be 1 to
train {store} --out {new} --set config.threads=999999999 | threads must be 1 to 512
train {store} --out {new} --set config.betas=0.9 | betas must be two numbers
train {store} --out {new} --set config.equal_shares=horse | unknown column 'horse'; nearest
train {store} --out {new} --set config.momentum=1 | setting 'config.momentum' | peak_lr
train {store} --out {new} --set 'config.model_overrides={"depth":3}' | depth
train {store} --out {new} --where 'length < 0' | no episode
train {store} --out {trained} --steps 3 | run
train {store} --out {store}/run --steps 1 | is inside the store
train {store} --out {file}/x --steps 1 | {file}

collect x --robots 0 | at least 1, not '0'
collect x --threads -1 | at least 1, not '-1'
collect x --seed -1 | at least 0, not '-1'
collect x --level high | 'high' is not a list like 0,2,5-9
collect x --level 1- | '1-' is not a list like 0,2,5-9
collect x --level 0-9999999999 | more than 1,000,000 numbers
collect x --parts '' | '' is not a list
collect {new} --terrain moon | unknown terrain 'moon' | {terrains}
collect {new} --skill fly | unknown skill 'fly' | {skills}
collect {new} --terrain stairs --skill run | none of the skills run is commanded on stairs
collect {new} --level 10 | level 10 is outside 0-9
collect {new} --seed 10000000000000000000000 | a whole number of 0 to 9223372036854775807
collect {new} --threads 999999999 | threads must be 0 to 512, got 999999999
collect {new} --set grid.parts=100000000000000000000 | needs a number of 64 bits
collect {new} --set grid.parts=200000 | parts must be 1 to 100,000, got 200000
collect {new} --set grid.parts=-2 | parts must be 1 to 100,000, got -2
collect {new} --set grid.speed=1 | unknown setting 'grid.speed' | episodes_per_part
collect {new} --set grid.seed=x | setting 'grid.seed' needs a whole number, not 'x'
collect {new} --set grid | --set needs NAME=VALUE, not 'grid'
collect {new} --preset huge | unknown preset 'huge' | legged-60m
collect {new} --expert nobody | no expert 'nobody' | aliengo-locomotion
collect {new} --parts 0,99 | the plan has no part 99, only parts 0-7
collect {new} --sim ode | unknown simulator 'ode' | {simulators}
collect {new} --runner ray | unknown runner 'ray'; allowed: local, dask, slurm, prefect
collect {new} --scheduler tcp://127.0.0.1:9 | --scheduler is for --runner dask
collect {new} --workers 2 --runner slurm | --workers is for --runner dask
collect {new} --runner dask --scheduler x --dask-jobqueue slurm | a job queue, not both
collect {new} --runner dask --dask-jobqueue pbs | unknown job queue 'pbs'
collect {file}/x | {file}
collect {other} | schema version 99 is not supported
demo --out {file}/x | {file}

query {gone} | no store at
info {file} | is not a store
verify {empty} | is not a store
gc {other} | schema version 99 is not supported; this program reads version
train {gone} --out {new} | no store at
query {store} --terrain moon | moon
query {store} --where 'lenght > 3' | unknown column 'lenght'; nearest: length; gaitforge info
query {store} --episode nobody | 'nobody' is no episode | a293cb-00017
query {store} --episode a293cb-00017 | no episode a293cb-00017 | nearest
query {store} --list --sort retrun | unknown column 'retrun'; nearest: return
query {store} --sort return | --sort is for --list
query {store} --list --group-by level | --group-by and --list exclude each other
query {store} --selection {store}/zarr.json | is not a saved selection
query {store} --selection nope.json | no file nope.json
query {store} --parquet {store}/zarr.json | is inside the store
query {store} --save {store}/parts/saved.json | is inside the store
query {store} --save /dev/full | it is not a file
query s3://AKIA:secret@bucket/x | not a store's URL
collect ftp://host/x.zarr | allowed: a folder, or s3://bucket/prefix
query S3://bucket/x | allowed: a folder, or s3://bucket/prefix
status file:///x.zarr | allowed: a folder, or s3://bucket/prefix
status {gone} | nothing is at
card {store} --out {store}/card | is inside the store
card {store} --out {new} --scheduler tcp://127.0.0.1:9 | no Dask scheduler answers at tcp

dataset drop {walks} | say which episodes
dataset annotate {walks} --skill run note | not COLUMN=VALUE
dataset trim {walks} --skill run | no episode would change
dataset split {walks} --out {new} | --fractions or --by
dataset split {walks} --out {new} --fractions a | not a list like
dataset split {walks} --out {new} --by friction | has type double

evaluate {gone} | no training run at
evaluate {empty} | empty
evaluate x --episodes 0 | at least 1, not '0'
evaluate run --sim ode | unknown simulator 'ode'
report {gone} | no run folder at
report {empty} | the report needs summary.json
evaluate no.safetensors | no expert 'no.safetensors'
evaluate aliengo-locomotion --robot go1 | no expert among aliengo-locomotion drives go1
expert train --out y --steps -5 | at least 1, not '-5'
expert train --out {file}/x --steps 1 --robots 1 | {file}
expert train --out {new} --robot rex | no robot 'rex'; allowed: a1, aliengo | , or a card, or a
robot check rex | no robot 'rex'; allowed: a1, aliengo, anymal_c, | , or a card, or a folder

compare {store} --out {new} --models mlp,rnn | no model 'rnn'; allowed: fcnet
compare {store} --out {new} --models '' | an experiment needs learners
compare {store} --out {new} --seeds one | 'one' is not a list like 0,2,5-9
compare {store} --out {new} --steps 0 | at least 1, not '0'
compare {store} --out {new} --suite huge | unknown preset 'huge'
compare {store} --out {new} --set learners={ | setting 'learners' needs JSON
compare {store} --out {new} --set settings.split_seed=null | one split_seed
run {file} --out {new} | is not the plan of an experiment
run huge --out {new} | unknown preset 'huge'; allowed: demo
run demo | needs --out
run demo {store} --out {new} | takes no store
run compare --out {new} | needs a store
dagger {store} --out {new} --rounds 0 | at least 1, not '0'

export {trained} {new} --batch 0 | needs a whole number of at least 1, not '0'
export {trained} {new} --checkpoint first | invalid choice: 'first'
export {trained} {new} --robot nobody | no robot 'nobody'
export {gone} {new} | no training run at
export {empty} {new} | no checkpoint in
export {trained} | export needs RUN DST (a policy) or STORE FORMAT DST (data), not 1 names
export {store} {new} --where level=1 | --where has no effect
export {store} {new} --set compression=none | --set has no effect
import rlds {gone} {new} | unknown format 'rlds'; allowed:

view {gone} | no store, training run or evaluation
view {empty} | no
view {file} | no evaluation
view {store} --episode 7 --out {new} | no episode 7 in
view {store} --video {new}.avi | allowed: gif, webp, mp4
view {store} --video {store}/film.gif | inside the store
view {store} --where 'return > 100' --out {new} | empty
view {store} --out {store}/page.html | inside the store
view {store} --against {gone} --out {new} | no training run
view {trained} --where 'return > 1' --out {new} | --where has no effect beside --out

evaluate random --task drone | unknown task 'drone'; allowed: legged,

serve --host 0.0.0.0 | --host has no effect
serve --schedule '0 2 * * *' | a schedule needs --store
serve --store x --schedule 'at two' | cannot schedule 'at two' in UTC
serve --store x --schedule '0 0 2 * * *' | it has 6 fields; five fields are wanted
serve --store x --schedule '60 2 * * *' | Invalid cron string
serve --store x --schedule '0 2 * * *' --timezone Mars | in Mars
serve --partition 'a b' | 'a b' cannot be the value of partition
serve --time soon | a time limit looks like
serve --preset huge | unknown preset 'huge'
serve --set grid.parts=0 | parts must be 1 to 100,000, got 0
serve --set grid.part=2 | unknown setting 'grid.part'
serve --new-every-day --set grid.seed=3 | the day is the seed
serve --new-every-day --set grid.seed=0 | the day is the seed
notify --url file:///etc | address of a web hook
notify | address of a web hook
notify --url http://x.org/a | no Prefect server answers at
"""
"""A command and what its line has to say; names in braces are places."""


@pytest.fixture
def clips(humanoid_reference: Path) -> Path:
    """Clips of the humanoid."""
    return humanoid_reference


@pytest.fixture
def other(store: Path, tmp_path: Path) -> Path:
    """A store of a later version."""
    path = Path(shutil.copytree(store, tmp_path / "other.zarr"))
    text = (path / "zarr.json").read_text()
    (path / "zarr.json").write_text(text.replace('_version": 3', '_version": 99'))
    return path


@pytest.fixture
def walks(tmp_path: Path) -> Path:
    """A store of another schema than the robots'."""
    return small_store(tmp_path / "walks.zarr", [(5, 1, 9), (30, 14)]).path


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """An empty folder."""
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file in the way."""
    (tmp_path / "file.json").write_text("{}")
    return tmp_path / "file.json"


@pytest.mark.parametrize("case", tried(COMMANDS, "REFUSED"))
def test_wrong_input_is_one_line_and_makes_nothing(
    case: str,
    run: Run,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(ISAACGYM_PYTHON_VARIABLE, "")
    monkeypatch.setattr(prefect_server, "configured_server", lambda: "http://127.0.0.1:9/api")
    places = {name: str(tmp_path / name) for name in ("new", "gone")}
    places |= {"terrains": ", ".join(TERRAINS), "skills": ", ".join(SKILLS)}
    places |= {"simulators": ", ".join(backend_names())}
    for name in re.findall(r"\{([a-z]+)\}", case):
        if name not in places:
            places[name] = str(request.getfixturevalue(name))

    def filled(text: str) -> str:
        return re.sub(r"\{([a-z]+)\}", lambda found: places[found[1]], text)

    command, *complaints = case.split("| ")
    before = _contents(tmp_path, places)
    outcome = run(*map(filled, shlex.split(command)))
    assert_refused(outcome, *(filled(each).strip() for each in complaints))
    assert "secret" not in outcome.err
    assert _contents(tmp_path, places) == before
    assert Path("/dev/full").is_char_device()


def _contents(folder: Path, places: dict[str, str]) -> dict[Path, int]:
    """Every file there is, and in the shared store, with its time."""
    paths = [*folder.rglob("*"), *(Path(places["store"]).rglob("*") if "store" in places else ())]
    return {path: path.stat().st_mtime_ns for path in paths}
