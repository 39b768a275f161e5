"""Policies by where they are: a run, an exported policy, an ONNX file, a class, or an expert."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from gaitforge.collectors.robots.robot import DEFAULT_ROBOT, ROBOTS, is_robot, stored_robot
from gaitforge.common.errors import listed
from gaitforge.common.extensions import function_key, named_function
from gaitforge.common.files import sha256_file
from gaitforge.common.trust import naming
from gaitforge.flows.records.plans import PLAN
from gaitforge.flows.records.records import digest, read_record, run_record
from gaitforge.learners.checkpoint import (
    checkpoint_path,
    load_policy,
    policy_from,
    read_checkpoint,
)
from gaitforge.learners.export.onnx_policy import (
    is_exported_policy,
    read_description,
)
from gaitforge.learners.export.policy_formats import DEFAULT_RUNTIME, policy_runtime
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.learners.run_files import run_folder, shipped_policies

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
        place: the folder of a run or exported policy, the name of one that ships, another
            program's ONNX file, a class as "module:Class" that is called with the number of robots,
            or an expert's name.
        which: checkpoint of a run: "last", "best" by validation loss, or "step-N".
        runtime: what runs an exported policy, a name of `POLICY_RUNTIMES`.
    """

    name: str
    kind: Literal["run", "exported", "onnx", "class", "expert"]
    place: str
    which: str = "last"
    runtime: str = DEFAULT_RUNTIME

    @property
    def folder(self) -> Path:
        """The folder of a run or exported policy, or the ONNX file."""
        return run_folder(self.place)

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
            files = read_description(self.folder)["files"]
            return digest(files if self.runtime == DEFAULT_RUNTIME else [files, self.runtime])
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

    def run_by(self, runtime: str) -> "PolicySource":
        """The same exported policy in another runtime.

        Raises:
            ValueError: no such runtime, or a policy that is no exported one.
        """
        policy_runtime(runtime)
        if self.kind != EXPORTED:
            raise ValueError(
                f"{self.place} is no exported policy, which a runtime runs; `gaitforge export` "
                "makes one"
            )
        return replace(self, runtime=runtime)

    def network(self, obs_slices: Mapping[str, tuple[int, int]] | None) -> PolicyNetwork:
        """The network of a run; ValueError for none, or one of another observation."""
        return load_policy(self.folder, obs_slices, self.which)

    def policy_class(self) -> Any:
        """The class. Raises ValueError where there is none."""
        return named_function(self.place, "policy")


def run_source(run: Path, which: str = "last") -> PolicySource:
    """The policy of a training run's folder, of an exported policy's, or one that ships, by name.

    Raises:
        ValueError: no such folder.
    """
    folder = run_folder(run)
    if not folder.is_dir():
        raise ValueError(
            f"no training run at {run}, and no expert of that name; `gaitforge train` makes a run, "
            f"`gaitforge expert list` lists experts, {shipped_in_words()}"
        )
    kind = EXPORTED if is_exported_policy(folder) else RUN
    return PolicySource(folder.resolve().name, kind, str(run), which)


def shipped_in_words() -> str:
    """The trained policies that ship, for an error about another name."""
    return f"trained policies that ship: {', '.join(shipped_policies())}"


def named_source(text: str, which: str = "last") -> PolicySource:
    """The policy of a folder, one that ships, an ONNX file or "module:Class".

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
    """The robot of a run's store, by name or, if it is the user's own, by path; or `SEVERAL`.

    Where its path holds no robot any more, it is the copy of card and MJCF that the run keeps.
    """
    plan = run_folder(run) / PLAN
    record = read_record(plan) or {}
    evaluation = record.get("evaluation")
    recorded = evaluation.get("robot") if isinstance(evaluation, dict) else None
    name = record.get("robot", DEFAULT_ROBOT)
    robot = recorded or name
    if not isinstance(robot, str) or not isinstance(name, str):
        raise ValueError(f"{plan}: a robot needs a name, not {robot!r}")
    own_robots = record.get("own_robots")
    if isinstance(own_robots, dict) and own_robots.get(name) and not is_robot(robot):
        return str(stored_robot({ROBOTS: own_robots}, name).path.parent)
    return robot


def data_of(run: Path) -> str:
    """The data that a run was trained on, in words: its store, and the format of an import."""
    record = run_record(run)
    store = record.get("store") or "data that it does not name"
    return f"{store} ({record['format']})" if record.get("format") else str(store)


def observed(network: PolicyNetwork) -> str:
    """What a policy observes, in words: names with their numbers of channels."""
    slices = network.layout.stored_slices.items()
    return listed([f"{name} ({stop - start})" for name, (start, stop) in slices], 8)


def recorded_expert(source: PolicySource) -> str:
    """The expert of a run's episodes by the run's record; "" for none, or another policy."""
    record = (read_record(source.folder / PLAN) or {}) if source.kind == RUN else {}
    return str(record.get("expert") or "")


def is_run(folder: Path) -> bool:
    """Whether a folder holds a training run or an exported policy, or one ships by that name."""
    folder = run_folder(folder)
    return (folder / "config.json").is_file() or is_exported_policy(folder)
