"""Parameter counts without allocating a network."""

import torch

from gaitforge.learners.models import registry
from gaitforge.learners.tokens import TokenLayout


def parameter_count(spec: registry.ModelSpec, layout: TokenLayout, act_dim: int) -> int:
    """Trainable parameters of the network of `spec`, counted on the meta device."""
    with torch.device("meta"):
        return registry.count_parameters(registry.build_network(spec, layout, act_dim))
