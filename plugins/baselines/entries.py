"""The sizes of this plug-in's networks, by the names of their entry points; loads no torch.

As for the product's own baselines, the width is the one whose parameter count is closest to that of
the FCNet preset with the same suffix, within 5 %.
"""

from gaitforge.learners.models.registry import ATTENTION_WINDOWS, MLP_STEPS, ModelPreset

_RETNET = "Retentive Network"
_DT_RETNET = "Decision RetNet"

RETNET = ModelPreset(
    "retnet", 256_980, {"hidden_dim": 72}, training=ATTENTION_WINDOWS, about=_RETNET
)
RETNET_LEGGED = ModelPreset("retnet", 800_908, {"hidden_dim": 128}, about=_RETNET)
DT_RETNET = ModelPreset(
    "dt-retnet",
    257_340,
    {"hidden_dim": 72},
    "legged-return",
    "return",
    ATTENTION_WINDOWS,
    about=_DT_RETNET,
)
DT_RETNET_LEGGED = ModelPreset(
    "dt-retnet", 801_548, {"hidden_dim": 128}, "legged-return", "return", about=_DT_RETNET
)

_GRU = "gated recurrent units"
_LSTM = "long short-term memory"

GRU = ModelPreset("gru", 255_540, {"hidden_dim": 156}, training=ATTENTION_WINDOWS, about=_GRU)
GRU_LEGGED = ModelPreset("gru", 792_372, {"hidden_dim": 284}, about=_GRU)
LSTM = ModelPreset("lstm", 249_756, {"hidden_dim": 132}, training=ATTENTION_WINDOWS, about=_LSTM)
LSTM_LEGGED = ModelPreset("lstm", 789_596, {"hidden_dim": 244}, about=_LSTM)


def _flow(parameters: int, **values: int) -> ModelPreset:
    steps = f", steps={values['steps']}" if "steps" in values else ""
    about = f"flow matching{steps}"
    return ModelPreset("flow", parameters, values, "legged", "bc, return", MLP_STEPS, about)


FLOW = _flow(254_064, hidden_dim=156)
FLOW_1 = _flow(254_064, hidden_dim=156, steps=1)
FLOW_4 = _flow(254_064, hidden_dim=156, steps=4)
FLOW_LEGGED = _flow(788_976, hidden_dim=380)
