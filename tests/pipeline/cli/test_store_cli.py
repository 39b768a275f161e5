"""The commands on a store: what they print, and the one line that wrong input gets."""

import json
import shutil
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gaitforge.datasets import Selection, open_store
from gaitforge.pipeline.report.added_pages import CARD_PAGES
from tests.flows.processes import gaitforge
from tests.pipeline.command_line import TINY_GRID, Run, assert_refused


def test_a_part_without_its_record_is_told(run: Run, store: Path, tmp_path: Path) -> None:
    # The store alone, without the records beside it: as if its writer died right after the commit.
    path = shutil.copytree(store, tmp_path / "copy.zarr")
    [told] = json.loads(run("collect", path, *TINY_GRID, "--json").out)
    [part] = open_store(path).parts()
    assert (told["part"], told["episodes"]) == (part, 4)
    assert told["steps"] == open_store(path).info().steps


def test_collecting_again_is_no_work_and_shows_the_same_table(run: Run, store: Path) -> None:
    before = open_store(store).info()
    first, second = (run("collect", store, *TINY_GRID, "--json") for _ in range(2))
    assert (first.code, first.out) == (0, second.out)
    assert open_store(store).info() == before
    (row,) = json.loads(first.out)
    assert row["episodes"] == 4
    assert row["steps"] == before.steps
    table = run("collect", store, *TINY_GRID)
    assert table.out.splitlines()[0].split() == list(row)
    assert "steps/s" in table.out.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "added", "dtype"),
    [
        (["--state"], {"state"}, "float32"),
        (["--no-state", "--privileged"], {"privileged"}, "float32"),
        (["--state", "--half", "--set", "form.state=false"], set(), "float16"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_say_which_fields_are_stored_and_how_exactly(
    run: Run, tmp_path: Path, options: list[str], added: set[str], dtype: str
) -> None:
    path = tmp_path / "legged.zarr"
    grid = ["--set", "grid.episodes_per_part=2", *TINY_GRID[:2], *TINY_GRID[4:]]
    assert run("collect", path, *grid, *options).code == 0
    schema = open_store(path).schema
    assert set(schema.names("step")) == {"obs", "action", "reward"} | added
    assert schema.field("obs").dtype == dtype


def test_json_and_tables_of_a_store(run: Run, store: Path) -> None:
    info = json.loads(run("info", store, "--json").out)
    assert (info["parts"], info["episodes"]) == (1, 4)
    assert info["hash"] in run("info", store).out
    groups = json.loads(run("query", store, "--json").out)
    assert {(g["terrain"], g["skill"]) for g in groups} == {("flat", "stand"), ("flat", "run")}
    chosen = run("query", store, "--skill", "run", "--where", "friction > 0", "--json")
    assert [g["skill"] for g in json.loads(chosen.out)] == ["run"]
    by_level = json.loads(run("query", store, "--group-by", "level", "--json").out)
    assert [g["level"] for g in by_level] == [2]
    limited = run("query", store, "--group-by", "friction", "--limit", "3")
    assert "3 of 4 groups; --limit 0 shows all" in limited.out
    assert len(json.loads(run("query", store, "--group-by", "seed", "--json").out)) == 4
    clean = {"faults": [], "parts": 1, "replayed": 0}
    assert json.loads(run("verify", store, "--json").out) == clean
    assert "no fault" in run("verify", store).out
    assert json.loads(run("gc", store, "--json").out) == {"removed": []}


def test_a_selection_is_saved_and_rows_go_to_parquet(run: Run, store: Path, tmp_path: Path) -> None:
    saved, rows = tmp_path / "runs.json", tmp_path / "rows.parquet"
    shown = run("query", store, "--skill", "run", "--save", saved, "--parquet", rows, "--json")
    assert pq.read_table(rows).to_pylist() == json.loads(shown.out)
    opened = open_store(store)
    assert Selection.load(opened, saved).hash == opened.select(skill="run").hash


def test_versions_of_a_store_have_names(run: Run, store: Path, tmp_path: Path) -> None:
    path = tmp_path / "tagged.zarr"
    shutil.copytree(store, path)
    named = json.loads(run("tag", path, "v1", "--json").out)
    assert [tag["tag"] for tag in named] == ["v1"]
    assert json.loads(run("tag", path, "--json").out) == named
    assert json.loads(run("info", path, "--tag", "v1", "--json").out)["hash"] == named[0]["hash"]
    assert run("query", path, "--tag", "v1", "--json").out == run("query", path, "--json").out
    assert run("query", path, "--tag", "v2").code == 2


def test_episodes_of_a_store_are_simulated_again(run: Run, store: Path) -> None:
    shown = run("verify", store, "--replay", "2")
    assert shown.code == 0
    assert "2 episodes replayed bit for bit" in shown.out


@pytest.mark.slow
def test_a_card_is_beside_the_store_or_elsewhere(run: Run, store: Path, tmp_path: Path) -> None:
    quick = ("card", store, "--no-channels", "--no-pictures")
    player = store.parent / "episodes" / "collected.html"
    player.parent.mkdir()
    player.touch()
    files = ["card.html", *(page.file for page in CARD_PAGES.values()), "card.md", "card.json"]
    for folder, asked in (
        (store.with_name("legged.zarr.card"), ()),
        (tmp_path / "card", ("--out", tmp_path / "card")),
    ):
        assert run(*quick, *asked).out.split() == [str(folder / name) for name in files]
        assert {path.name for path in folder.iterdir()} == set(files)
        link = 'href="../episodes/collected.html"' in (folder / "card.html").read_text()
        assert link is not bool(asked), "another folder may be published"
    shutil.rmtree(player.parent)
    assert "run" in (tmp_path / "card" / "card.md").read_text()
    (tmp_path / "file").touch()
    assert_refused(run(*quick, "--out", tmp_path / "file"), "is a file; a card needs a folder")


@pytest.mark.slow
def test_a_colon_in_a_path_is_a_colon(
    run: Run, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("file:store.zarr", "a:b/legged.zarr"):
        assert run("collect", path, *TINY_GRID).code == 0
        assert open_store(path).info().hash == open_store(store).info().hash
        assert run("query", path, "--json").out == run("query", store, "--json").out
    assert {path.name.partition(".")[0] for path in tmp_path.iterdir()} == {"file:store", "a:b"}


def test_upkeep_leaves_the_dataset_as_it_is(run: Run, store: Path, tmp_path: Path) -> None:
    path = tmp_path / "kept.zarr"
    shutil.copytree(store, path)
    before = json.loads(run("info", path, "--json").out)["hash"]
    for command in ("compact", "gc"):
        assert run(command, path).code == 0
    assert json.loads(run("info", path, "--json").out)["hash"] == before


def test_a_fault_is_shown_with_exit_code_1(run: Run, store: Path, tmp_path: Path) -> None:
    path = tmp_path / "damaged.zarr"
    shutil.copytree(store, path)
    victim = max((p for p in path.rglob("c/*") if p.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 0xFF
    victim.write_bytes(content)
    shown = run("verify", path)
    assert shown.code == 1
    assert open_store(path).parts()[0] in shown.out
    machine = run("verify", path, "--json")
    assert machine.code == 1
    assert len(json.loads(machine.out)["faults"]) == 1


@pytest.mark.slow
def test_an_interrupted_collection_exits_130_and_leaves_no_torn_part(tmp_path: Path) -> None:
    path = tmp_path / "legged.zarr"
    grid = ["--preset", "legged-1m9", "--robots", "8", "--set", "grid.episodes_per_part=8"]
    running = gaitforge("collect", path, *grid)
    # Some parts are in, others in work.
    deadline = time.monotonic() + 60
    while not list(path.glob("catalog/*.parquet")) and time.monotonic() < deadline:
        assert running.poll() is None
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    said = [line for line in err.splitlines() if line.startswith("gaitforge:")]
    assert said == ["gaitforge: interrupted; run the same command again to resume"]
    store = open_store(path)
    assert 1 <= len(store.parts()) < 8
    assert store.verify() == []
    assert store.gc() == []


def test_single_episodes_are_listed_and_looked_up(run: Run, store: Path, tmp_path: Path) -> None:
    listed = run("query", store, "--list", "--sort", "return desc", "--limit", "3")
    assert listed.code == 0
    assert "3 of 4 episodes; --limit 0 lists all" in listed.out
    rows = json.loads(
        run("query", store, "--list", "--limit", 0, "--show", "friction", "--json").out
    )
    assert [*rows[0]][-2:] == ["fell", "friction"]
    name = rows[2]["episode"]
    one = json.loads(run("query", store, "--episode", name, "--json").out)
    assert (one["episode"], one["friction"]) == (name, rows[2]["friction"])
    saved = tmp_path / "run.json"
    assert run("query", store, "--skill", "run", "--save", saved).code == 0
    again = run("query", store, "--selection", saved, "--list", "--where", "level = 2", "--json")
    assert {row["skill"] for row in json.loads(again.out)} == {"run"}
    asked = ["--selection", saved, "--episode", rows[0]["episode"]]
    assert_refused(run("query", store, *asked), "not among the chosen ones")


def test_every_column_is_explained_as_in_the_documentation(run: Run, store: Path) -> None:
    columns = json.loads(run("info", store, "--columns", "--json").out)
    assert [each["name"] for each in columns] == open_store(store).catalog().column_names
    lines = []
    for each in columns:
        assert each["meaning"], each
        name, meaning = each["name"], each["meaning"]
        if name.startswith("joint_offset_"):
            if name != "joint_offset_0_rad":
                continue
            name, meaning = "joint_offset_K_rad", meaning.replace("FL_hip_joint", "joint K")
        lines.append(f"| `{name}` | {each['unit']} | {meaning} | {each['origin']} |")
    page = (Path(__file__).parents[3] / "docs" / "datasets.md").read_text()
    table = page.split("| column | unit | meaning | from |\n|---|---|---|---|\n")[1].split("\n\n")[
        0
    ]
    assert table.splitlines() == lines, "\n" + "\n".join(lines)
