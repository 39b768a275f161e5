"""A made-up run folder of realistic shape and numbers: a fixture for the report, not a result."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

TERRAINS = ("flat", "rough", "slope", "stairs", "obstacles")
SKILLS = ("stand", "rush", "crawl", "squeeze", "tilt", "run")
LEVELS = (0, 3, 6, 9)
# name -> (skill at the task relative to the expert, parameters, training seconds, latency in µs)
POLICIES: dict[str, tuple[float, int, float | None, float]] = {
    "expert": (1.0, 214_028, 5_412.0, 38.4),
    "fcnet": (0.987, 262_156, 91.3, 142.7),
    "bot": (0.941, 301_840, 118.9, 611.2),
    "fcnet_rc": (0.969, 264_972, 96.1, 151.3),
}
DRAWS = (
    ("friction", "", 0.4, 1.4),
    ("base_mass_offset", "kg", -1.0, 3.0),
    ("motor_strength", "", 0.9, 1.1),
)


def write_run_folder(root: Path) -> Path:
    """Write every file that a report needs under `root` and return it."""
    rng = np.random.default_rng(7)
    write_json(root / "summary.json", summary(rng))
    write_json(root / "dataset.json", dataset(rng))
    write_json(root / "plan.json", plan())
    write_json(root / "expert.json", expert_card())
    for policy, (fidelity, _, train_s, _) in POLICIES.items():
        if policy != "expert":
            folder = root / "train" / policy
            write_json(folder / "config.json", training_config(policy))
            lines = history(rng, 0.02 / fidelity**8, train_s or 90.0)
            (folder / "history.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return root


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2))


def expert_card() -> dict[str, Any]:
    cells = [
        {
            "policy": "expert",
            "terrain": terrain,
            "skill": skill,
            "level": level,
            "return": 11.0,
            "success": 0.99 - level / 100,
            "survival": 1.0,
            "episodes": 200,
            "vx_error": 0.125,
            "torque_p99": 33.3,
            "action_rate_p99": 27.7,
        }
        for terrain in ("flat", "rough")
        for skill in SKILLS
        for level in (1, 4, 8)
    ]
    return {"robot": "aliengo", "steps": 20_000_000, "evaluation": {"cells": cells}}


def summary(rng: np.random.Generator) -> dict[str, Any]:
    cells = list(evaluation_cells(rng))
    rows = {name: row(name, [c for c in cells if c["policy"] == name]) for name in POLICIES}
    expert = rows.pop("expert")
    return {
        "name": "demo",
        "plan": {
            "learners": {name: {} for name in rows},
            "train_s": None,
            "targets": [],
            "tested": False,
        },
        "dataset": {
            "steps": 412_160,
            "episodes": 2_318,
            "parts": 8,
            "hash": "9f2c61d07be2a3c1f0d4",
            "bytes": 138_412_032,
        },
        "collect": {"steps_per_s": 17_843.0},
        "sets": [
            {
                "task": "legged",
                "set": "",
                "episodes": 2_318,
                "control_dt_s": 0.02,
                "zero": 0.0,
                "score": 98.0,
                "score_best": 100.0,
            }
        ],
        "expert": expert,
        "runs": list(rows.values()),
        "results": [result(each) for each in rows.values()],
        "overall": [],
        "cells": cells,
        "evaluated_episodes": 16 * len(cells),
        "largest_return": 12.288,
        "wall_s": 341.7,
        "versions": {"gaitforge": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "zarr": "3.1.6"},
        "git_revision": "5e0f3b8c21aa",
        "command": "gaitforge run runs/demo/plan.json --out runs/demo-again",
    }


def row(name: str, cells: list[dict[str, Any]]) -> dict[str, Any]:
    """A policy's row, the means of its cells."""
    fidelity, parameters, train_s, latency = POLICIES[name]
    means = {
        key: float(np.mean([c[key] for c in cells])) for key in ("return", "success", "survival")
    }
    return means | {
        "run": name,
        "task": "legged",
        "set": "",
        "learner": name,
        "value": None,
        "seed": 0,
        "steps": 3_000,
        "score": 100 * fidelity,
        "return_fraction": fidelity,
        "parameters": parameters,
        "train_s": train_s,
        "test_mse": None,
        "latency_us_median": latency,
        "latency_us_p99": latency * 1.9,
        "return_ci95": None,
        "success_ci95": None,
        "return_fraction_ci95": None,
        "curve": [[3_000, 100 * fidelity]],
    }


def result(run: dict[str, Any]) -> dict[str, Any]:
    """The result of a learner with one seed."""
    alike = ("task", "set", "learner", "value", "steps", "parameters")
    measures = (
        *("score", "return", "success", "survival", "return_fraction", "train_s", "test_mse"),
        *("latency_us_median", "latency_us_p99"),
    )
    return {
        **{name: run[name] for name in alike},
        **{name: {"mean": run[name], "std": None} for name in measures},
        **dict.fromkeys(("score_ci95", "return_ci95", "success_ci95")),
        "return_fraction_ci95": None,
        "runs": [run["run"]],
        "seeds": [0],
        "asked": [],
        "terrains": [],
        "skills": [],
    }


