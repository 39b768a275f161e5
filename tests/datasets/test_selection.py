"""Selecting, refining, saving, describing and splitting episodes."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gaitforge.datasets import DatasetError, Selection, Store, open_store, query
from gaitforge.datasets.edits.split import cut_episodes
from tests.datasets.making import (
    part_input,
    small_schema,
    small_store,
    store_of_many_parts,
    write_small_part,
)

PARTS = [(5, 1, 9, 4, 7, 7, 2), (130, 64, 3, 3)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return small_store(tmp_path_factory.mktemp("selection") / "s", PARTS)


def test_keywords_filter_like_a_plain_loop(store: Store) -> None:
    rows = store.select().episodes().to_pylist()
    chosen = store.select(terrain="flat", skill=["run", "crawl"], level=(0, 2), success=True)
    expected = [
        row["episode"]
        for row in rows
        if row["terrain"] == "flat"
        and row["skill"] in ("run", "crawl")
        and row["level"] in (0, 2)
        and row["success"]
    ]
    assert expected
    assert chosen.episodes().column("episode").to_pylist() == expected
    assert chosen.steps == sum(row["length"] for row in rows if row["episode"] in expected)


MANY = [f"2b5deb-{number:05d}" for number in range(3000)]
many_parts = st.one_of(
    st.sampled_from([MANY, MANY[::-1], MANY[:1], [], MANY[5:2000:3] * 2]),
    st.lists(st.sampled_from(MANY)),
)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return store_of_many_parts(tmp_path_factory.mktemp("many") / "s", MANY)


@settings(max_examples=10, deadline=None)
@given(many_parts, st.booleans())
def test_parts_select_their_episodes(many: Store, parts: list[str], narrowed: bool) -> None:
    within = many.select(terrain="flat") if narrowed else many.select()
    chosen = within.of_parts(parts)
    there = within.episodes("part")["part"].to_pylist()
    assert chosen.episodes("part")["part"].to_pylist() == [
        part for part in there if part in set(parts)
    ]
    if parts:
        assert chosen.hash == within.select(part=parts).hash if len(chosen) else not len(chosen)


def test_a_selection_by_many_parts_is_saved_and_described(many: Store, tmp_path: Path) -> None:
    chosen = many.select().of_parts(MANY[::2])
    chosen.save(tmp_path / "chosen.json")
    loaded = Selection.load(many, tmp_path / "chosen.json")
    assert (loaded.hash, loaded.describe()) == (chosen.hash, chosen.describe())
    assert loaded.read("reward").tolist() == chosen.read("reward").tolist()
    assert sum(row["episodes"] for row in chosen.describe()) == len(MANY) // 2


def test_a_part_without_episodes_selects_nothing(
    tmp_path: Path,
) -> None:
    store = small_store(tmp_path / "s", PARTS)
    store.select().of_parts(["part-000"]).drop()
    assert len(store.select().of_parts(["part-000", "part-001"])) == len(PARTS[1])
    with pytest.raises(DatasetError, match=r"no part part-007, part-009 in "):
        store.select().of_parts(["part-007", "part-001", "part-009"])


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"terrain": "lava"}, r"no terrain 'lava' in .*; allowed: flat, rough$"),
        ({"skill": ["run", "fly"]}, r"no skill 'fly' in .*; allowed: crawl, run, stand$"),
        ({"level": 9}, r"no level 9 in .*; allowed: 0, 1, 2$"),
        ({"part": "part-7"}, r"allowed: part-000, part-001$"),
        (
            {"colour": "red"},
            r"unknown column 'colour'; nearest: .* --columns explains all columns$",
        ),
    ],
)
def test_unknown_values_are_refused(store: Store, wanted: dict, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        store.select(**wanted)


@pytest.mark.parametrize(
    "condition",
    [
        "friction < 0.8",
        '"return" > 0 and not terminated',
        "terrain in ('flat') or length between 3 and 7",
        "skill like 'r%' -- runs",
        "abs(\"return\") > 1 and lower(skill) <> 'stand'",
        "case when level = 0 then true else success end",
        "cast(level as varchar) = '1'",
    ],
)
def test_conditions_keep_some_episodes(store: Store, condition: str) -> None:
    kept = store.select().where(condition)
    assert 0 < len(kept) < len(store.select())
    assert kept.hash == store.select().where(f"({condition.split('--')[0]})").hash


def test_conditions_refine(store: Store) -> None:
    refined = store.select(terrain="rough").where("length > 3").where("level < 2")
    rows = refined.episodes().to_pylist()
    assert rows
    assert all(row["terrain"] == "rough" and row["length"] > 3 for row in rows)
    assert all(row["level"] < 2 for row in rows)
    assert len(store.select().where("friction > 100")) == 0


@given(share=st.floats(0.01, 1.0), grouped=st.booleans())
def test_the_best_of_each_group_by_a_plain_loop(store: Store, share: float, grouped: bool) -> None:
    selection, by = store.select(skill=["run", "crawl"]), ("terrain", "skill", "level")
    best = selection.best(share) if grouped else selection.best(share, ())
    groups: dict[tuple, list[tuple[float, int]]] = {}
    for number, row in enumerate(selection.episodes().to_pylist()):
        key = tuple(row[name] for name in by) if grouped else ()
        groups.setdefault(key, []).append((-row["return"], number))
    kept = {
        number
        for group in groups.values()
        for _, number in sorted(group)[: int(np.ceil(share * len(group)))]
    }
    assert best.rows.tolist() == [selection.rows[number] for number in sorted(kept)]


def test_an_impossible_share_is_refused(store: Store) -> None:
    for share in (0.0, 1.5, float("nan")):
        with pytest.raises(DatasetError, match="must lie in"):
            store.select().best(share)


def test_describe_equals_a_plain_loop(store: Store) -> None:
    rows = store.select().episodes().to_pylist()
    described = store.select().describe(("terrain", "skill"))
    assert [(row["terrain"], row["skill"]) for row in described] == sorted(
        {(row["terrain"], row["skill"]) for row in rows}
    )
    for group in described:
        mine = [
            row
            for row in rows
            if (row["terrain"], row["skill"]) == (group["terrain"], group["skill"])
        ]
        assert group["episodes"] == len(mine)
        assert group["steps"] == sum(row["length"] for row in mine)
        assert group["return"] == pytest.approx(np.mean([row["return"] for row in mine]))
        assert group["success"] == pytest.approx(np.mean([row["success"] for row in mine]))
        assert group["survival"] == pytest.approx(1 - np.mean([row["terminated"] for row in mine]))


def test_groups_by_outcome_keep_their_keys(store: Store) -> None:
    groups = store.select().describe(("terminated", "success"))
    assert {type(group["success"]) for group in groups} == {bool}
    assert all(group["survival"] == float(not group["terminated"]) for group in groups)


def test_query_filters_and_groups(store: Store) -> None:
    answer = query(store, terrain="flat", where="length < 100", group_by=("level",))
    assert [row["level"] for row in answer] == sorted({row["level"] for row in answer})
    expected = store.select(terrain="flat").where("length < 100")
    assert sum(row["episodes"] for row in answer) == len(expected)
    (total,) = query(store, group_by=())
    assert total["steps"] == store.info().steps
    assert query(store, where="length < 0") == []
    with pytest.raises(DatasetError, match="unknown column 'colour'"):
        query(store, group_by=("colour",))


def test_query_opens_no_array(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    (store.path / "parts").rename(tmp_path / "elsewhere")
    assert sum(row["episodes"] for row in query(store, where="friction < 100")) == 5


def test_a_saved_selection_stays_the_same_when_parts_are_added(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", [(5, 1, 9), (130, 64)])
    selection = store.select().where("length > 4")
    selection.save(tmp_path / "chosen.json")
    obs = selection.read("obs")
    write_small_part(store, "part-0000", (50, 60), 5)  # sorts between the two
    loaded = Selection.load(store, tmp_path / "chosen.json")
    assert loaded.hash == selection.hash
    assert np.array_equal(loaded.read("obs"), obs)
    assert loaded.episodes().equals(selection.episodes())
    assert store.select().where("length > 4").hash != selection.hash


def test_loading_refuses_changed_or_foreign_files(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", [(5, 1, 9)])
    path = tmp_path / "chosen.json"
    store.select().where("length > 4").save(path)
    other = small_store(tmp_path / "other", [(5, 1, 8)])
    with pytest.raises(DatasetError, match=r"part-000 .* is absent or changed"):
        Selection.load(other, path)
    tree = json.loads(path.read_text())
    (run,) = tree["parts"]["part-000"]["rows"][-1:]
    for rows, message in (
        ([[0, 2]], "damaged: its rows do not have the recorded hash"),
        ([run, [10**6, 10**6 + 1]], "damaged: part part-000 has 3 episodes, not 1000001"),
        ([[0, 10**15]], "damaged: part part-000 has 3 episodes"),
        ([[-1, 2]], "not a saved selection"),
        ([[2, 1]], "not a saved selection"),
        ([[0, 1], [1, 2]], "not a saved selection"),
        ([[0, 1.0]], "not a saved selection"),
        ([], "not a saved selection"),
        ({"0": 1}, "not a saved selection"),
    ):
        tree["parts"]["part-000"]["rows"] = rows
        path.write_text(json.dumps(tree))
        with pytest.raises(DatasetError, match=message):
            Selection.load(store, path)
    path.write_text("[]")
    with pytest.raises(DatasetError, match="not a saved selection"):
        Selection.load(store, path)
    with pytest.raises(DatasetError, match="cannot write"):
        store.select().save(tmp_path / "nowhere" / "x.json")


@given(fraction=st.floats(0, 1), seed=st.integers(0, 2**31))
def test_split_keeps_every_episode_on_one_side(store: Store, fraction: float, seed: int) -> None:
    rest, held_out = store.select().split(fraction, seed)
    ids = [set(part.episode_ids().tolist()) for part in (rest, held_out)]
    assert ids[0].isdisjoint(ids[1])
    assert ids[0] | ids[1] == set(store.select().episode_ids().tolist())
    again = store.select().split(fraction, seed)
    assert (again[0].hash, again[1].hash) == (rest.hash, held_out.hash)
    flat = store.select(terrain="flat").split(fraction, seed)[1]
    assert set(flat.episode_ids().tolist()) <= ids[1]


def test_split_meets_its_fraction_on_average(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", [[1] * 2000])
    assert 160 < len(store.select().split(0.1, 3)[1]) < 240
    with pytest.raises(DatasetError, match=r"0\.\.1"):
        store.select().split(1.5, 0)


def test_reading_refuses_unknown_fields_and_episodes(store: Store) -> None:
    with pytest.raises(DatasetError, match="allowed: obs, action, reward, final_obs"):
        store.select().read("torque")
    with pytest.raises(DatasetError, match=r"0\.\.10"):
        store.select().episode(11)


@pytest.fixture(scope="module")
def dealt(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """60 parts, dealt in turns to 2, 5 and 10 drivers, and six of them twenty times as long."""
    store = Store.create(tmp_path_factory.mktemp("dealt") / "s", small_schema())
    for part in range(60):
        lengths = (40, 60) if part >= 54 else (2, 3)
        given = part_input(lengths, 2 * part)
        drivers = {f"of_{n}": [f"{part % n}"] * 2 for n in (2, 5, 10)}
        columns = {**given["episodes"], **drivers, "size": [int(part >= 54)] * 2}
        store.write_part(f"p{part:02d}", **{**given, "episodes": columns})
    return store


COLUMNS = ("of_2", "of_5", "of_10", "size", "terrain", "none")


@settings(max_examples=60, deadline=None)
@given(steps=st.integers(1, 900), columns=st.lists(st.sampled_from(COLUMNS), unique=True))
def test_a_spread_has_whole_units_of_every_kind(
    dealt: Store, steps: int, columns: list[str]
) -> None:
    whole = dealt.select()
    spread = whole.spread(steps, columns)
    parts = [unit.part_id for unit in spread.units()]
    assert spread.hash == whole.of_parts(parts).hash  # a part is a unit here
    assert spread.hash == whole.spread(steps, columns).hash
    assert min(steps, whole.steps) <= spread.steps < 2 * steps + 200
    if spread.steps < 2 * steps:
        for name in set(columns) - {"none"}:
            kinds = (s.episodes(name).column(name).to_pylist() for s in (spread, whole))
            assert set(next(kinds)) == set(next(kinds))


def test_a_spread_keeps_the_shares_of_kinds_and_sizes(dealt: Store) -> None:
    whole = dealt.select()
    spread = whole.spread(300, ["of_5"])
    for name in ("of_5", "size"):
        shares = []
        for selection in (spread, whole):
            codes = np.array(selection.episodes(name).column(name).to_pylist(), np.int64)
            shares.append(np.bincount(codes, selection.lengths, 5) / selection.steps)
        np.testing.assert_allclose(*shares, atol=0.2)


def test_a_repetition_is_on_the_side_of_its_original(tmp_path: Path) -> None:
    store = open_store(small_store(tmp_path / "s", [(2,) * 50]).path)
    given = part_input((2,) * 100, 1000)
    columns = {**given["episodes"], "original_episode": [n % 50 for n in range(100)]}
    write = {**given, "episodes": columns}
    store.write_part("repeated", **write)
    everything = store.select()
    for seed in range(3):
        alone, _ = everything.of_parts(["part-000"]).split(0.5, seed)
        for side in everything.split(0.5, seed):
            ids = side.episode_ids()
            mine = {int(each) for each in ids if each < 1000}
            repeated = [int(each) - 1000 for each in ids if each >= 1000]
            assert {each % 50 for each in repeated} == mine
            assert len(repeated) == 2 * len(mine)
        rest, _ = everything.split(0.5, seed)
        assert set(alone.episode_ids()) == {each for each in rest.episode_ids() if each < 1000}


def test_pieces_of_an_episode_are_on_one_side_also_if_they_were_cut_again(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", [(12,) * 40])
    once = open_store(cut_episodes(store, tmp_path / "once", {n: [6] for n in range(0, 40, 2)}))
    second = once.select().where("cut_step = 6").episode_ids().tolist()
    twice = open_store(cut_episodes(once, tmp_path / "twice", {key: [3] for key in second}))
    whole, held_out = store.select().split(0.5, 0)
    for pieces in (once.select(), twice.select()):
        for side, sources in zip(pieces.split(0.5, 0), (whole, held_out), strict=True):
            table = side.episodes("episode", "cut_from").to_pylist()
            ids = {row["cut_from"] if row["cut_from"] >= 0 else row["episode"] for row in table}
            assert ids == set(sources.episode_ids().tolist())
    steps = twice.select().where("cut_from = 4").episodes("cut_step").column(0).to_pylist()
    assert sorted(steps) == [0, 6, 9]


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    picked=st.sets(st.integers(0, 4), min_size=1),
    noted=st.lists(
        st.tuples(
            st.sets(st.integers(0, 4), min_size=1), st.sampled_from(["note", "friction"]),
            st.sampled_from([0.25, 0.5]),
        ),
        min_size=1,
        max_size=3,
    ),
)  # fmt: skip
def test_a_hash_tells_the_annotated_values_of_the_selected_episodes(
    tmp_path_factory: pytest.TempPathFactory,
    picked: set[int],
    noted: list[tuple[set[int], str, float]],
) -> None:
    store = open_store(small_store(tmp_path_factory.mktemp("noted") / "s").path)

    def chosen(ids: set[int]) -> Selection:
        return store.select().where(f"episode in ({', '.join(map(str, sorted(ids)))})")

    plain = chosen(picked)
    seen = {(): plain.hash}
    values: dict[tuple[int, str], float] = {}
    for ids, column, value in noted:
        chosen(ids).annotate({column: value})
        values |= {(episode, column): value for episode in ids & picked}
        now = chosen(picked)
        assert seen.setdefault(tuple(sorted(values.items())), now.hash) == now.hash
        assert (now.arrays_hash, now.episodes_hash) == (plain.hash, plain.hash)
        store.compact()
        assert chosen(picked).hash == now.hash
    assert len(set(seen.values())) == len(seen)
