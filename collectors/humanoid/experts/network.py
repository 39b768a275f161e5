"""A small network as an expert's file holds it, evaluated in NumPy."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np


class Mlp:
    """Normalised inputs through linear layers with ELU between them; ValueError if they do not fit.

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
        sizes = [inputs, *(bias.size for _, bias in self._layers)]
        fits = all(
            weight.shape == shape
            for (weight, _), shape in zip(self._layers, pairwise(sizes), strict=True)
        )
        if not fits or sizes[-1] != outputs or not self._mean.size == self._std.size == inputs:
            raise ValueError(f"{owner}: its tensors are no layers from {inputs} to {outputs} units")

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """(N, inputs) -> (N, outputs), float32."""
        x = (inputs - self._mean) / self._std
        for weight, bias in self._layers[:-1]:
            x = x @ weight + bias
            x = np.where(x > 0, x, np.expm1(np.minimum(x, 0)))
        weight, bias = self._layers[-1]
        return x @ weight + bias
