"""The doctor tells wxyz from xyzw, and finds mixes of both."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gaitforge.datasets import Field, Schema, Store
from gaitforge.plugins.doctor.data import Finding, store_data
from gaitforge.plugins.doctor.examine import examine, merge_findings

STEPS = 40
SLICES = {"joint_pos": (0, 6), "projected_gravity": (6, 9), "root_quat": (9, 13)}
PLAIN = {"joint_pos": (0, 6), "root_quat": (6, 10)}


def _wxyz(rng: np.random.Generator, tilt: float, yaw: float) -> np.ndarray:
    """(T, 4) of a body that sways by `tilt` about a heading that turns by up to `yaw`, rad."""
    time = np.arange(STEPS)[:, None]
    roll, pitch = (tilt * np.sin(0.2 * time + 6 * rng.random((1, 2)))).T / 2
    heading = (rng.uniform(-yaw, yaw) + 0.005 * time[:, 0]) / 2
    cr, cp, cy = np.cos([roll, pitch, heading])
    sr, sp, sy = np.sin([roll, pitch, heading])
    parts = [
        cr * cp * cy + sr * sp * sy,
        sr * cp * cy - cr * sp * sy,
        cr * sp * cy + sr * cp * sy,
        cr * cp * sy - sr * sp * cy,
    ]
    return np.stack(parts, axis=1)


def _gravity(wxyz: np.ndarray) -> np.ndarray:
    w, x, y, z = wxyz.T
    return np.stack([2 * (w * y - x * z), -2 * (w * x + y * z), 2 * (x * x + y * y) - 1], axis=1)


def _store(
    path: Path,
    orders: list[str],
    *,
    gravity: bool = False,
    tilt: float = 0.2,
    yaw: float = 3.0,
    source: int = 1,
    named: bool = True,
    noise: float = 0.0,
    **described: Any,
) -> Store:
    """A store with an episode for each of the orders."""
    rng = np.random.default_rng(source)
    rows: list[np.ndarray] = []
    for order in orders:
        quat = _wxyz(rng, tilt, yaw)
        down = _gravity(quat) + rng.normal(0, noise, (STEPS, 3))
        quat = np.roll(quat, -1, axis=1) if order == "xyzw" else quat
        quat = quat * rng.choice([-1.0, 1.0], (STEPS, 1))  # q and -q are one rotation
        quat = quat + rng.normal(0, noise, (STEPS, 4))
        joints = rng.normal(0, 0.3, (STEPS, 6))
        rows.append(np.concatenate([joints, down, quat] if gravity else [joints, quat], axis=1))
    obs = np.concatenate(rows).astype(np.float32)
    slices = (SLICES if gravity else PLAIN) if named else {}
    fields = (
        Field("obs", obs.shape[1:], slices=slices, **described),
        Field("action", (3,)),
        Field("reward"),
    )
    store = Store.create(path, Schema(fields, 0.02, "x", {"format": "robomimic"}))
    count = len(orders)
    action = rng.normal(0, 0.3, (len(obs), 3)).cumsum(axis=0).astype(np.float32)
    reward = rng.random(len(obs)).astype(np.float32)
    columns: dict[str, Any] = {
        "episode": [(source << 32) + k for k in range(count)],
        "length": [STEPS] * count,
        "seed": [-1] * count,
        "return": reward.reshape(count, STEPS).astype(float).sum(axis=1).tolist(),
        "level": [0] * count,
    }
    for name in ("terrain", "skill", "robot", "simulator", "simulator_version"):
        columns[name] = ["x"] * count
    columns |= {"expert": ["x"] * count, "expert_hash": [""] * count}
    columns |= {name: [False] * count for name in ("success", "terminated")}
    columns["truncated"] = [True] * count
    store.write_part(f"p{source}", {"obs": obs, "action": action, "reward": reward}, columns)
    return store


def _findings(store: Store) -> list[Finding]:
    found = examine(store_data(store.select()))
    return [each for each in found if each.name.startswith("quaternion")]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    order=st.sampled_from(["wxyz", "xyzw"]),
    gravity=st.booleans(),
    named=st.booleans(),
    yaw=st.sampled_from([0.0, 0.3, 3.1]),
    data=st.data(),
)
def test_the_order_is_told(
    tmp_path_factory: pytest.TempPathFactory,
    order: str,
    gravity: bool,
    named: bool,
    yaw: float,
    data: st.DataObject,
) -> None:
    """By gravity for any tilt; without it by a robot that stays upright, whatever its headings."""
    tilt = data.draw(st.sampled_from([0.1, 0.25, 1.0] if gravity else [0.1, 0.25]))
    noise = data.draw(st.sampled_from([0.0, 0.02])) if named else 0.0
    kinds: dict[str, Any] = {"gravity": gravity, "tilt": tilt, "yaw": yaw}
    path = tmp_path_factory.mktemp("store") / "x.zarr"
    store = _store(path, [order] * 24, named=named, noise=noise, **kinds)
    [note] = _findings(store)
    assert note.severity == "note"
    assert f"quaternions {order} {'by the gravity' if gravity else 'if the robot'}" in note.text


@pytest.mark.parametrize("gravity", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_a_mix_between_episodes_is_an_error(tmp_path: Path, gravity: bool, named: bool) -> None:
    orders = ["wxyz"] * 9 + ["xyzw"] * 4
    for yaw in (0.2, 3.0):
        path = tmp_path / f"{yaw}.zarr"
        store = _store(path, orders, gravity=gravity, named=named, yaw=yaw, tilt=0.2)
        [mix] = [each for each in _findings(store) if each.name == "quaternion-mix"]
        assert (mix.severity, mix.rows.tolist()) == ("error", [9, 10, 11, 12])
        assert "wxyz in 9 episodes" in mix.text


def test_a_mix_between_stores_is_named(tmp_path: Path) -> None:
    old, again = (_store(tmp_path / f"{k}.zarr", ["wxyz"] * 12, yaw=0.1, source=k) for k in (1, 2))
    new = _store(tmp_path / "3.zarr", ["xyzw"] * 12, yaw=0.1, source=3)
    assert merge_findings([old.select(), again.select()]) == []
    [mix] = merge_findings([old.select(), new.select()])
    assert "root_quat is wxyz in 12 episodes (1-) and xyzw in 12 episodes (3-)" in mix.text


def test_an_order_that_the_schema_states_is_no_note(tmp_path: Path) -> None:
    stated = {"gravity": True, "description": "joints and a quaternion wxyz"}
    assert _findings(_store(tmp_path / "a.zarr", ["wxyz"] * 12, **stated)) == []
    [wrong] = _findings(_store(tmp_path / "b.zarr", ["xyzw"] * 12, **stated))
    assert (wrong.severity, wrong.name) == ("error", "quaternion-order")
    assert "but the schema says wxyz" in wrong.text


def test_an_order_that_nothing_tells_is_said_so(tmp_path: Path) -> None:
    store = _store(tmp_path / "a.zarr", ["wxyz", "xyzw"] * 6, tilt=3.0)
    assert "cannot be told: root_quat" in _findings(store)[-1].text
