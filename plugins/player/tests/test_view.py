"""`gaitforge view`: a page shows what was stored, and loads nothing; wrong input is refused."""

import html
import json
import re
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaitforge.datasets import Field, Schema, Store, create_store, open_store
from gaitforge.datasets.catalog.summaries import episode_name
from gaitforge.datasets.edits.operations import add_field
from gaitforge.datasets.layout import OVERLAYS
from gaitforge.flows.progress import Silent
from gaitforge.pipeline.report.pictures import stored_takes
from gaitforge.plugins.player import build
from gaitforge.plugins.player import page as page_module
from gaitforge.plugins.player.episodes import spread_over_returns, stored_show
from gaitforge.plugins.player.page import page, write_page
from gaitforge.plugins.player.robot_shapes import decoded
from gaitforge.plugins.player.tests.browser import CHROMIUM, browser
from tests.pipeline.command_line import Run, assert_refused

CELL = ("--terrain", "flat", "--skill", "stand", "--level", "1", "--episodes", "2")


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle, where none is built."""
    for name in ("main.js", "main.css"):
        (tmp_path / name).write_text("/* </script> </style> */")
    monkeypatch.setattr(page_module, "BUILT", tmp_path)


def _index(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="index">(.*?)</script>', text, re.S)
    assert found is not None
    return json.loads(found[1])


def _block(text: str, name: str) -> np.ndarray:
    found = re.search(rf'id="{name}">([^<]*)</script>', text)
    assert found is not None
    return decoded(found[1])


def test_replayed_poses_and_curves_are_the_stored_ones(walked: Path, stub: None) -> None:
    selection = open_store(walked).select()
    show = stored_show(selection, Silent())
    assert show.note == ""
    text = page(show)
    index = _index(text)
    curves = [(chart["name"], curve) for chart in index["charts"] for curve in chart["curves"]]
    rows = selection.episodes().to_pylist()
    for k, row in enumerate(rows):
        stored, poses = selection.episode(k), _block(text, f"poses-{k}")
        assert np.abs(poses[:-1, :3] - stored["state"][:, :3]).max() <= 1e-3
        assert np.abs(poses[:-1, 7:] - stored["state"][:, 7:]).max() <= 2e-3
        assert len(poses) == row["length"] + 1
        series = _block(text, f"series-{k}")
        reward = series[:, curves.index(("reward of a step", "reward"))]
        np.testing.assert_allclose(reward, stored["reward"], atol=1e-4)
        first = curves.index(("reward terms of a step", "track linear velocity"))
        np.testing.assert_allclose(series[:, first : first + 15].sum(axis=1), reward, atol=1e-3)
        force = [curves.index(("contact force", leg)) for leg in ("FL", "FR", "RL", "RR")]
        assert series[:, force].sum(axis=1).mean() > 50  # newtons: it stands
        shown = index["episodes"][k]
        assert shown["id"] == str(row["episode"])
        assert shown["ended"].startswith("fell" if row["terminated"] else "time ran out")
        assert len(shown["barriers"]) == {"none": 0, "bar": 1, "walls": 2}[row["passage"]]
        assert shown["row"]["seed"] == str(row["seed"])
        assert shown["row"]["friction"] == pytest.approx(row["friction"], rel=1e-5)


def test_episodes_that_were_trimmed_or_relabelled_play_as_collected(
    walked: Path, tmp_path: Path
) -> None:
    path = tmp_path / "edited.zarr"
    shutil.copytree(walked, path)
    collected = stored_show(open_store(path).select(), Silent())
    open_store(path).select().trim(head=20, length=30)
    store = open_store(path)
    _add(store, store.schema.field("reward"), store.as_collected().read("reward") / 2)
    selection = open_store(path).select()
    assert set(selection.lengths.tolist()) == {30}
    edited = stored_show(selection, Silent())
    assert "otherwise" not in edited.note
    assert "whole, as collected: 6 trimmed episodes" in edited.note
    assert "Rewards are as collected" in edited.note
    for one, other in zip(edited.episodes, collected.episodes, strict=True):
        np.testing.assert_array_equal(one.recording.poses, other.recording.poses)
    takes, _ = stored_takes(selection)
    assert set(takes) == {"tilt.png", "rush.png"}


def _add(store: Store, field: Field, values: np.ndarray) -> None:
    """Add a field to a store's present version, as `derive` and `relabel` do."""
    collected = store.as_collected()
    schema = store.schema
    alone = Schema((field,), schema.control_dt_s, schema.robot)
    overlay = create_store(store.path / OVERLAYS / f"{field.name}-0", alone)
    for part_id in collected.catalog.part_bounds:
        part = collected.of_parts([part_id])
        first = collected.steps - collected.with_rows(collected.rows[part.rows[0] :]).steps
        rows = part.episodes().drop_columns(["part", "start"])
        overlay.write_part(part_id, {field.name: values[first : first + part.steps]}, rows)
    add_field(store, f"{field.name}-0")


