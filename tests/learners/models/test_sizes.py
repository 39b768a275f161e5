"""Parameter counts: published ones, FCNet's in the baselines, and counting without making."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.collectors.robots.robot import N_JOINTS
from gaitforge.common.extensions import extension_names
from gaitforge.learners.models import registry
from gaitforge.learners.models.bodies import OBS_SLICES, SPACES
from gaitforge.learners.models.registry import (
    PRESETS,
    build_network,
    count_parameters,
    describe_models,
    preset,
    spec_from_json,
)
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.objectives import has_own_loss
from tests.learners.making import KINDS, RETURN_KINDS
from tests.learners.models.parameter_counts import parameter_count

BASELINES = [kind for kind in KINDS if kind not in ("fcnet", "bot", "body-mlp")]
PUBLISHED = {
    "fcnet-legged": 787_852,  # Tan et al. 2024, Table 7
    "fcnet-d4rl-hopper": 2_593_283,  # the published models
    "fcnet-d4rl-halfcheetah": 2_598_278,  # the same sizes with its dimensions, computed by hand
    "fcnet-d4rl-walker2d": 2_598_278,
    # Sferrazza et al. 2024, Figure 12: the Adroit table gives the door's numbers; those of the
    # other tasks and of the soft bias are the published classes'.
    "bot-mocapact": 17_544_120,
    "bot-mix-mocapact": 17_544_120,
    "bot-soft-mocapact": 17_544_135,
    "transformer-mocapact": 17_544_120,
    "mlp-mocapact": 16_696_656,
    "bot-adroit-door": 17_131_292,
    "bot-soft-adroit-door": 17_131_303,
    "transformer-adroit-door": 17_131_292,
    "mlp-adroit-door": 14_305_524,
    "bot-adroit-hammer": 17_132_890,
    "bot-soft-adroit-hammer": 17_132_901,
    "mlp-adroit-hammer": 14_302_770,
    "bot-adroit-relocate": 17_131_934,
    "bot-soft-adroit-relocate": 17_131_945,
    "mlp-adroit-relocate": 14_308_726,
}


def space_of(kind: str) -> str:
    return "legged-return" if kind in RETURN_KINDS else "legged"


def count(name: str) -> int:
    space = SPACES[PRESETS[name].space]
    return parameter_count(preset(name), space.layout, space.act_dim)


def test_presets_have_the_published_numbers_of_parameters() -> None:
    assert {name: count(name) for name in PUBLISHED} == PUBLISHED


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_json_and_are_listed_with_their_parameters(
    name: str,
) -> None:
    entry, spec = PRESETS[name], preset(name)
    assert spec_from_json(spec.to_json()) == spec == preset(name)
    assert entry.parameters == count(name)
    returns = SPACES[entry.space].layout.kind == "return"
    with torch.device("meta"):
        space = SPACES[entry.space]
        own_loss = has_own_loss(build_network(spec, space.layout, space.act_dim))
    assert entry.objective == ("return" if returns else "bc, return" if own_loss else "any")


@pytest.mark.parametrize("suffix", ["", "-legged"])
@pytest.mark.parametrize("kind", BASELINES)
def test_baseline_presets_have_the_width_that_is_closest_to_fcnets_size(
    kind: str, suffix: str
) -> None:
    target, spec = count(f"fcnet{suffix}"), preset(f"{kind}{suffix}")
    layout, step = SPACES[space_of(kind)].layout, 2 * getattr(spec.config, "n_heads", 2)

    def distance(steps: int) -> int:
        config = replace(spec.config, hidden_dim=spec.config.hidden_dim + step * steps)
        return abs(parameter_count(replace(spec, config=config), layout, 12) - target)

    assert distance(0) <= min(distance(-1), distance(1))
    assert distance(0) <= 0.05 * target  # Tan et al. 2024, C.3: "roughly" FCNet's size


@pytest.mark.parametrize("suffix", ["", "-legged"])
def test_the_published_transformer_is_as_large_as_fcnet_and_clipped(suffix: str) -> None:
    """Of the published code: no positions, dropout, a norm on the embedding, 8 heads, clip 1.0."""
    name = f"transformer-published{suffix}"
    assert abs(count(name) / count(f"fcnet{suffix}") - 1) <= 0.05
    published = preset(name).config
    ours = preset(f"transformer{suffix}").config
    options = ("positions", "dropout", "embedding_norm", "n_heads")
    assert [getattr(published, option) for option in options] == ["none", 0.1, True, 8]
    assert [getattr(ours, option) for option in options] == ["rotary", 0.0, False, 4]
    training = TrainConfig.recommended(name)
    assert training.grad_clip == 1.0
    if suffix:  # Tan et al. 2024, Table 6
        recipe = (training.optimiser, training.peak_lr, training.weight_decay, training.batch_size)
        assert recipe == ("lion", 5e-3, 1e-4, 1024)
        trained = TrainConfig.recommended("transformer-legged")
        assert replace(trained, model=name) == training


def test_a_transformer_of_an_older_version_is_read_as_it_was() -> None:
    sizes = {"hidden_dim": 72, "n_heads": 4, "n_layers": 4, "context_len": 64}
    assert spec_from_json({"kind": "transformer", "config": sizes}) == preset("transformer")
    assert spec_from_json({"kind": "dt", "config": sizes}) == preset("dt")


@pytest.mark.parametrize("name", ["fcnet", "bot", *BASELINES])
def test_counting_makes_nothing_and_draws_nothing(name: str) -> None:
    space = SPACES[PRESETS[name].space]
    made = count_parameters(build_network(preset(name), space.layout, space.act_dim))
    state = torch.get_rng_state()
    assert parameter_count(preset(name), space.layout, space.act_dim) == made
    assert torch.equal(torch.get_rng_state(), state)


def test_every_preset_is_listed_and_every_kind_has_one() -> None:
    rows = describe_models()
    assert [row["model"] for row in rows] == list(PRESETS)
    assert {row["kind"] for row in rows} == {*registry.KINDS, *extension_names("model")}
    assert rows[0] == {
        "model": "fcnet",
        "kind": "fcnet",
        "words": "Fourier Controller Network",
        "space": "legged",
        "objective": "any",
        "parameters": 254_668,
    }


def test_listing_models_does_not_import_torch() -> None:
    name = registry.__name__
    code = f"import sys, {name} as r; r.describe_models(); print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert name in loaded
    assert not {"torch", "numpy"} & set(loaded)


def test_the_legged_space_is_what_the_collectors_store() -> None:
    assert dict(OBS_SLICES) == POLICY_SLICES
    assert SPACES["legged"].act_dim == N_JOINTS
    assert SPACES["d4rl-hopper"].layout.dim == 15


def test_unknown_models_and_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="allowed: fcnet, fcnet-legged, bot"):
        preset("mamba")
    with pytest.raises(ValueError, match="has no setting 'depth'"):
        preset("fcnet", {"depth": 3})
    with pytest.raises(ValueError, match="no kind of model"):
        spec_from_json({"kind": "mamba", "config": {}})
    with pytest.raises(ValueError, match="settings of bot cannot be read"):
        spec_from_json({"kind": "bot", "config": {"depth": 3}})


@pytest.mark.parametrize(
    ("model", "setting", "value", "needed"),
    [
        ("bot", "fixed_std", "x", "a number or none"),
        ("bot", "body", 5, "a text or an object of named values"),
        ("body-mlp", "n_modes", None, "a whole number"),
        ("transformer", "dropout", [1], "a number"),
        ("transformer", "embedding_norm", 1, "true or false"),
        ("fcnet", "hidden_dim", True, "a whole number"),
        ("flow", "temperature", {"a": 1}, "a number"),
    ],
)
def test_settings_of_another_type_are_refused(
    model: str, setting: str, value: object, needed: str
) -> None:
    if model not in PRESETS:
        pytest.skip("its plug-in is not here")
    words = f"model {model}: setting {setting} must be {needed}, got "
    with pytest.raises(ValueError, match=words):
        preset(model, {setting: value})
