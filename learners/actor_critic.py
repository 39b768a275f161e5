"""Actor and critic of PPO (rsl-rl-lib) from any network of the registry that acts on single steps.

The actor is the network of a learner, for the same observation, and is saved as a training run is.
The critic is another one of the same settings. Over body parts each node has a value, and the
state's is their mean; the simulator's measurements belong to the nodes where they are taken
(Sferrazza et al. 2024, "Body Transformer", Sections 4 and 5, Appendix A). The MLP over body parts
has one value, from all nodes' embeddings (the published code's global head). The actor's std is a
parameter per action.

Networks over body parts start as in the published code for reinforcement learning (github.com/
carlosferrazza/BodyTransformer, reinforcement_learning/rl_games/rl_games/algos_torch/
structure_transformers.py): weights and embeddings from N(0, 0.02), biases of zero; the joint
projection to queries, keys and values, which is no layer of its own there, stays Xavier's. Its code
for the A1 does so for the trunk alone, behind a tanh; ours does it on all robots. With PyTorch's
own weights the first mean actions are as large as the exploration.
"""

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rsl_rl.models import MLPModel
from rsl_rl.modules import EmpiricalNormalization
from rsl_rl.modules.distribution import GaussianDistribution
from torch import Tensor, nn

from gaitforge.common.errors import listed
from gaitforge.common.files import write_bytes_durably
from gaitforge.learners.checkpoint import policy_card, save_checkpoint
from gaitforge.learners.models.bodies import QUADRUPED_JOINTS, EmbodimentGraph, body_of
from gaitforge.learners.models.bot import (
    BodyMLP,
    BodyPolicy,
    BoT,
    Detokenizer,
    EncoderLayer,
    Tokenizer,
    node_of_index,
)
from gaitforge.learners.models.registry import (
    PRESETS,
    ModelSpec,
    build_network,
    default_settings,
    depth_note,
    preset,
    spec_from_json,
)
from gaitforge.learners.policy_network import MIN_LOG_STD, GaussianSpread, Normaliser, PolicyNetwork
from gaitforge.learners.tokens import Slices, TokenLayout
from gaitforge.learners.training.trainer import CONFIG

_CRITIC = "critic "
"""Before the names of the fields that the critic alone sees."""
_KINDS = ("bot", "body-mlp", "mlp")
NORMAL = "normal"
"""The published initial weights, see `RegistryNetworks`."""
_STD = 0.02
"""Of initial weights and embeddings in the published code for reinforcement learning."""
_AT_JOINTS = ("joint_pos_error", "joint_vel")
_AT_FEET = ("foot_contact", "gait_clock_sin", "gait_clock_cos", "foot_force")
_CALVES = slice(2, None, 3)


class RegistryNetworks:
    """Actor and critic of a model of the registry; see `collectors.experts.ppo_algorithm.Networks`.

    Args:
        slices: {"features": fields of the actor's observation, "critic": those of the critic's
            further one}, each field with (start, stop).
        act_dim: size of an action.
        action_filter: of the saved policy, see `PolicyNetwork.filtered`; in training the task
            filters.
        begun: folder of the policy of a training that goes on, whose network it keeps.
        initial_weights: of networks over body parts: "normal" as published; "torch" as in trainings
            of earlier versions, whose `body-mlp` had a value per node.

    Raises:
        ValueError: an unknown model or setting, or a network that sees more than a step.
    """

    def __init__(
        self,
        model: str,
        overrides: Mapping[str, Any],
        slices: Mapping[str, Slices],
        act_dim: int = len(QUADRUPED_JOINTS),
        action_filter: float = 1.0,
        initial_weights: str = NORMAL,
        begun: Path | None = None,
    ) -> None:
        self._filter = action_filter
        self._initial_weights = initial_weights
        self.layout = TokenLayout("obs", dict(slices["features"]))
        self._act_dim = act_dim
        self.spec = _single_step(model, overrides, body_of(self.layout.slices, act_dim))
        if begun is not None and (begun / CONFIG).exists():  # sizes of presets may change
            self.spec = spec_from_json(json.loads((begun / CONFIG).read_text())["model"])
        end = self.layout.obs_dim
        seen = slices["critic"].items()
        further = {_CRITIC + name: (start + end, stop + end) for name, (start, stop) in seen}
        self._critic_slices = {**self.layout.obs_slices, **further}

    def note(self) -> str:
        """See `registry.depth_note`."""
        with torch.random.fork_rng(devices=[]):
            return depth_note(build_network(self.spec, self.layout, self._act_dim))

    def actor(self, *arguments: Any, **settings: Any) -> "RegistryModel":
        """The network for the actor's observation."""

        def build(outputs: int) -> nn.Module:
            return self._started(build_network(self.spec, self.layout, outputs))

        return RegistryModel(build, *arguments, **settings)

    def critic(self, *arguments: Any, **settings: Any) -> "RegistryModel":
        """A network of the same settings for both observations, with the state's value."""

        def build(outputs: int) -> nn.Module:
            network = build_network(self.spec, self.layout, self._act_dim)
            if isinstance(network, BodyPolicy):
                is_global = isinstance(network, BodyMLP) and self._initial_weights == NORMAL
                graph = _critic_graph(network.graph, self._critic_slices, is_global)
                return NodeMean(self._started(type(network)(self.spec.config, graph)))
            return build_network(self.spec, TokenLayout("obs", self._critic_slices), outputs)

        return RegistryModel(build, *arguments, **settings)

    def _started(self, network: nn.Module) -> nn.Module:
        """A network with its initial weights, in place."""
        if isinstance(network, BodyPolicy) and self._initial_weights == NORMAL:
            network.apply(_draw_normal)
        elif isinstance(network, BoT) and network.position is not None:
            with torch.no_grad():
                network.position.mul_(_STD)
        return network

    def save(self, actor: "RegistryModel", folder: Path, card: Mapping[str, Any]) -> Path:
        """Write the actor as a policy's run; the card goes into its own."""
        policy = self.policy(actor)
        folder.mkdir(parents=True, exist_ok=True)
        whole = policy_card(policy, self.spec) | {"reinforcement_learning": dict(card)}
        write_bytes_durably(folder / CONFIG, (json.dumps(whole, indent=2) + "\n").encode())
        save_checkpoint(folder, policy, None, whole)
        return folder

    def policy(self, actor: "RegistryModel") -> PolicyNetwork:
        """The actor as a Gaussian policy, on the observation's and the action's own units."""
        normaliser = actor.obs_normalizer
        distribution = actor.distribution
        assert isinstance(normaliser, EmpiricalNormalization), "`RegistryModel` has one"
        assert isinstance(distribution, GaussianDistribution), "`make_algorithm` gives one"
        std = distribution.std_param.detach().cpu()
        spread = GaussianSpread(act_dim := std.numel())
        log_std = (self._filter * std.clamp(min=0.0)).log()
        above = log_std.clamp(min=MIN_LOG_STD + 1e-3) - MIN_LOG_STD
        with torch.no_grad():
            spread.unbounded.copy_(MIN_LOG_STD + above.expm1().log())
        mean = normaliser.mean.cpu()
        scale = (normaliser.std + normaliser.eps).cpu()
        return PolicyNetwork(
            copy.deepcopy(actor.mlp).cpu(),
            self.layout,
            Normaliser(mean.numpy(), scale.numpy()),
            Normaliser.identity(act_dim),
            gaussian=spread,
        ).filtered(self._filter)


