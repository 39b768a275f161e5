"""A file in MoCapAct's layout, of real rollouts: its clips, import, training and evaluation."""

from pathlib import Path

import numpy as np
import pytest

from gaitforge.common.errors import DatasetError
from gaitforge.datasets import open_store
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.evaluate import evaluate_policy
from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
from gaitforge.flows.tasks.policy_sources import run_source
from gaitforge.flows.tasks.registry import run_evaluation
from gaitforge.learners.training.config import TrainConfig
from gaitforge.plugins.mocapact.evaluation import BODY_SLICES, HumanoidEvaluation
from gaitforge.plugins.mocapact.humanoid.clips.observed import observed_clips
from gaitforge.plugins.mocapact.humanoid.clips.reference import read_clip, write_reference
from gaitforge.plugins.mocapact.humanoid.clips.snippets import Snippet
from gaitforge.plugins.mocapact.humanoid.environment import TrackingEnvironment
from gaitforge.plugins.mocapact.humanoid.experts.experts import PDExpert
from gaitforge.plugins.mocapact.humanoid.observation import OBSERVATION_SLICES
from gaitforge.plugins.mocapact.humanoid.rollout import ClipEpisode, run_episode
from gaitforge.plugins.mocapact.tests.formats.mocapact_files import Rollout, write_file

pytest.importorskip("dm_control")

SNIPPETS = (Snippet("squat_00", 0, 24), Snippet("squat_00", 20, 39))
WIDTHS = {name: stop - start for name, (start, stop) in OBSERVATION_SLICES.items()}


def rollout(env: TrackingEnvironment, snippet: int, ahead: int = 0) -> Rollout:
    spec = ClipEpisode(0, snippet, env.snippets[snippet].start + ahead, action_noise=0.05)
    result = run_episode(env, PDExpert(), spec, recorded=PDExpert())
    record = result.record
    assert record is not None
    nothing = np.zeros(result.length, np.float32)
    seen = np.concatenate([record.obs, record.final_obs[None]])
    arrays = record.action, record.mean_action, record.reward, nothing, nothing, seen
    return Rollout(*arrays, early=result.terminated)


@pytest.fixture(scope="module")
def recorded(humanoid_reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two snippets of a clip, each with a rollout from its start and one from a later frame."""
    env = TrackingEnvironment(humanoid_reference, SNIPPETS)
    rollouts = {
        snippet.name: ([rollout(env, index), rollout(env, index, 3)], 1)
        for index, snippet in enumerate(SNIPPETS)
    }
    env.close()
    return write_file(tmp_path_factory.mktemp("mocapact") / "squat_00.hdf5", rollouts, WIDTHS)


def test_rollouts_show_the_clip_that_they_follow(recorded: Path, humanoid_reference: Path) -> None:
    (seen,) = observed_clips(recorded)
    original = read_clip(humanoid_reference, "squat_00")
    assert (seen.name, seen.frames) == (original.name, original.frames)
    np.testing.assert_allclose(seen.poses.qpos, original.poses.qpos, atol=1e-5)
    forward = original.poses.qvel  # from a frame to the next one
    central = (forward[:-2] + forward[1:-1]) / 2
    np.testing.assert_allclose(seen.poses.qvel[1:-1], central, atol=1e-3)


def test_clips_of_which_a_frame_was_not_seen_are_refused(
    humanoid_reference: Path, tmp_path: Path
) -> None:
    later = Snippet("step_00", 5, 35)
    env = TrackingEnvironment(humanoid_reference, [later])
    arrays = rollout(env, 0)
    env.close()
    path = write_file(tmp_path / "later.hdf5", {later.name: ([arrays], 1)}, WIDTHS)
    with pytest.raises(DatasetError, match=r"no rollout of .* shows frame 0 \(5 of 36 frames\)"):
        observed_clips(path)
    path = write_file(tmp_path / "random.hdf5", {later.name: ([arrays], 0)}, WIDTHS)
    with pytest.raises(DatasetError, match="no rollout of step_00-5-35 from its start"):
        observed_clips(path)
    small = {**WIDTHS, "position": 2, "time_in_clip": 2}
    path = write_file(tmp_path / "small.hdf5", {later.name: ([arrays], 1)}, small)
    with pytest.raises(DatasetError, match="does not show its clips: it needs position"):
        observed_clips(path)


@pytest.mark.parametrize("observables", ["body", "all"])
def test_a_file_is_imported_learned_from_and_its_policy_evaluated(
    recorded: Path, tmp_path: Path, observables: str
) -> None:
    store, out, clips = tmp_path / "mocap.zarr", tmp_path / "run", tmp_path / "clips.h5"
    import_source("mocapact", recorded, store, {"observables": observables})
    slices = open_store(store).schema.field("obs").slices
    assert slices == (BODY_SLICES if observables == "body" else OBSERVATION_SLICES)
    config = TrainConfig(
        model="bot-mocapact",
        model_overrides={"n_layers": 1, "embed_dim": 10, "feedforward_dim": 8},
        steps=2, batch_size=2, window_len=4, held_out_fraction=0.0,
    )  # fmt: skip
    plan = TrainPlan(SelectPlan(where="not terminated"), config)
    run_training(plan, store, out, Silent())
    assert run_evaluation(out) == HumanoidEvaluation(), "the run knows its task"
    write_reference(clips, observed_clips(recorded))
    tracked = HumanoidEvaluation(str(clips), (SNIPPETS[0].name,), (SNIPPETS[1].name,), max_steps=3)
    (trained, held_out) = evaluate_policy(run_source(out), tracked, Silent()).cells
    assert (trained["group"], held_out["snippet"]) == ("train", SNIPPETS[1].name)
    assert 0.0 < held_out["normalised_return"] < 1.45
    opened = open_store(store)
    learned = opened.select(snippet_start=0)
    fitted = HumanoidEvaluation().fitted(opened.select(), [learned])
    assert (fitted["train"], fitted["validation"]) == ((SNIPPETS[0].name,), (SNIPPETS[1].name,))
