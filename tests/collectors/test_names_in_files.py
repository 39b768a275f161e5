"""Names that files hold decide nothing outside the own folder: nothing is written there.

Each kind of file that comes from elsewhere gets one name of an attacker's choice, and is used as a
user would.
"""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gaitforge.collectors.robots.robot import ASSETS, load_robot, stored_robot
from gaitforge.datasets import Selection, Store, open_store
from gaitforge.datasets.catalog.edit_log import Edit
from gaitforge.datasets.edits.assemble import merge_stores
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from tests.datasets.formats.format_stores import CASES, random_episodes
from tests.datasets.making import small_store

h5py = pytest.importorskip("h5py", reason="h5py is an extra: gaitforge[hdf5]")

EPISODES = random_episodes(3)


def _changed_json(path: Path, change: Callable[[Any], object]) -> None:
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))


def _exported(name: str, folder: Path, notes: bool = False) -> Path:
    store = CASES[name].make(folder / "store", EPISODES)
    export_selection(name, store.select(), folder / "source", {"notes": notes})
    return folder / "source"


def robot_card(folder: Path, name: str) -> None:
    """A robot's MJCF."""
    shutil.copytree(ASSETS / "aliengo", folder / "robot")
    _changed_json(folder / "robot/robot.json", lambda card: card.update(name="mine", mjcf=name))
    load_robot(str(folder / "robot"))


def robot_in_a_store(folder: Path, name: str) -> None:
    """The name and MJCF of a robot that a store brings."""
    card = json.loads((ASSETS / "aliengo/robot.json").read_text()) | {"mjcf": name}
    mjcf = (ASSETS / "aliengo/aliengo.xml").read_text()
    stored_robot({"robots": {name: {"card": card, "mjcf": mjcf}}}, name)


def lerobot_template(folder: Path, name: str) -> None:
    """LeRobot's templates of files, its splits and features."""
    source = _exported("lerobot", folder)

    def change(info: dict[str, Any]) -> None:
        info["data_path"] = name + "{chunk_index}{file_index}"
        info["video_path"] = name

    _changed_json(source / "meta/info.json", change)
    import_source("lerobot", source, folder / "again")


def lerobot_split(folder: Path, name: str) -> None:
    """The names of LeRobot's splits, which become files of selections."""
    source = _exported("lerobot", folder)
    splits = {name: "0:1", "other": "1:2"}
    _changed_json(source / "meta/info.json", lambda info: info.update(splits=splits))
    import_source("lerobot", source, folder / "again")


def robomimic_mask(folder: Path, name: str) -> None:
    """The names of robomimic's filter keys, which become files of selections."""
    source = _exported("robomimic", folder)
    with h5py.File(source, "a") as file, suppress(OSError):  # HDF5 has no such name
        file[f"mask/{name}"] = np.array(["demo_0"], "S")
    import_source("robomimic", source, folder / "again")


def minari_id(folder: Path, name: str) -> None:
    """The id of a Minari dataset, and of its environment."""
    source = _exported("minari", folder)
    path = next(source.rglob("metadata.json"))
    _changed_json(path, lambda tree: tree.update(dataset_id=name, env_spec=name))
    import_source("minari", source, folder / "again")
    export_selection("minari", open_store(folder / "again").select(), folder / "out")


def mocapact_clip(folder: Path, name: str) -> None:
    """The clips of a store, which become files, and of such a file, which become columns."""
    store = CASES["mocapact"].make(folder / "store", EPISODES)
    store.select().annotate({"clip": name})
    export_selection("mocapact", store.select(), folder / "source", {"notes": False})
    import_source("mocapact", folder / "source", folder / "again")


def tag(folder: Path, name: str) -> None:
    """The tags of a store."""
    store = small_store(folder / "store", [(3, 2)])
    try:
        store.tag(name)
    finally:
        open_store(folder / "store", tag=name)


def annotation(folder: Path, name: str) -> None:
    """The columns that an edit of a received store sets, and the folder of a field's."""
    store = small_store(folder / "store", [(3, 2)])
    rows = store.select().annotate({"note": "x"}).rows.rename_columns(["part", "row", name])
    store.log.append("annotate", {}, rows, {}, store.edits()[-1].sha256)
    edited = open_store(folder / "store")
    edited.select().save(folder / "chosen.json")
    merge_stores(edited, small_store(folder / "other", [(3, 2)]), folder / "both")


def field_folder(folder: Path, name: str) -> None:
    """The folder of a field that an edit of a received store adds."""
    store = small_store(folder / "store", [(3, 2)])
    edit: Edit = store.select().annotate({"note": "x"})
    content = {"field": {"name": "new", "shape": [], "dtype": "float32"}, "folder": name}
    store.log.append("field", {**content, "parts": {}}, edit.rows.slice(0, 0), {}, edit.sha256)
    edited = open_store(folder / "store")
    edited.gc()
    edited.verify()


def selection_file(folder: Path, name: str) -> None:
    """The parts of a saved selection."""
    store = small_store(folder / "store", [(3, 2)])
    store.select().save(folder / "chosen.json")
    text = (folder / "chosen.json").read_text().replace("part-000", json.dumps(name)[1:-1])
    (folder / "chosen.json").write_text(text)
    Selection.load(Store.open(folder / "store"), folder / "chosen.json")


KINDS = (
    robot_card,
    robot_in_a_store,
    lerobot_template,
    lerobot_split,
    robomimic_mask,
    minari_id,
    mocapact_clip,
    tag,
    annotation,
    field_folder,
    selection_file,
)

PIECES = st.sampled_from(
    ["..", ".", "/", "\\", "~", "$(touch x)", "a", "é", "\n", " ", "-", "%2e", "C:", "*", "{0}", ""]
)
NAMES = st.one_of(
    st.sampled_from(["../../../../victim", "../victim", "{folder}/victim", "x" * 300, "..", "."]),
    st.lists(PIECES, min_size=1, max_size=7).map("".join),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6),
)


def _files(folder: Path, own: Path) -> dict[Path, bytes]:
    """The files that lie outside the own folder."""
    return {
        path: path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
        if not path.is_relative_to(own) and not own.is_relative_to(path)
    }


@pytest.mark.slow
@pytest.mark.parametrize("use", KINDS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=NAMES)
def test_nothing_is_written_outside(
    use: Callable[[Path, str], None], tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    folder = tmp_path_factory.mktemp("names")
    own = folder / "a/b/c/own"
    own.mkdir(parents=True)
    (folder / "victim").write_bytes(b"mine")
    (folder / "a/b/victim").mkdir()
    (folder / "a/b/victim/robot.xml").write_bytes(b"mine")
    before = _files(folder, own)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(own))
        patch.chdir(own)
        with suppress(ValueError):  # a name that is refused
            use(own, name.replace("{folder}", str(folder)))
    assert _files(folder, own) == before
    shutil.rmtree(folder)
