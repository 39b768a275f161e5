"""The network of an expert's file, evaluated in NumPy."""

import hashlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from gaitforge.common.errors import failures


def read_weights(path: Path, owner: str) -> tuple[dict[str, np.ndarray], str]:
    """Tensors of a safetensors file, and its hash; ValueError names the owner of a damaged file."""
    with failures(f"{owner} cannot be read", SafetensorError, error=ValueError):
        return load_file(path), hashlib.sha256(path.read_bytes()).hexdigest()[:16]


class Mlp:
    """Linear layers on normalised inputs, ELU between them; ValueError if they do not fit.

    Args:
        weights: "mean", "std" (inputs,), "layer{i}.weight" (out, in), "layer{i}.bias" (out,).
        owner: name for errors.
    """

    def __init__(self, weights: Mapping[str, np.ndarray], inputs: int, outputs: int, owner: str):
        count = sum(name.endswith(".weight") for name in weights)
        try:
            self._mean, self._std = weights["mean"].ravel(), weights["std"].ravel()
            self._layers = [
                (weights[f"layer{i}.weight"].T.copy(), weights[f"layer{i}.bias"])
                for i in range(count)
            ]
        except KeyError as missing:
            raise ValueError(f"{owner} lacks the tensor {missing}") from None
        if self._mean.size != inputs:
            raise ValueError(
                f"{owner} reads {self._mean.size} features, this version makes {inputs}"
            )
        sizes = [inputs, *(bias.size for _, bias in self._layers)]
        shapes = [weight.shape for weight, _ in self._layers]
        if shapes != list(pairwise(sizes)) or self._std.size != inputs or sizes[-1] != outputs:
            raise ValueError(
                f"{owner}: its tensors do not fit together as layers from {inputs} to {outputs}"
            )

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """(N, inputs) -> (N, outputs), float32."""
        x = inputs - self._mean
        x /= self._std
        for weight, bias in self._layers[:-1]:
            x = x @ weight
            x += bias
            below = np.minimum(x, 0)
            np.maximum(x, 0, out=x)
            x += np.expm1(below, out=below)
        weight, bias = self._layers[-1]
        return x @ weight + bias

    def parameters(self) -> int:
        """Number of trained parameters."""
        return sum(weight.size + bias.size for weight, bias in self._layers)
