"""The summary of a comparison on a task's sets, and the quality of the sets."""

from collections.abc import Iterable, Sequence

import numpy as np

from datasets import Selection
from flows.stages.comparison.runs import Row, over_seeds
from flows.stages.gym.evaluation import ReferenceReturns

_MEASURES = (
    *("normalised", "normalised_asked_best", "d4rl_normalised"),
    *("return", "length", "success", "train_s"),
)


def set_quality(
    every: Selection, complete: Selection, references: ReferenceReturns, qualities: Sequence[str]
) -> Row:
    """Size and returns of a set.

    Args:
        every: the set's episodes; complete: those that were not cut off, which are trained on.
    """
    returns = complete.episodes().column("return").to_numpy()
    normalised = np.array([references.normalised(float(value)) for value in returns])
    return {
        "qualities": list(qualities),
        "episodes": len(complete),
        "steps": complete.steps,
        "cut_off_episodes": len(every) - len(complete),
        "cut_off_steps": every.steps - complete.steps,
        "return": float(returns.mean()),
        "return_best": float(returns.max()),
        "normalised": float(normalised.mean()),
        "normalised_std": float(normalised.std()),
        "normalised_best": float(normalised.max()),
        "selection": complete.hash,
    }


def summarise(sets: Iterable[str], runs: Sequence[Row]) -> Row:
    """{"sets", "models", "results", "runs"} of the finished runs.

    A result is a model on a set: its measures are {"mean", "std"} over its seeds (sample standard
    deviation, None for one seed). Sets are in the given order, models by name, FCNet first.
    """
    order = list(sets)
    runs = sorted(runs, key=lambda run: (order.index(run["set"]), *_rank(run), run["seed"]))
    present = [name for name in order if any(run["set"] == name for run in runs)]
    models = {run["model"]: run["kind"] for run in sorted(runs, key=_rank)}
    return {
        "sets": {name: next(run["data"] for run in runs if run["set"] == name) for name in present},
        "models": models,
        "results": [
            _result(group)
            for name in present
            for model in models
            if (group := [run for run in runs if (run["set"], run["model"]) == (name, model)])
        ],
        "runs": [
            {key: value for key, value in run.items() if key not in ("key", "data")} for run in runs
        ],
    }


def _rank(run: Row) -> tuple[bool, str]:
    return not run["model"].startswith("fcnet"), run["model"]


def _result(runs: Sequence[Row]) -> Row:
    alike = ("set", "model", "kind", "objective", "window_len", "parameters", "steps")
    return {
        **{name: runs[0][name] for name in (*alike, "return_target")},
        "seeds": [run["seed"] for run in runs],
        **over_seeds(runs, _MEASURES),
    }