class RegistryModel(MLPModel):
    """rsl-rl's model with a network of the registry in the MLP's place; inputs are normalised."""

    def __init__(
        self,
        build: Any,
        obs: Any,
        obs_groups: dict[str, list[str]],
        obs_set: str,
        output_dim: int,
        distribution_cfg: dict[str, Any] | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.obs_groups, self.obs_dim = self._get_obs_dim(obs, obs_groups, obs_set)
        self.obs_normalization = True
        self.obs_normalizer = EmpiricalNormalization(self.obs_dim)
        self.distribution = None
        if distribution_cfg is not None:
            self.distribution = GaussianDistribution(output_dim, distribution_cfg["init_std"])
        self.mlp = build(output_dim)


def _draw_normal(module: nn.Module) -> None:
    """Draw a module's own parameters from N(0, 0.02), with biases of zero, in place."""
    if isinstance(module, nn.Linear | Tokenizer | Detokenizer):
        nn.init.normal_(module.weight, std=_STD)
        nn.init.zeros_(module.bias)
    elif isinstance(module, EncoderLayer):  # after its layers
        nn.init.xavier_uniform_(module.qkv.weight)
    elif isinstance(module, BoT):
        for embedding in (module.position, module.hop_bias):
            if embedding is not None:
                nn.init.normal_(embedding, std=_STD)


class NodeMean(nn.Module):
    """The mean of a network's outputs, such as one per node, (B, D) -> (B, 1)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, observation: Tensor) -> Tensor:
        """(B, D) -> (B, 1)."""
        return self.network(observation).mean(dim=-1, keepdim=True)


def _single_step(model: str, overrides: Mapping[str, Any], body: str) -> ModelSpec:
    """A model's spec with a history of one step, over `body` unless it names another."""
    kind = preset(model).kind
    if kind not in _KINDS:
        raise ValueError(f"{model} does not act on single steps; of the kinds {listed(_KINDS)} do")
    defaults = {"history": 1, "body": PRESETS[model].values.get("body", body)}
    single = {name: value for name, value in defaults.items() if name in default_settings(kind)}
    spec = preset(model, {**single, **overrides})
    if spec.config.prefix_len:
        raise ValueError(f"{model} is trained on single steps; set its history to 1")
    return spec


def _critic_graph(graph: EmbodimentGraph, slices: Slices, is_global: bool) -> EmbodimentGraph:
    """The actor's graph for the critic's observation.

    is_global: one output, the root's; else one per node.
    """
    owners: dict[str, list[int]] = {node: [] for node in graph.nodes}
    joints = tuple(graph.nodes[node] for node in node_of_index(graph.actions).tolist())
    for node, group in zip(graph.nodes, graph.observations, strict=True):
        owners[node] += group
    for name, (start, stop) in slices.items():
        field = name.removeprefix(_CRITIC)
        if field == name:
            continue
        places = graph.nodes[:1] * (stop - start)
        places = joints if field in _AT_JOINTS else places
        places = joints[_CALVES] if field in _AT_FEET else places
        for index, node in zip(range(start, stop), places, strict=True):
            owners[node].append(index)
    values = [(index,) for index in range(len(graph.nodes))]
    if is_global:
        values[1:] = [()] * (len(values) - 1)
    return replace(graph, observations=tuple(map(tuple, owners.values())), actions=tuple(values))