def test_a_store_that_cannot_be_replayed_is_drawn_from_its_states(
    walked: Path, store: Path, tmp_path: Path, stub: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = open_store(walked).select()
    replayed = stored_show(selection, Silent())
    monkeypatch.setattr("gaitforge.collectors.legged.replaying.is_exact", lambda name: False)
    drawn = stored_show(selection, Silent())
    assert "without torques" in drawn.note
    for one, other in zip(replayed.episodes, drawn.episodes, strict=True):
        np.testing.assert_array_equal(one.recording.poses[:-1], other.recording.poses)
        # Mean speeds along the heading; those of the states are differences.
        mean, again = (each.recording.series[5:-5, 1].mean() for each in (one, other))
        assert mean == pytest.approx(again, abs=0.05)
    with pytest.raises(ValueError, match="neither be simulated again"):
        stored_show(open_store(store).select(), Silent())
    added = open_store(shutil.copytree(store, tmp_path / "added.zarr"))
    states = np.tile(np.eye(1, 19, 3, dtype=np.float32), (added.select().steps, 1))
    _add(added, Field("state", (19,)), states)
    assert "without torques" in stored_show(added.select(), Silent()).note


def test_a_large_selection_is_shown_from_the_worst_to_the_best(store: Path) -> None:
    selection = open_store(store).select()
    returns = sorted(selection.episodes()["return"].to_pylist())
    some = sorted(spread_over_returns(selection, 2).episodes()["return"].to_pylist())
    assert some == [returns[0], returns[-1]]
    assert len(spread_over_returns(selection, 9)) == 4


def test_the_page_loads_nothing_and_names_stay_text(
    walked: Path, tmp_path: Path, stub: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    show = stored_show(open_store(walked).select(), Silent())
    bad = "</script><img src=//x.example onerror=alert(1)> @@SCRIPT@@"
    hostile = [{**viewed.row, "expert": bad} for viewed in show.episodes]
    episodes = tuple(
        type(each)(row, each.recording, each.tile, each.barriers)
        for each, row in zip(show.episodes, hostile, strict=True)
    )
    text = page(type(show)(bad, show.robot, show.charts, episodes, bad))
    assert "<img" not in text
    assert html.escape(bad) in text
    index = _index(text)
    assert index["note"] == bad
    assert index["episodes"][0]["row"]["expert"] == bad
    plain = page(show)
    assert re.findall(r"""(?:src|href)\s*=|url\(|@import|https?://""", plain) == []
    assert "default-src 'none'" in plain


def test_the_command_writes_a_page(walked: Path, tmp_path: Path, stub: None, run: Run) -> None:
    out = tmp_path / "page.html"
    ids = open_store(walked).select().episode_ids().tolist()
    asked = ("view", walked, "--episode", f"{episode_name(ids[2])},{ids[0]}", "--out", out)
    done = run(*asked)
    assert (done.code, done.out.split()[0]) == (0, f"{out}#e={ids[2]}")
    shown = [each["id"] for each in _index(out.read_text())["episodes"]]
    assert shown == [str(ids[2]), str(ids[0])]
    told = json.loads(run(*asked, "--json").out)
    assert told == {"page": str(out), "episodes": 2, "bytes": out.stat().st_size}


def test_a_run_on_held_out_episodes(trained: Path, tmp_path: Path, stub: None, run: Run) -> None:
    out = tmp_path / "run.html"
    assert run("view", trained, *CELL, "--out", out).code == 0
    unknown = run("view", trained, *CELL, "--episode", "c5e734-00017", "--out", out)
    assert unknown.code == 2
    assert unknown.err.endswith("no episode c5e734-00017 in policy run; they are 0 to 1\n")
    index = _index(out.read_text())
    rows = [each["row"] for each in index["episodes"]]
    assert [(row["terrain"], row["skill"], row["level"]) for row in rows] == [
        ("flat", "stand", 1)
    ] * 2
    assert {row["terrain_variant"] // 1000 for row in rows} == {1}
    assert {row["policy"] for row in rows} == {"run"}


def test_a_policy_that_ships_climbs_stairs_in_an_empty_folder(
    tmp_path: Path, stub: None, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    stairs = ("--terrain", "stairs", "--skill", "rush", "--level", "1", "--episodes", "2")
    done = run("view", "fcnet-aliengo", *stairs)
    assert done.code == 0, done.err
    [page_file] = folder.iterdir()
    assert page_file.name == "fcnet-aliengo.view.html"
    text = page_file.read_text()
    index = _index(text)
    assert "Success in 2 of 2 episodes" in index["note"]
    paths = [_block(text, f"poses-{k}")[[0, -1], :2] for k in range(2)]
    ways = [float(np.linalg.norm(last - first)) for first, last in paths]
    assert min(ways) > 1.0  # metres
    assert index["start"] == np.argmax(ways)
    assert_refused(run("view", "fcnet-alien"), "ship: bot-aliengo, fcnet-aliengo")
    for words in (("--with-recorded-versions",), ("--where", "success"), ("--limit", "3")):
        assert_refused(run("view", "fcnet-aliengo", *words), words[0])


@pytest.mark.slow
def test_extremes_of_an_evaluation(trained: Path, tmp_path: Path, stub: None, run: Run) -> None:
    from gaitforge.collectors.legged.rollout import EvaluationGrid
    from gaitforge.flows.stages.evaluate import evaluate_policy
    from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
    from gaitforge.flows.tasks.policy_sources import run_source

    (tmp_path / "train").mkdir()
    (tmp_path / "evaluate").mkdir()
    (tmp_path / "train" / "net").symlink_to(trained)
    grid = EvaluationGrid(("flat",), ("stand", "run"), levels=(2,), episodes=5)
    path = tmp_path / "evaluate" / "net.json"
    found = evaluate_policy(run_source(trained), LeggedEvaluation(grid, robots=10), Silent(), path)
    assert run("view", path, "--out", tmp_path / "page.html").code == 0
    index = _index((tmp_path / "page.html").read_text())
    shown = sorted(each["row"]["return"] for each in index["episodes"])
    wanted = sorted(value for cell in found.returns for value in np.sort(cell)[[0, 2, 4]])
    assert shown == pytest.approx(wanted, abs=1e-3)
    assert "otherwise" not in index["note"]
    _check_ghosts(run, path, trained, tmp_path / "page.html")
    (tmp_path / "train" / "net").unlink()
    assert_refused(
        run("view", path, "--out", tmp_path / "page.html"), "keeps no episodes", "train/net"
    )


def _check_ghosts(run: Run, source: Path, policy: Path, out: Path) -> None:
    """A policy's ghost is itself; the expert's is another, from the same start."""
    for other, same in ((policy, True), ("expert", False)):
        assert run("view", source, "--against", other, "--out", out).code == 0
        text = out.read_text()
        for k, episode in enumerate(_index(text)["episodes"]):
            poses, ghost = _block(text, f"poses-{k}"), _block(text, f"ghost-{k}")
            np.testing.assert_array_equal(poses[0], ghost[0])
            assert (len(poses) == len(ghost) and np.allclose(poses, ghost, atol=1e-3)) is same
            if same:
                assert episode["ghost"]["return"] == pytest.approx(
                    episode["row"]["return"], abs=1e-3
                )


def test_without_its_script_one_line_says_how_to_build_it(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setattr(page_module, "BUILT", tmp_path / "none")
    assert_refused(run("view", store), "make setup", "python -m gaitforge.plugins.player.build")


def test_the_lock_has_hashes_and_no_addresses() -> None:
    lock = json.loads((build.PAGE / "package-lock.json").read_text())
    packages = {name: each for name, each in lock["packages"].items() if name}
    assert all("integrity" in each and "version" in each for each in packages.values())
    assert "://" not in json.dumps(lock)


def _skipped(why: str) -> None:
    """A skip that stays visible in the summary."""
    warnings.warn(f"the page is not tested in a browser: {why}", stacklevel=2)
    pytest.skip(why)


@pytest.mark.slow
def test_an_episode_without_a_value_is_within_no_bounds(walked: Path, tmp_path: Path) -> None:
    if CHROMIUM is None or not (page_module.BUILT / "main.js").is_file():
        _skipped("no Chromium here, or its script is not built")
    show = stored_show(open_store(walked).select(), Silent())
    rated = tuple(
        replace(viewed, row={**viewed.row, "rating": None if k else 3.0})
        for k, viewed in enumerate(show.episodes)
    )
    path = tmp_path / "page.html"
    write_page(replace(show, episodes=rated), path)
    bound = "document.querySelector('#filters input[aria-label=\"at most\"]')"
    column = "[...document.querySelectorAll('#filters select')].at(-1)"
    change = "dispatchEvent(new Event('input', {bubbles: true}))"
    with browser() as seen:
        seen.open(path.as_uri())
        seen.value(f"{column}.value = 'rating'; {bound}.value = '5'; {bound}.{change}")
        assert seen.value("document.querySelectorAll('#rows tbody tr').length") == 1


@pytest.mark.slow
def test_a_browser_plays_the_page_from_disk(walked: Path, tmp_path: Path) -> None:
    if CHROMIUM is None:
        _skipped("no Chromium here (Debian: apt install chromium)")
    if not (page_module.BUILT / "main.js").is_file():
        _skipped("its script is not built (python -m gaitforge.plugins.player.build)")
    show = stored_show(open_store(walked).select(), Silent())
    path = tmp_path / "page.html"
    write_page(show, path)
    number = 3
    wanted, step = show.episodes[number], 50
    with browser() as seen:
        seen.open(f"{path.as_uri()}#e={wanted.row['episode']}&t={step * 0.02:.2f}")
        place = "document.getElementById('readout').textContent"
        seen.wait(f"{place}.includes('z')")
        told = [float(each) for each in re.findall(r"[xyz] (-?[\d.]+)", seen.value(place))]
        assert told == pytest.approx(wanted.recording.poses[step, :3].tolist(), abs=1e-3)
        assert wanted.recording.ended in seen.value("document.getElementById('facts').textContent")
        picture = "document.getElementById('canvas').toDataURL()"
        drawn = "[...document.querySelectorAll('.uplot')].at(-1).querySelectorAll('.u-series"
        assert seen.value(f"{drawn}').length") == 1 + 15, "time and the reward's terms"
        assert seen.value(f"{drawn}:not(.u-off)').length") == 1 + 4
        ended = "document.getElementById('ended')"
        assert seen.value(f"{ended}.hidden")
        seen.press("End")
        seen.wait("document.getElementById('clock').textContent !== '1.00 s'")
        how = "fell" if wanted.row["terminated"] else "ended"
        end_s = 0.02 * wanted.row["length"]
        assert seen.value(f"{ended}.textContent").startswith(f"{how} at {end_s:.2f} s; the rec")
        assert not seen.value(f"{ended}.hidden")
        seen.press("Home")
        seen.wait("document.getElementById('clock').textContent === '0.00 s'")
        seen.press(" ")
        seen.wait("parseFloat(document.getElementById('clock').textContent) > 0.3")
        seen.press(" ")
        assert re.search(r"&t=0\.[3-9]|&t=[1-3]", seen.value("location.hash"))
        assert len(seen.value(picture)) > 1000
        outcomes = "[...document.querySelectorAll('#rows tbody td:last-child')]"
        told = seen.value(outcomes + ".map((e) => [e.textContent, getComputedStyle(e).color])")
        assert len({colour for _, colour in told}) == len({text == "success" for text, _ in told})
        choose = "const s = document.querySelector('#filters select'); s.value = 'stairs';"
        seen.value(choose + " s.dispatchEvent(new Event('input', {bubbles: true}))")
        stairs = sum(each.row["terrain"] == "stairs" for each in show.episodes)
        assert seen.value("document.querySelectorAll('#rows tbody tr').length") == stairs
        seen.open("about:blank", ready=False)
        seen.open(f"{path.as_uri()}#terrain=rough&skill=tilt&level=8")  # as a report's cells link
        cell = [(each.row["terrain"], each.row["skill"]) for each in show.episodes]
        rows = seen.value("document.querySelectorAll('#rows tbody tr').length")
        assert rows == cell.count(("rough", "tilt")) < len(cell)
        seen.size(400, 800)
        assert seen.value("document.documentElement.scrollWidth") <= 400
        write_page(replace(show, start=number), path)
        seen.open(path.as_uri())
        seen.wait("parseFloat(document.getElementById('clock').textContent) > 0.2")
        assert seen.value("location.hash").startswith(f"#e={wanted.row['episode']}")
        assert seen.faults == []
        assert {each.split(":")[0] for each in seen.requests} <= {"file", "blob", "data"}
