"""What is said of a dataset: kept beside the data, carried by exports, and any change noticed."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gaitforge.datasets import DatasetError, Store, merge_stores, open_store
from gaitforge.datasets.formats.protocol import front_matter, plain, readme
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.layout import ABOUT
from gaitforge.datasets.storage.about import About, write_about
from tests.datasets.formats.cases import CASES
from tests.datasets.making import small_store, write_small_part

SAID: dict[str, Any] = {
    "licence": "CC-BY-4.0",
    "citation": "@misc{gaits,\n  title={Gaits}}",
    "authors": ("Ada Lovelace <ada@example.org>", "Gait Lab"),
    "description": "Six skills.\nTwo parts.",
    "limitations": "Simulated.",
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    small_store(tmp_path / "s.zarr")
    return open_store(tmp_path / "s.zarr")


def test_it_is_kept_and_changes_no_hash(store: Store) -> None:
    before = store.info().hash
    assert store.about() == About()
    store.set_about(**SAID)
    assert store.set_about(licence="MIT") == About(**dict[str, Any](SAID, licence="MIT"))
    again = open_store(store.path)
    assert again.about() == store.about()
    assert again.info().hash == before
    assert again.verify() == []


def test_a_merged_store_says_what_both_say(store: Store, tmp_path: Path) -> None:
    store.set_about(**SAID)
    second = open_store(Store.create(tmp_path / "b.zarr", store.schema).path)
    write_small_part(second, "other", [3], 90)
    said = About(**SAID)
    for number, (own, joint) in enumerate(
        (
            (SAID, said),
            ({**SAID, "licence": "MIT"}, replace(said, licence="CC-BY-4.0 AND MIT")),
            ({**SAID, "authors": ("Me",)}, replace(said, authors=(*SAID["authors"], "Me"))),
            ({"licence": "CC-BY-4.0", "citation": "c"}, said_with_two_citations()),
            ({}, replace(said, licence="")),
        )
    ):
        write_about(second, About(**own))
        out = tmp_path / f"{number}.zarr"
        assert open_store(merge_stores(store, second, out)).about() == joint


def said_with_two_citations() -> About:
    return About(**{**SAID, "citation": f"{SAID['citation']}\n\nc"})


def test_every_changed_byte_is_refused_and_named(store: Store) -> None:
    store.set_about(licence="MIT", authors=["Ada"])
    path = store.path / ABOUT
    content, said = path.read_bytes(), store.about()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with suppress(DatasetError):  # else it is white space between the entries
            assert store.about() == said
    path.write_bytes(content.replace(b"MIT", b"BSD"))
    [fault] = store.verify()
    assert ABOUT in fault


def test_wrong_words_are_refused(store: Store) -> None:
    store.tag("v1")
    for values, complaint in (
        ({"license": "MIT"}, "unknown license; allowed: licence"),
        ({"licence": "a\x1b[2J"}, "licence has control characters"),
        ({"description": "x" * 20_001}, "up to 20000 characters"),
    ):
        with pytest.raises(DatasetError, match=complaint):
            store.set_about(**values)
    with pytest.raises(DatasetError, match="opened at tag v1"):
        open_store(store.path, tag="v1").set_about(licence="MIT")
    assert not (store.path / ABOUT).exists()


def test_the_front_matter_is_yaml_of_the_hub() -> None:
    text = front_matter(About(licence="Apache-2.0"), 'a: "b"', 2400)
    tree = yaml.safe_load(text.strip("-\n"))
    assert tree["license"] == "apache-2.0"
    assert tree["pretty_name"] == 'a: "b"'
    assert tree["size_categories"] == ["1K<n<10K"]
    other = yaml.safe_load(front_matter(About(licence="our own terms"), "x", 1).strip("-\n"))
    assert (other["license"], other["license_name"]) == ("other", "our own terms")


def test_what_is_said_cannot_write_markup(store: Store) -> None:
    hostile = "<script>alert(1)</script> [x](javascript:alert(1)) ```\n# head"
    store.set_about(description=hostile, citation=hostile)
    text = readme(store.select(), "x", "load()")
    assert "<script" not in text.split("## Citation")[0].replace("\\<script", "")
    assert text.count("```") == 4
    assert "](javascript" not in plain(hostile)


@pytest.mark.parametrize("name", sorted({"d4rl", "lerobot", "minari", "robomimic"} & CASES.keys()))
def test_exports_carry_it(store: Store, tmp_path: Path, name: str) -> None:
    store.set_about(**SAID)
    out = tmp_path / ("out.hdf5" if name in ("d4rl", "robomimic") else "out-v0")
    export_selection(name, store.select(), out)
    if out.suffix == ".hdf5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(out) as file:
            assert file.attrs["licence"] == "CC-BY-4.0"
            assert file.attrs["authors"] == "Ada Lovelace <ada@example.org>, Gait Lab"
            assert file.attrs["citation"] == SAID["citation"]
        return
    text = (out / "README.md").read_text()
    front = yaml.safe_load(text.split("---")[1])
    assert front["license"] == "cc-by-4.0"
    for said in ("Six skills.", "Gait Lab", "@misc{gaits", "Simulated."):
        assert said in text
    if name == "minari":
        made = json.loads((out / "data" / "metadata.json").read_text())
        assert {*made["author"]} == {"Ada Lovelace", "Gait Lab"}
        assert {*made["author_email"]} == {"ada@example.org"}
        assert made["description"] == SAID["description"]
