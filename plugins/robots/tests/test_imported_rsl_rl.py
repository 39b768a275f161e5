"""Policies that rsl-rl's exporters wrote, in ONNX and TorchScript."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rsl_rl.models import MLPModel, RNNModel
from tensordict import TensorDict

from gaitforge.collectors.robots.robot import N_JOINTS
from gaitforge.plugins.robots.imported_experts.importing import (
    import_expert,
    open_network,
    template,
)
from gaitforge.plugins.robots.imported_experts.networks import trust_program
from tests.collectors.imported_files import WIDTH


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlp", "lstm", "gru"])
@pytest.mark.parametrize("suffix", [".onnx", ".pt"])
def test_rsl_rls_exporters(
    kind: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three steps of two robots are those of rsl-rl's own model, also after one's reset."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    torch.manual_seed(0)
    observations = torch.randn(3, 2, WIDTH)
    sets, shape = {"actor": ["policy"]}, TensorDict({"policy": observations[0]}, batch_size=[2])
    options: dict[str, Any] = {"obs_normalization": True, "hidden_dims": [16]}
    make: Callable[..., Any] = MLPModel
    if kind != "mlp":
        make = RNNModel
        options |= {"rnn_type": kind, "rnn_hidden_dim": 8, "rnn_num_layers": 2}
    model = make(shape, sets, "actor", N_JOINTS, **options).eval()
    for name, buffer in model.named_buffers():
        if name.endswith(("_mean", "_std")):
            buffer.copy_(torch.rand_like(buffer) + 0.5)
    file = tmp_path / f"policy{suffix}"
    if suffix == ".pt":
        torch.jit.script(model.as_jit()).save(str(file))
    else:
        exported: Any = model.as_onnx(verbose=False).eval()
        torch.onnx.export(
            exported, exported.get_dummy_inputs(), file, opset_version=18, dynamo=False,
            input_names=exported.input_names, output_names=exported.output_names,
        )  # fmt: skip
    if suffix == ".pt":
        trust_program(file.read_bytes(), file.name)
    network = open_network(file, WIDTH)
    state = [np.repeat(part[None], 2, axis=0) for part in network.state]
    assert len(state) == {"mlp": 0, "gru": 1, "lstm": 2}[kind]
    for seen_now in observations:
        with torch.no_grad():
            expected = model(TensorDict({"policy": seen_now}, batch_size=[2])).numpy()
        output, state = network.step(seen_now.numpy(), state)
        assert np.abs(output - expected).max() < 1e-5
    assert network.normaliser is not None
    assert np.allclose(network.normaliser[0], dict(model.named_buffers())["obs_normalizer._mean"])


def test_no_pickle_is_loaded(tmp_path: Path) -> None:
    """A checkpoint is refused, and what it would run on loading does not run."""
    torch.save({"model": Marks(tmp_path / "ran")}, tmp_path / "model.pt")
    (tmp_path / "layout.yaml").write_text(template("legged_gym"))
    with pytest.raises(ValueError, match="no TorchScript file; a checkpoint has to be exported"):
        import_expert(tmp_path / "model.pt", tmp_path / "mine", "a1", tmp_path / "layout.yaml",
                      gains="robot")  # fmt: skip
    assert not (tmp_path / "ran").exists()


class Marks:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)