def evaluation_cells(rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    for policy, (fidelity, *_) in POLICIES.items():
        for i, terrain in enumerate(TERRAINS):
            for j, skill in enumerate(SKILLS):
                for level in LEVELS:
                    hardness = 0.012 * level * i + 0.03 * (j in (1, 5)) * i + 0.02 * rng.random()
                    success = float(np.clip(fidelity**3 - hardness, 0, 1))
                    yield {
                        "policy": policy,
                        "terrain": terrain,
                        "skill": skill,
                        "level": level,
                        "return": (14.0 - 1.5 * (j in (1, 5))) * (0.4 + 0.6 * success),
                        "return_ci95": None,
                        "success_ci95": None,
                        "success": success,
                        "survival": min(1.0, success + 0.04),
                        "episodes": 16,
                    }


def dataset(rng: np.random.Generator) -> dict[str, Any]:
    groups = [
        {
            "terrain": terrain,
            "skill": skill,
            "episodes": int(rng.integers(55, 100)),
            "steps": int(rng.integers(11_000, 16_000)),
            "return": 14.2 - 0.6 * i - 0.3 * j,
            "success": 0.99 - 0.02 * i,
            "survival": 1.0 - 0.01 * i,
        }
        for i, terrain in enumerate(TERRAINS)
        for j, skill in enumerate(SKILLS)
    ]
    randomisation = []
    for name, unit, low, high in DRAWS:
        counts, edges = np.histogram(rng.uniform(low, high, 2_318), bins=20, range=(low, high))
        randomisation.append(
            {"name": name, "unit": unit, "edges": edges.tolist(), "counts": counts.tolist()}
        )
    randomisation.append(
        {
            "name": "action_lag",
            "unit": "control steps",
            "edges": [-0.5, 0.5, 1.5, 2.5],
            "counts": [801, 764, 753],
        }
    )
    return {
        "control_dt_s": 0.02,
        "groups": groups,
        "levels": [{"level": level, "episodes": 260 - 9 * level} for level in range(10)],
        "randomisation": randomisation,
        "episode_lengths": {
            "edges": np.linspace(0, 200, 21).tolist(),
            "counts": [9, 6, 11, 14, 8, 10, 7, 9, 12, 8, 11, 9, 6, 8, 7, 12, 9, 10, 14, 2138],
        },
        "spectra": list(spectra()),
        "info": {
            "schema_version": 1,
            "fields": {"obs": [70], "action": [12], "reward": []},
            "chunks": {"steps": 1024, "codec": "zstd"},
        },
    }


def spectra() -> Iterator[dict[str, Any]]:
    """Gait-like spectra: a pedestal that falls off and a peak at the stride's frequency."""
    frequency = np.arange(33) / (64 * 0.02)
    for signal, unit, channels, peak in (
        ("base_ang_vel_body", "rad/s", 3, 0.8),
        ("projected_gravity", "", 3, 0.3),
        ("action", "", 12, 1.6),
    ):
        energy = np.exp(-frequency / 1.5) + peak * np.exp(-0.5 * ((frequency - 2.3) / 0.6) ** 2)
        energy += 0.3 * peak * np.exp(-0.5 * ((frequency - 4.7) / 0.8) ** 2) + 0.002
        yield {
            "signal": signal,
            "unit": unit,
            "frequency_hz": frequency.tolist(),
            "energy_share": (energy / energy.sum()).tolist(),
            "channels": channels,
        }


def history(
    rng: np.random.Generator, floor: float, train_s: float, steps: int = 3_000
) -> Iterator[dict[str, Any]]:
    for step in range(20, steps + 1, 20):
        loss = floor + 0.9 * np.exp(-step / 120) + 0.12 * np.exp(-step / 700)
        yield {
            "step": step,
            "loss": float(loss * (1 + 0.06 * rng.standard_normal())),
            "validation_loss": float(1.08 * loss) if step % 200 == 0 else None,
            "lr": 1e-3 * 0.5 * (1 + np.cos(np.pi * step / steps)),
            "steps_per_s": steps / train_s,
            "elapsed_s": step * train_s / steps,
        }


def training_config(policy: str) -> dict[str, Any]:
    model = {"n_layers": 4, "hidden_dim": 128, "context_len": 64}
    if policy.startswith("fcnet"):
        model["n_modes"] = 10
    return {"policy": policy, "model": model, "batch_size": 256, "seed": 1, "lr": 1e-3}


def plan() -> dict[str, Any]:
    return {"kind": "experiment", "name": "demo", "experiment": {}}
