"""Loads a file with robomimic's own `SequenceDataset`; run by an interpreter that has it.

python robomimic_reader.py FILE RESULT KEY,KEY    writes what it saw to RESULT, an .npz file
"""

# Run by another interpreter, which has robomimic.
# pyright: reportMissingImports=false

import sys
from typing import Any

import numpy as np
import robomimic.utils.obs_utils as obs_utils
from robomimic.utils.dataset import SequenceDataset

if __name__ == "__main__":
    path, result, names = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
    obs_utils.initialize_obs_utils_with_obs_specs({"obs": {"low_dim": names}})
    seen: dict[str, Any] = {}
    for mask in ("", "train", "valid"):
        dataset = SequenceDataset(
            hdf5_path=path,
            obs_keys=names,
            dataset_keys=("actions", "rewards", "dones"),
            seq_length=1,
            hdf5_cache_mode="low_dim",
            filter_by_attribute=mask or None,
        )
        steps = [dataset[at] for at in range(len(dataset))]
        for key in ("actions", "rewards", "dones"):
            seen[f"{mask}/{key}"] = np.concatenate([each[key] for each in steps])
        for name in names:
            for group in ("obs", "next_obs"):
                rows = [each[group][name] for each in steps]
                seen[f"{mask}/{group}/{name}"] = np.concatenate(rows)
        seen[f"{mask}/demos"] = np.array(dataset.demos)
    np.savez(result, **seen)
