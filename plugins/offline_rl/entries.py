"""The objectives of this plug-in, by the names of its entry points; loads no torch."""

from gaitforge.learners.training.objectives import Objective

_HERE = "gaitforge.plugins.offline_rl"
# Rate and optimiser are from Table 3 of TD3+BC and appendix B of IQL; windows are the model's.
_VALUE_TRAINING = {
    "optimiser": "adam",
    "peak_lr": 3e-4,
    "warmup_fraction": 0.0,
    "schedule": "constant",
    "weight_decay": 0.0,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "grad_clip": None,
    "executed_actions": True,  # rewards and next states follow from these
}

_REBRAC_TRAINING = _VALUE_TRAINING | {"peak_lr": 1e-3, "batch_size": 1024}
# As many steps per batch as 256 windows of one step.
_AWR_WINDOWS = {"window_len": 32, "batch_size": 8}

TD3_BC = Objective("obs", values=f"{_HERE}.td3_bc:TD3BC", training=_VALUE_TRAINING)
REBRAC = Objective("obs", values=f"{_HERE}.rebrac:ReBRAC", training=_REBRAC_TRAINING)
CQL = Objective("obs", values=f"{_HERE}.cql:CQL", training=_VALUE_TRAINING)
BEAR = Objective("obs", values=f"{_HERE}.bear:BEAR", training=_VALUE_TRAINING)
BRAC_V = Objective("obs", values=f"{_HERE}.brac_v:BRACv", training=_VALUE_TRAINING)
IQL = Objective("obs", gaussian=True, values=f"{_HERE}.iql:IQL", training=_VALUE_TRAINING)
AWR = Objective(
    "obs", gaussian=True, values=f"{_HERE}.awr:AWR", training=_VALUE_TRAINING | _AWR_WINDOWS
)
