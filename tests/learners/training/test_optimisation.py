"""Optimisers, schedules, averaged weights, and one step of them all."""

import shutil
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gaitforge.learners.models.registry import preset
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.distributed import Ranks
from gaitforge.learners.training.update import (
    Lion,
    Updater,
    averaged_copy,
    learning_rate,
    make_optimiser,
)
from tests.learners.making import make_policy


@given(
    betas=st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)),
    decay=st.floats(0, 0.5),
    lr=st.floats(1e-4, 0.1),
)
@settings(max_examples=30, deadline=None)
def test_lion_follows_its_equations(betas: tuple[float, float], decay: float, lr: float) -> None:
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(4, 3, dtype=torch.float64)) for _ in range(2)]
    optimiser = Lion(parameters, lr, betas, decay)
    weights = [value.detach().clone() for value in parameters]
    momenta = [torch.zeros_like(value) for value in weights]
    for _ in range(4):
        for value in parameters:
            value.grad = torch.randn(4, 3, dtype=torch.float64, generator=generator)
        for i, value in enumerate(parameters):
            gradient = value.grad
            assert gradient is not None
            direction = torch.sign(betas[0] * momenta[i] + (1 - betas[0]) * gradient)
            weights[i] = weights[i] - lr * (direction + decay * weights[i])
            momenta[i] = betas[1] * momenta[i] + (1 - betas[1]) * gradient
        optimiser.step()
        for value, expected in zip(parameters, weights, strict=True):
            torch.testing.assert_close(value.detach(), expected)


def test_the_papers_presets_train_as_published() -> None:
    """BoT by torch's own AdamW at one rate; FCNet by Adam with Table 4's and Table 5's settings."""
    weight = [nn.Parameter(torch.zeros(2))]
    for name in ("bot-mocapact", "transformer-adroit-door", "mlp-adroit-hammer"):
        config = TrainConfig.recommended(name, steps=50)
        assert {learning_rate(step, config) for step in range(50)} == {1e-4}
        made, published = make_optimiser(weight, config), torch.optim.AdamW(weight, lr=1e-4)
        for setting in ("lr", "betas", "eps", "weight_decay", "amsgrad"):
            assert made.defaults[setting] == published.defaults[setting]
        assert (config.window_len, config.batch_size, config.grad_clip) == (1, 256, None)
        assert not config.normalise_actions
    assert preset("bot-mix-mocapact").config.fixed_std == 0.1
    for name, batch_size in (("fcnet-legged", 1024), ("fcnet-d4rl-hopper", 128)):
        config = TrainConfig.recommended(name, steps=50)
        rates = [learning_rate(step, config) for step in range(50)]
        assert rates[:10] == pytest.approx([5e-4 * n for n in range(1, 11)])
        assert rates[10] == 5e-3 > rates[-1]
        made = make_optimiser(weight, config)
        assert isinstance(made, torch.optim.Adam)
        assert not isinstance(made, torch.optim.AdamW)
        assert (config.betas, config.eps, config.weight_decay) == ((0.9, 0.98), 1e-9, 1e-4)
        assert (config.window_len, config.batch_size, config.grad_clip) == (64, batch_size, None)
    assert (config.objective, config.return_zero) == ("return", None)
    assert TrainConfig.recommended("bot-mocapact", peak_lr=1e-3, grad_clip=1.0).grad_clip == 1.0


def test_the_constant_schedule_stays_at_the_peak() -> None:
    config = TrainConfig(steps=100, warmup_fraction=0.1, peak_lr=0.5, schedule="constant")
    rates = [learning_rate(step, config) for step in range(100)]
    assert rates[:10] == pytest.approx([0.05 * n for n in range(1, 11)])
    assert set(rates[10:]) == {0.5}


