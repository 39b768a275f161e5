"""Experts: the PD law, trained corrections, and files that are not experts."""

import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from gaitforge.collectors.policy import StoredObservation
from gaitforge.common.trust import UntrustedCodeError, trusting
from gaitforge.plugins.mocapact.humanoid.clips.reference import read_clip
from gaitforge.plugins.mocapact.humanoid.clips.snippets import Snippet
from gaitforge.plugins.mocapact.humanoid.environment import TrackingEnvironment
from gaitforge.plugins.mocapact.humanoid.experts.experts import (
    PD,
    WEIGHTS,
    PDExpert,
    PDLaw,
    load_expert,
)
from gaitforge.plugins.mocapact.humanoid.experts.features import FEATURE_DIM, FEATURE_SLICES
from gaitforge.plugins.mocapact.humanoid.observation import OBS_DIM, REF_STEPS
from gaitforge.plugins.mocapact.humanoid.rollout import ClipEpisode, run_episode
from gaitforge.plugins.mocapact.humanoid.walker import load_humanoid
from gaitforge.plugins.mocapact.tests.conftest import SNIPPETS

training = pytest.importorskip("gaitforge.plugins.mocapact.humanoid.experts.train_residual")
pytest.importorskip("dm_control")

TINY = training.ResidualTrainingConfig(
    steps=64, humanoids=4, horizon=8, hidden=(8,), mini_batches=1, epochs=1, threads=1
)


class Limp:
    """Asks for the middle of every joint's range."""

    name = "limp"

    def reset(self, ids: np.ndarray) -> None:
        """Nothing to forget."""

    def act(self, observation: StoredObservation) -> np.ndarray:
        return np.zeros((1, 56), dtype=np.float32)


