"""Policies by where they are: a run, an exported policy, an ONNX file, a class, or an expert."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gaitforge.collectors.robots.robot import DEFAULT_ROBOT
from gaitforge.common.extensions import function_key, named_function
from gaitforge.common.files import sha256_file
from gaitforge.common.trust import naming
from gaitforge.flows.records.plans import PLAN
from gaitforge.flows.records.records import digest, read_record
from gaitforge.learners.checkpoint import checkpoint_path, load_policy, policy_from, read_checkpoint
from gaitforge.learners.export.onnx_policy import is_exported_policy, read_description
from gaitforge.learners.policy.policy_network import PolicyNetwork

RUN = "run"
EXPORTED = "exported"
ONNX = "onnx"
CLASS = "class"
EXPERT = "expert"


@dataclass(frozen=True)
class PolicySource:
    """A policy.

    Attributes:
        kind: what it is.
        place: the folder of a run or exported policy, another program's ONNX file, a class as
            "module:Class" that is called with the number of robots, or an expert's name.
        which: checkpoint of a run: "last", "best" by validation loss, or "step-N".
    """

    name: str
    kind: Literal["run", "exported", "onnx", "class", "expert"]
    place: str
    which: str = "last"

    @property
    def folder(self) -> Path:
        """The folder of a run or exported policy, or the ONNX file."""
        return Path(self.place)

    def key(self) -> str:
        """Hash of the file with the policy's weights; of a class, of its code and its own `key`.

        Raises:
            ValueError: no such policy, or an expert, which only its task knows.
        """
        if self.kind == CLASS:
            code = function_key(self.place)
            own_key = self.own_key()
            return digest([code, own_key]) if own_key else code
        if self.kind == ONNX:
            return sha256_file(self.folder)[:16]
        if self.kind == EXPORTED:
            return digest(read_description(self.folder)["files"])
        if self.kind == RUN:
            return sha256_file(checkpoint_path(self.folder, self.which))[:16]
        raise ValueError(f"{self.place} is an expert, not a trained policy")

    def own_key(self) -> str:
        """What a class says of its weights: the `key` of its object for one robot; "" for none.

        Without one nobody knows what it has read from files: nothing that it gave is used again.
        """
        return str(getattr(self.policy_class()(1), "key", "") or "") if self.kind == CLASS else ""

    @property
    def is_known(self) -> bool:
        """Whether `key` changes with everything that the policy's actions depend on."""
        return self.kind != CLASS or bool(self.own_key())

    def weights_hash(self) -> str:
        """Hash of the weights; equal trainings share it, while checkpoints also hold times."""
        if self.kind != RUN:
            return self.key()
        tensors, card = read_checkpoint(self.folder, self.which)
        with naming(self.folder):
            state = policy_from(tensors, card).state_dict()
        sha256 = hashlib.sha256(digest([card["model"], card["tokens"]]).encode())
        for name, tensor in state.items():
            sha256.update(name.encode() + tensor.numpy().tobytes())
        return sha256.hexdigest()[:16]

    def network(self, obs_slices: Mapping[str, tuple[int, int]] | None) -> PolicyNetwork:
        """The network of a run; ValueError for none, or one of another observation."""
        return load_policy(self.folder, obs_slices, self.which)

    def policy_class(self) -> Any:
        """The class. Raises ValueError where there is none."""
        return named_function(self.place, "policy")


def run_source(run: Path, which: str = "last") -> PolicySource:
    """The policy of a training run's folder, or of an exported policy's.

    Raises:
        ValueError: no such folder.
    """
    if not run.is_dir():
        raise ValueError(
            f"no training run at {run}, and no expert of that name; `gaitforge train` makes a run, "
            "`gaitforge expert list` lists experts"
        )
    kind = EXPORTED if is_exported_policy(run) else RUN
    return PolicySource(run.resolve().name, kind, str(run), which)


def named_source(text: str, which: str = "last") -> PolicySource:
    """The policy of a folder, an ONNX file or "module:Class".

    Raises:
        ValueError: no such folder or class.
    """
    if ":" in text and not Path(text).exists():
        source = PolicySource(text.partition(":")[2], CLASS, text)
        source.policy_class()
        return source
    if Path(text).suffix == ".onnx" and Path(text).is_file():
        return PolicySource(Path(text).stem, ONNX, text)
    return run_source(Path(text), which)


def trained_robot(run: Path) -> str:
    """The robot of a run's store, by name or, if it is the user's own, by path; or `SEVERAL`."""
    record = read_record(run / PLAN) or {}
    evaluation = record.get("evaluation")
    recorded = evaluation.get("robot") if isinstance(evaluation, dict) else None
    robot = recorded or record.get("robot", DEFAULT_ROBOT)
    if not isinstance(robot, str):
        raise ValueError(f"{run / PLAN}: a robot needs a name, not {robot!r}")
    return robot


def is_run(folder: Path) -> bool:
    """Whether a folder holds a training run or an exported policy."""
    return (folder / "config.json").is_file() or is_exported_policy(folder)