def test_an_averaged_copy_follows_the_weights() -> None:
    module = nn.Linear(2, 1).double()
    average = averaged_copy(module, 0.9)
    expected = module.weight.detach().clone()
    for step in range(1, 120):
        with torch.no_grad():
            module.weight.add_(1.0)
        average.update_parameters(module)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * module.weight.detach()
    torch.testing.assert_close(dict(average.module.named_parameters())["weight"].detach(), expected)


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    mask = torch.arange(9)[None] < torch.tensor([9, 2, 7, 1, 5])[:, None]
    return {
        "obs": torch.randn(5, 9, 70, generator=generator),
        "action": torch.randn(5, 9, 12, generator=generator),
        "mask": mask,
        "episode": torch.arange(5),
    }


def updater(model: str = "fcnet", **changes: object) -> Updater:
    config = replace(TrainConfig(grad_clip=None), **changes)
    return Updater(make_policy(model), config, Ranks())


@pytest.mark.parametrize("parts", [2, 4, 50])
def test_accumulated_gradients_are_those_of_the_whole_batch(parts: int) -> None:
    whole, divided = updater(), updater(accumulate=parts)
    expected, found = whole.step(batch(), 0, 1e-3), divided.step(batch(), 0, 1e-3)
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    assert found.valid_steps == expected.valid_steps == 24
    for mine, other in zip(whole.policy.parameters(), divided.policy.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_the_gradient_is_clipped_to_its_limit() -> None:
    free, clipped = updater(), updater(grad_clip=1e-3)
    for each in (free, clipped):
        each.step(batch(), 0, 1e-3)
    norms = [
        torch.nn.utils.get_total_norm(
            [value.grad for value in each.policy.parameters() if value.grad is not None]
        )
        for each in (free, clipped)
    ]
    assert norms[0] > 1e-3
    assert norms[1] == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("model", ["fcnet", "bot"])
def test_bf16_finds_about_the_same_loss(model: str) -> None:
    expected, found = (
        updater(model, precision=each).step(batch(), 0, 1e-3) for each in ("float32", "bf16")
    )
    assert found.loss == pytest.approx(expected.loss, rel=0.02)
    assert found.loss != expected.loss


def test_a_step_that_is_not_finite_moves_nothing() -> None:
    each = updater(ema_decay=0.9)
    before = {name: value.clone() for name, value in each.policy.state_dict().items()}
    spoiled = batch()
    spoiled["action"][0, 0, 0] = torch.inf
    assert not each.step(spoiled, 0, 1e-3).finite
    assert all(torch.equal(value, before[name]) for name, value in each.policy.state_dict().items())


def test_networks_draw_the_same_random_numbers_when_a_step_is_repeated() -> None:
    def trained(steps: list[int]) -> list[float]:
        each = updater()
        linear = nn.Linear(70, 12)
        with torch.no_grad():
            linear.weight.fill_(0.1)
            linear.bias.zero_()
        each.policy.network = nn.Sequential(nn.Dropout(0.5), linear)
        return [each.step(batch(), step, 1e-9).loss for step in steps]

    first, second, third = trained([0, 1, 2])
    assert trained([2, 0]) == pytest.approx([third, first], rel=1e-5)
    assert len({first, second, third}) == 3


# The compiler's remarks on FCNet's caches and complex weights are no fault of ours.
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.long
def test_a_compiled_network_learns_the_same() -> None:
    pytest.importorskip("torch._inductor")
    if not any(map(shutil.which, ("g++", "clang++"))):
        pytest.skip("there is no C++ compiler")
    plain, compiled = updater(), updater(compile=True)
    for step in range(2):
        expected, found = plain.step(batch(), step, 1e-3), compiled.step(batch(), step, 1e-3)
        assert found.loss == pytest.approx(expected.loss, rel=1e-4)
    assert plain.policy.state_dict().keys() == compiled.policy.state_dict().keys()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_compiler_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch._inductor")
    from torch._inductor import config as inductor
    from torch._inductor.utils import fresh_cache

    monkeypatch.setattr(inductor.cpp, "cxx", (None, "/nonexistent"))
    monkeypatch.setenv("PATH", "/nonexistent")
    torch.compiler.reset()
    each = updater(compile=True)
    with (
        fresh_cache(),
        pytest.raises(ValueError, match=r"torch.compile failed \(.*needs a compiler") as caught,
    ):
        each.step(batch(), 0, 1e-3)
    assert "\n" not in str(caught.value)