@pytest.fixture(scope="module")
def trained(humanoid_reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of experts with one of two updates for the first snippet."""
    out = tmp_path_factory.mktemp("experts")
    snippet = SNIPPETS[0]
    clip = read_clip(humanoid_reference, snippet.clip)
    weights, card = training.train_residual(
        TINY, clip, snippet, out / snippet.name, lambda summary: None
    )
    weights.with_suffix(".json").write_text(json.dumps(card))
    return out


def observations(environment: TrackingEnvironment) -> StoredObservation:
    seen = np.stack([environment.reset(0, frame) for frame in (0, 7, 15)])
    return StoredObservation(seen, np.zeros(3, dtype=np.float32))


@pytest.mark.slow
def test_tracking_the_reference_beats_going_limp(environment: TrackingEnvironment) -> None:
    spec = ClipEpisode(index=0, snippet=0, frame=0)
    tracked, limp = (run_episode(environment, each, spec) for each in (PDExpert(), Limp()))
    assert tracked.normalised_length == 1.0
    assert not tracked.terminated
    assert tracked.normalised_return > 2 * limp.normalised_return
    assert limp.terminated
    assert limp.length < limp.possible


class Flat(Limp):
    """Gives one action in place of one row of actions."""

    def act(self, observation: StoredObservation) -> np.ndarray:
        return super().act(observation)[0]


def test_an_action_in_place_of_a_row_is_refused(environment: TrackingEnvironment) -> None:
    """Its first number would be taken for all joints."""
    with pytest.raises(ValueError, match="for 1 robot; needed: 1 row of 56 numbers"):
        run_episode(environment, Flat(), ClipEpisode(index=0, snippet=0, frame=0))


@given(st.floats(-0.3, 0.3), st.sampled_from(REF_STEPS))
def test_a_resting_reference_is_its_own_target(offset: float, look_ahead: int) -> None:
    pytest.importorskip("dm_control")
    middle = load_humanoid().joint_range.mean(axis=1)
    features = np.zeros((1, FEATURE_DIM), dtype=np.float32)
    start, stop = FEATURE_SLICES["joints_pos"]
    features[:, start:stop] = middle - offset
    start, stop = FEATURE_SLICES["reference_rel_joints"]
    features[:, start:stop] = offset
    half = np.ptp(load_humanoid().joint_range, axis=1) / 2
    action = PDLaw(kp=2.0, look_ahead=look_ahead).action(features)
    np.testing.assert_allclose(action[0], 2.0 * offset / half, atol=1e-4)


def test_an_expert_starts_from_the_pd_law(
    trained: Path, environment: TrackingEnvironment, tmp_path: Path
) -> None:
    seen, snippet = observations(environment), SNIPPETS[0]
    silent = tmp_path / snippet.name
    silent.mkdir()
    weights = load_file(trained / snippet.name / WEIGHTS)
    weights = {name: v * (not name.startswith("actor.layer1")) for name, v in weights.items()}
    save_file(weights, silent / WEIGHTS)
    card = (trained / snippet.name / WEIGHTS).with_suffix(".json").read_text()
    (silent / WEIGHTS).with_suffix(".json").write_text(card)
    pd = PDExpert().act(seen)
    np.testing.assert_allclose(load_expert(str(tmp_path), snippet).policy.act(seen), pd)
    learned = load_expert(str(trained), snippet).policy
    assert 0.0 < np.abs(learned.act(seen) - pd).max() < 0.1
    values = learned.value(seen)
    assert values is not None
    assert values.shape == (3,)
    assert np.isfinite(values).all()


def test_training_goes_on_where_it_stopped(trained: Path, humanoid_reference: Path) -> None:
    snippet = SNIPPETS[0]
    folder = trained / snippet.name
    before = load_expert(str(trained), snippet).policy.hash
    clip = read_clip(humanoid_reference, snippet.clip)
    heard: list[int] = []
    more = replace(TINY, steps=96)
    training.train_residual(more, clip, snippet, folder, lambda s: heard.append(s["steps"]))
    assert heard == [96]
    assert load_expert(str(trained), snippet).policy.hash != before
    training.train_residual(more, clip, snippet, folder, lambda s: heard.append(s["steps"]))
    assert heard == [96]
    other = replace(more, hidden=(16,))
    with pytest.raises(ValueError, match="holds a training with hidden="):
        training.train_residual(other, clip, snippet, folder, lambda s: None)
    with pytest.raises(ValueError, match="holds a training with snippet=squat_00-0-39"):
        training.train_residual(more, clip, Snippet("squat_00", 0, 30), folder, lambda s: None)


def test_training_starts_from_another_snippets(
    trained: Path, humanoid_reference: Path, tmp_path: Path
) -> None:
    snippet = SNIPPETS[1]
    clip = read_clip(humanoid_reference, snippet.clip)
    start = trained / SNIPPETS[0].name
    still = replace(TINY, steps=32, learning_rate=1e-12, max_learning_rate=1e-12)

    def first_layer(folder: Path, start_from: Path | str) -> np.ndarray:
        config = replace(still, start_from=str(start_from))
        path, _ = training.train_residual(config, clip, snippet, folder, lambda summary: None)
        return load_file(path)["actor.layer0.weight"]

    taught = load_file(start / WEIGHTS)["actor.layer0.weight"]
    np.testing.assert_allclose(first_layer(tmp_path / "taught", start), taught, atol=1e-6)
    assert np.abs(first_layer(tmp_path / "fresh", "") - taught).max() > 1e-3
    with pytest.raises(ValueError, match="start_from: no training of an expert in"):
        first_layer(tmp_path / "none", tmp_path / "nowhere")
    still = replace(still, hidden=(16,))
    with pytest.raises(ValueError, match="holds a training with hidden="):
        first_layer(tmp_path / "wider", start)


def test_the_pd_law_needs_no_file_and_has_a_hash_of_its_gains() -> None:
    policy = load_expert(PD, SNIPPETS[0]).policy
    assert policy.hash == PDExpert().hash
    assert not policy.has_value
    assert PDExpert(PDLaw(kp=1.0)).hash != policy.hash
    seen = StoredObservation(np.zeros((1, OBS_DIM), np.float32), np.zeros(1, np.float32))
    assert policy.value(seen) is None


class Program:
    """What a pickle can be."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.file,)


MOCAPACT_PACKAGE = {
    "__init__.py": "",
    "sb3/__init__.py": "",
    "sb3/utils.py": """
import pickle

def load_policy(folder, observables, device):
    with open(folder + "/best_model.zip", "rb") as file:
        return pickle.load(file)
""",
    "observables.py": "TIME_INDEX_OBSERVABLES = ()",
}


def test_mocapacts_pickles_are_read_only_where_the_user_named_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in MOCAPACT_PACKAGE.items():
        file = tmp_path / "packages" / "mocapact" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    ran, zoo = tmp_path / "ran", tmp_path / "zoo"
    model = zoo / SNIPPETS[0].name / "eval_rsi" / "model" / "best_model.zip"
    model.parent.mkdir(parents=True)
    model.write_bytes(pickle.dumps(Program(ran)))
    source = f"mocapact:{zoo}"
    for named in ([], ["mocapact:"], [f"{source}/other"], [str(zoo)]):
        with trusting(named), pytest.raises(UntrustedCodeError, match=r"and the command line does"):
            load_expert(source, SNIPPETS[0])
    assert not ran.exists()
    with trusting([source]):
        load_expert(source, SNIPPETS[0])
    assert ran.exists()
    for name in [name for name in sys.modules if name.partition(".")[0] == "mocapact"]:
        del sys.modules[name]


def test_missing_and_wrong_experts_are_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no expert of snippet step_00-5-35 at"):
        load_expert(str(trained), SNIPPETS[1])
    with (
        trusting([f"mocapact:{tmp_path}"]),
        pytest.raises(ValueError, match=r"need its package .*pip install -e"),
    ):
        load_expert(f"mocapact:{tmp_path}", SNIPPETS[0])
    folder = trained / SNIPPETS[0].name
    with pytest.raises(ValueError, match="tracks snippet squat_00-0-39, not step_00-5-35"):
        load_expert(str(folder / WEIGHTS), SNIPPETS[1])
    broken = tmp_path / WEIGHTS
    broken.write_bytes(b"no tensors")
    broken.with_suffix(".json").write_text('{"snippet": "step_00-5-35", "law": {}}')
    with pytest.raises(ValueError, match="cannot be read"):
        load_expert(str(broken), SNIPPETS[1])
    weights = load_file(folder / WEIGHTS)
    save_file({k: v for k, v in weights.items() if k != "actor.layer0.bias"}, broken)
    with pytest.raises(ValueError, match=r"lacks the tensor 'layer0\.bias'"):
        load_expert(str(broken), SNIPPETS[1])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"look_ahead": 6}, "look_ahead is 6; allowed: 1, 2, 3, 4, 5"),
        ({"humanoids": 0}, "humanoids must be at least 1"),
        ({"clip_starts": 1.5}, "clip_starts must be 0 to 1, got 1.5"),
        ({"termination_error": 0.4}, "termination_error must be above 0, at most 0.3, got 0.4"),
    ],
)
def test_impossible_settings_are_refused(change: dict, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        PDLaw(**change) if "look_ahead" in change else replace(TINY, **change)


@pytest.mark.parametrize("setting", ["epochs", "learning_rate", "initial_std", "residual_scale"])
def test_settings_of_a_training_outside_their_range_are_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=f"^{setting} must be "):
        training.ResidualTrainingConfig(**{setting: 0})
    with pytest.raises(ValueError, match="gamma must be at least 0 and below 1"):
        training.ResidualTrainingConfig(gamma=1.0)  # its rewards are multiplied by 1 - gamma
