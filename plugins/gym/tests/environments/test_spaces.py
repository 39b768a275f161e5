"""Spaces as vectors: nothing is lost but what is said, and what is executed is one action."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.plugins.gym.environments.environment_id import EnvironmentId
from gaitforge.plugins.gym.environments.spaces import ActionCode, Flattening

gymnasium = pytest.importorskip("gymnasium")
spaces = gymnasium.spaces

SIZES = st.integers(1, 4)
BOXES = st.builds(
    lambda shape, dtype: spaces.Box(0, 200, shape, dtype),
    st.lists(SIZES, max_size=3).map(tuple),
    st.sampled_from((np.uint8, np.int64, np.float32)),
)
DISCRETE = st.one_of(
    st.builds(lambda n, start: spaces.Discrete(n, start=start), SIZES, st.integers(-3, 3)),
    st.lists(SIZES, min_size=1, max_size=3).map(spaces.MultiDiscrete),
    SIZES.map(spaces.MultiBinary),
)
LEAVES = st.one_of(BOXES, DISCRETE, st.just(spaces.Text(9)))
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(("a", "b/c", "d e")), inner, min_size=1).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=6,
)


def parts(space: Any, value: Any, name: str = "") -> dict[str, tuple[Any, Any]]:
    """Name in the vector -> a part's space and value."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return {name or "state": (space, value)}
    inner = space.spaces
    keys = inner if isinstance(inner, dict) else range(len(inner))
    found = {}
    for key in keys:
        own = str(key).replace("/", "_").replace(" ", "_")
        found |= parts(inner[key], value[key], f"{name}_{own}" if name else own)
    return found


@given(TREES, st.integers(0, 2**31))
def test_every_part_can_be_read_back_from_the_vector(space: Any, seed: int) -> None:
    space.seed(seed)
    seen = space.sample()
    expected = parts(space, seen)
    kept = {name: each for name, each in expected.items() if not isinstance(each[0], spaces.Text)}
    if not kept:
        with pytest.raises(ValueError, match="no part is a vector"):
            Flattening(space, "X-v0")
        return
    flattening = Flattening(space, "X-v0")
    vector = flattening(seen)
    assert vector.shape == (flattening.obs_dim,)
    assert vector.dtype == np.float32
    assert set(flattening.slices) == set(kept)
    assert len(flattening.left_out) == len(expected) - len(kept)
    for name, (leaf, value) in kept.items():
        again = spaces.unflatten(leaf, vector[slice(*flattening.slices[name])])
        np.testing.assert_array_equal(again, value)


@given(st.one_of(DISCRETE, BOXES), st.integers(0, 2**31))
def test_what_is_executed_is_the_same_action_in_the_space(space: Any, seed: int) -> None:
    code = ActionCode(space, "X-v0")
    rng = np.random.default_rng(seed)
    scores = rng.uniform(-1, 1, (3, code.act_dim)).astype(np.float32)
    done = code.executed(scores)
    np.testing.assert_array_equal(code.executed(done), done)
    assert done.dtype == np.float32
    for one, same in zip(scores, done, strict=True):
        assert space.contains(code(one))
        np.testing.assert_array_equal(code(one), code(same))
    if code.choices:
        assert (done == 1).sum() == 3 * len(code.choices)
    else:
        np.testing.assert_array_equal(code(np.ones(code.act_dim)), space.high)
        np.testing.assert_array_equal(code(-np.ones(code.act_dim)), space.low)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Discrete(3), -1),
        (spaces.MultiDiscrete([2, 2]), np.array([0, -1])),
        (spaces.MultiBinary(2), np.array([0, 2])),
    ],
)
def test_a_discrete_observation_outside_of_its_space_is_refused(space: Any, value: Any) -> None:
    """-1 would mark the last one, of MultiDiscrete one of another number."""
    with pytest.raises(ValueError, match=r"state is .* not in its space"):
        Flattening(space, "env")(value)


def test_a_large_image_is_left_out_and_two_parts_of_one_name_are_refused() -> None:
    image = spaces.Box(0, 255, (80, 80, 3), np.uint8)
    flattening = Flattening(spaces.Dict(camera=image, pose=spaces.Box(-1, 1, (2,))), "X-v0")
    assert flattening.slices == {"pose": (0, 2)}
    assert flattening.left_out == ("camera (19,200 numbers, 4,096 are allowed)",)
    with pytest.raises(ValueError, match="same name"):
        Flattening(spaces.Dict({"a b": spaces.Discrete(2), "a/b": spaces.Discrete(2)}), "X-v0")
    with pytest.raises(ValueError, match="shape"):
        flattening({"pose": np.zeros(3)})


VALUES = st.dictionaries(
    st.from_regex(r"[a-z_]{1,5}", fullmatch=True),
    st.one_of(
        st.booleans(),
        st.none(),
        st.integers(),
        st.text("abc01-. ", max_size=5),
        st.lists(st.integers(), max_size=3),
    ),
    max_size=3,
).map(lambda each: tuple(sorted(each.items())))


@given(
    st.builds(
        EnvironmentId,
        st.sampled_from(("CartPole-v1", "a.b:C-v0", "dm_control/x-v0")),
        st.integers(0, 900),
        st.sampled_from(("", "done", "terminated")),
        st.sampled_from(((), ("m:A",), ("m:A", "n.o:B"))),
        VALUES,
        VALUES,
    )
)
def test_an_environments_text_says_all_its_settings(env: EnvironmentId) -> None:
    assert EnvironmentId.parse(str(env)) == env
