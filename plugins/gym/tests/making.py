"""Finished trainings that nobody trained: actors of random weights, and what they went through."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from gaitforge.plugins.gym.environments.batch import TaskBatch
from gaitforge.plugins.gym.environments.tasks import find_task
from gaitforge.plugins.gym.episodes import run_episode
from gaitforge.plugins.gym.experts import RandomPolicy

HIDDEN = 8
RETURNS = {"random": -5.0, "medium": 100.0, "expert": 300.0}


def actor_weights(obs_dim: int, act_dim: int, seed: int) -> dict[str, np.ndarray]:
    """A small tanh-Gaussian actor."""
    rng = np.random.default_rng(seed)
    widths = {
        "layer0": (HIDDEN, obs_dim),
        "layer1": (HIDDEN, HIDDEN),
        "mean": (act_dim, HIDDEN),
        "log_std": (act_dim, HIDDEN),
    }
    weights = {}
    for name, (rows, columns) in widths.items():
        weights[f"{name}.weight"] = rng.normal(0, 0.3, (rows, columns)).astype(np.float32)
        weights[f"{name}.bias"] = np.full(rows, -1.0 if name == "log_std" else 0.0, np.float32)
    return weights


def make_training(folder: Path, env_id: str = "Hopper-v5", rows: int = 70, seed: int = 0) -> Path:
    """A finished training's folder; the replay buffer's last episode is cut off at `rows`.

    It holds 30 rows more than the medium policy saw.
    """
    folder.mkdir(parents=True)
    batch = TaskBatch(find_task(env_id), 1)
    replay = _replay(batch, rows + 30)
    for number, quality in enumerate(("medium", "expert")):
        path = folder / f"{quality}.safetensors"
        save_file(actor_weights(batch.obs_dim, batch.act_dim, seed + number), path)
        card = {"kind": "gymnasium-sac", "env": env_id, "quality": quality, "step": rows}
        card |= {"return": RETURNS[quality], "episodes": 100}
        path.with_suffix(".json").write_text(json.dumps(card))
    replay.tofile(folder / "replay.f32")
    recipe = {
        "env": env_id,
        "returns": RETURNS,
        "return_std": dict.fromkeys(RETURNS, 1.0),
        "episodes": 100,
        "medium_step": rows,
        "replay_rows": rows,
    }
    (folder / "recipe.json").write_text(json.dumps(recipe))
    batch.close()
    return folder


def _replay(batch: TaskBatch, rows: int) -> np.ndarray:
    """(rows, obs | action | log_prob | reward | terminated | truncated | next_obs) float32."""
    actor, found, steps = RandomPolicy(batch.act_dim), [], 0
    while steps < rows:
        episode = run_episode(batch, actor, len(found))
        flags = np.zeros((episode.length, 2), np.float32)
        flags[-1] = episode.terminated, episode.truncated
        following = np.concatenate([episode.obs[1:], episode.final_obs[None]])
        columns = [episode.obs, episode.action, episode.log_prob[:, None]]
        columns += [episode.reward[:, None], flags, following]
        found.append(np.concatenate(columns, axis=1))
        steps += episode.length
    return np.concatenate(found)[:rows].astype(np.float32)
