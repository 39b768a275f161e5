"""`gaitforge publish`: one commit on a double of the Hub, resumed, and never the token."""

import json
import shutil
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest

from gaitforge.datasets import open_store
from gaitforge.plugins.exchange import publishing
from gaitforge.plugins.exchange.tests.hub.hub_double import Hub, hub_double
from tests.datasets.programs import run_program
from tests.pipeline.command_line import Run, assert_refused

COMMAND = "import sys; from gaitforge.pipeline.cli.main import main; sys.exit(main(sys.argv[1:]))"


def publish(hub: Hub, home: Path, *arguments: str | Path) -> CompletedProcess[str]:
    """The command in a process of its own: the library reads its settings when it is imported."""
    settings = {"HF_ENDPOINT": hub.url, "HF_TOKEN": hub.token, "HF_HOME": str(home)}
    settings |= {"HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        done = run_program(COMMAND, "publish", *arguments, "--no-pictures")
    assert hub.token not in done.stdout + done.stderr
    return done


@pytest.mark.slow
def test_a_store_is_one_commit_that_opens_again_and_resumes(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")
    mine = tmp_path / "legged.zarr"
    shutil.copytree(store, mine)
    open_store(mine).set_about(licence="CC-BY-4.0", authors=["Ada <a@b.org>"], citation="me")
    with hub_double() as hub:
        hub.fail_commits = 1
        refused = publish(hub, tmp_path, mine, "hf://owner/legged", "--private")
        assert refused.returncode == 2
        assert "cannot publish to owner/legged" in refused.stderr.splitlines()[-1]
        assert "Traceback" not in refused.stderr
        assert hub.branches == {"main": {}}
        sent = hub.uploads
        assert sent > 0

        done = publish(hub, tmp_path, mine, "hf://owner/legged", "--private")
        assert done.returncode == 0, done.stderr
        assert hub.uploads <= sent + 1, "only a card that differs may be sent again"
        assert len(hub.commits) == 1
        assert hub.repositories["owner/legged"]["visibility"] == "private"
        files = hub.branches["main"]
        again = tmp_path / "again.zarr"
        for name, content in files.items():
            (again / name).parent.mkdir(parents=True, exist_ok=True)
            (again / name).write_bytes(content)
        assert open_store(again).info().hash == open_store(store).info().hash
        assert open_store(again).verify() == []
        assert open_store(again).about().licence == "CC-BY-4.0"
        front = files["README.md"].decode().split("---")[1]
        assert 'license: "cc-by-4.0"' in front
        assert b"Ada" in files["README.md"]

        # What a later version lacks goes in the same commit; what others added stays.
        files["parts/old/zarr.json"] = b"{}"
        files["LICENSE"] = b"text"
        again_done = publish(hub, tmp_path, mine, "hf://owner/legged", "--revision", "v2")
        assert again_done.returncode == 0, again_done.stderr
        assert hub.commits[-1]["deletedFile"] == ["parts/old/zarr.json"]
        assert hub.branches["v2"]["LICENSE"] == b"text"
        assert "parts/old/zarr.json" in hub.branches["main"]


@pytest.mark.slow
def test_of_an_edited_store_the_present_version_is_published(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")
    mine = tmp_path / "legged.zarr"
    shutil.copytree(store, mine)
    edited = open_store(mine)
    edited.tag("collected")
    dropped = edited.select().with_rows(edited.select().rows[:1]).episode_ids()[0]
    with hub_double() as hub:
        assert publish(hub, tmp_path, mine, "hf://owner/legged").returncode == 0
        assert "tags/collected.json" in hub.branches["main"]
        edited.select().where(f"episode = {dropped}").drop()
        edited.select().trim(tail=2)
        done = publish(hub, tmp_path, mine, "hf://owner/legged", "--json")
        assert done.returncode == 0, done.stderr
        assert "tags/collected.json" in hub.commits[-1]["deletedFile"]
        options = ("--history", "--revision", "history", "--json")
        history = publish(hub, tmp_path, mine, "hf://owner/legged", *options)
        assert history.returncode == 0, history.stderr
        for branch, answer in (("main", done), ("history", history)):
            again = tmp_path / branch
            for name, content in hub.branches[branch].items():
                (again / name).parent.mkdir(parents=True, exist_ok=True)
                (again / name).write_bytes(content)
            found = open_store(again)
            assert found.verify() == []
            assert found.info().hash == json.loads(answer.stdout)["hash"]
            assert found.info().hash[:12] in (again / "card.html").read_text()
            np.testing.assert_array_equal(found.select().read("obs"), edited.select().read("obs"))
            whole = branch == "history"
            assert (dropped in found.as_collected().episode_ids()) == whole
            assert (found.info().hash == edited.info().hash) == whole
            assert [tag.name for tag in found.tags()] == (["collected"] if whole else [])


@pytest.mark.slow
def test_a_lerobot_export_is_published_with_its_readme(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")
    with hub_double() as hub:
        done = publish(hub, tmp_path, store, "hf://owner/walks", "--format", "lerobot")
        assert done.returncode == 0, done.stderr
        files = hub.branches["main"]
        assert {"meta/info.json", "README.md", "card.html"} <= set(files)
        readme = files["README.md"].decode()
        assert readme.startswith("---\n")
        assert '"LeRobot"' in readme.split("---")[1]
        assert "license" not in readme.split("---")[1]


@pytest.mark.slow
def test_the_hubs_refusal_is_one_line_without_the_token(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")
    with hub_double() as hub:
        hub.accepted = "another"
        done = publish(hub, tmp_path, store, "hf://owner/x")
        assert done.returncode == 2
        assert "cannot publish to owner/x" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
        assert hub.repositories == {}


@pytest.mark.parametrize("url", ["owner/name", "hf://name", "hf://a/b/c", "https://hub/a/b"])
def test_what_is_no_repository_is_refused(run: Run, store: Path, url: str) -> None:
    assert_refused(run("publish", store, url), "give hf://owner/name")


def test_options_of_the_other_format_have_no_effect(run: Run, store: Path) -> None:
    lerobot = run("publish", store, "hf://a/b", "--format", "lerobot", "--history")
    assert_refused(lerobot, "--history has no effect")
    assert_refused(run("publish", store, "hf://a/b", "--actions", "clean"), "--actions has no")


def test_a_missing_extra(run: Run, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "find_spec", lambda name: None)
    assert_refused(run("publish", store, "hf://a/b"), "pip install -e '.[hub]'")


@pytest.mark.slow
def test_a_busy_hub_is_waited_for_and_holds_one_commit(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")
    with hub_double() as hub:
        hub.busy = [429, 503, 504]
        done = publish(hub, tmp_path, store, "hf://owner/x")
        assert done.returncode == 0, done.stderr
        assert len(hub.commits) == 1, "the one that was answered by 504"
        for status in (429, 503, 504):
            assert f"the Hub is busy ({status}): trying again in 1 s" in done.stderr
        assert publish(hub, tmp_path, store, "hf://owner/x").returncode == 0
        assert len(hub.commits) == 1, "nothing is left to commit"


@pytest.mark.slow
def test_many_files_are_several_commits_the_root_file_last(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")
    with hub_double() as hub:
        hub.most_files = 4
        done = publish(hub, tmp_path, store, "hf://owner/x")
        assert done.returncode == 0, done.stderr
        assert "gaitforge compact makes fewer files" in done.stderr
        commits = [commit["file"] + commit["lfsFile"] for commit in hub.commits]
        assert max(map(len, commits)) <= 4
        number = {name: k for k, names in enumerate(commits) for name in names}
        parts = [k for name, k in number.items() if name.startswith("parts/")]
        catalog = [k for name, k in number.items() if name.startswith("catalog/")]
        assert max(parts) <= min(catalog)
        assert max(catalog) <= min(number["zarr.json"], number["README.md"])
