"""Policies by where they are: an expert, a training run, an exported policy, or a class."""

import hashlib
import inspect
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from gaitforge.collectors.experts.expert import load_expert
from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.collectors.policies import Policy
from gaitforge.collectors.robots.descriptor import body_vector
from gaitforge.collectors.robots.robot import DEFAULT_ROBOT, RobotCard, load_robot
from gaitforge.collectors.robots.stored_robots import SEVERAL
from gaitforge.datasets.files import sha256_file
from gaitforge.flows.records.plans import PLAN
from gaitforge.flows.records.records import digest, read_record
from gaitforge.learners.checkpoint import checkpoint_path, load_policy, policy_from, read_checkpoint
from gaitforge.learners.deploy.control import LearnedPolicy
from gaitforge.learners.deploy.onnx_policy import OnnxPolicy, is_exported_policy, read_description
from gaitforge.learners.models.registry import count_parameters


@dataclass(frozen=True)
class PolicySource:
    """A policy: of a training run's or exported policy's folder, an expert, or a class.

    `expert` is a name or file; `which` checkpoint of a run: "last", or "best" by validation loss;
    `made_by` the class as "module:Class", which is called with the number of robots.
    """

    name: str
    run: Path | None = None
    expert: str = ""
    which: str = "last"
    made_by: str = ""

    def key(self) -> str:
        """Changes whenever the policy's weights do, or the file of its class.

        Raises:
            ValueError: no such policy.
        """
        if self.made_by:
            return sha256_file(Path(inspect.getfile(_class(self.made_by))))[:16]
        if self.run is None:
            return load_expert(self.expert).hash
        if is_exported_policy(self.run):
            return digest(read_description(self.run)["files"])
        return digest(checkpoint_path(self.run, self.which).read_bytes().hex())

    def weights_hash(self) -> str:
        """As `key`, but the same for two equal trainings: a checkpoint also holds its times."""
        if self.run is None or is_exported_policy(self.run):
            return self.key()
        tensors, card = read_checkpoint(self.run, self.which)
        state = policy_from(tensors, card).state_dict()
        found = hashlib.sha256(digest([card["model"], card["tokens"]]).encode())
        for name, tensor in state.items():
            found.update(name.encode() + tensor.numpy().tobytes())
        return found.hexdigest()[:16]

    def load(
        self, robots: int, robot: str = "", return_target: float = 1.0, reset_every: int = 0
    ) -> tuple[Policy, int, RobotCard]:
        """The policy for a number of robots, its size, and the robot it drives.

        Args:
            robot: a name or a path; empty for the policy's own.
            return_target: of a return-conditioned policy.
            reset_every: of a training run's policy, see `LearnedPolicy`.

        Raises:
            ValueError: no such policy, or one of another observation.
        """
        if reset_every and (self.run is None or is_exported_policy(self.run)):
            raise ValueError(f"reset_every needs the policy of a training run; {self.name} is none")
        if self.made_by:
            return _class(self.made_by)(robots), 0, load_robot(robot or DEFAULT_ROBOT)
        if self.run is None:
            expert = load_expert(self.expert, robot).policy
            expert.name = self.name
            return expert, expert.parameters(), load_robot(robot) if robot else expert.robot
        if is_exported_policy(self.run):
            exported = self._exported(self.run, robots, return_target)
            card = load_robot(robot or exported.description["control"]["robot"])
            return exported, exported.parameters, card
        network = load_policy(self.run, obs_slices=POLICY_SLICES, which=self.which)
        trained = (read_record(self.run / PLAN) or {}).get("robot", DEFAULT_ROBOT)
        if trained == SEVERAL and not robot:
            raise ValueError(f"{self.run} drives several robots; name one: --robot aliengo")
        card = load_robot(robot or trained)
        if network.layout.body_fields:
            network.drive(body_vector(card))
        policy = LearnedPolicy(network, robots, self.name, return_target, reset_every=reset_every)
        return policy, count_parameters(network), card

    def _exported(self, folder: Path, robots: int, return_target: float) -> OnnxPolicy:
        if self.which != "last":
            raise ValueError(f"{folder} is an exported policy, which has no other checkpoint")
        policy = OnnxPolicy(folder, robots, self.name, return_target)
        fields = policy.description["observation"]["fields"]
        slices = {field: (each["start"], each["stop"]) for field, each in fields.items()}
        if slices != POLICY_SLICES:
            raise ValueError(f"{folder} reads another observation layout than this program's")
        return policy


def run_source(run: Path) -> PolicySource:
    """The policy of a training run's folder.

    Raises:
        ValueError: no such folder.
    """
    if not run.is_dir():
        raise ValueError(f"no training run at {run}; `gaitforge train` makes one")
    return PolicySource(run.resolve().name, run=run)


def named_source(text: str) -> PolicySource:
    """The policy of a folder, or of "module:Class".

    Raises:
        ValueError: no such folder or class.
    """
    if ":" in text and not Path(text).exists():
        return PolicySource(_class(text).__name__, made_by=text)
    return run_source(Path(text))


def _class(name: str) -> Any:
    module, _, member = name.partition(":")
    try:
        return getattr(import_module(module), member)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"no policy {name}: {error}; give a folder, or module:Class") from None
