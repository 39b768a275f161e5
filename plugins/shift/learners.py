"""The nine learners of legged-shift-v1: imitation, filtered and conditioned, and learned values.

Imitators learn the actions that the policies chose, value-based methods those that were executed.
All have the settings that suit their network and objective, and as many updates as take two to
four minutes of one core. Nobody chose them by scores.
"""

from gaitforge.flows.experiments.plan import Learners, Settings

SETTINGS: Settings = {"split_seed": 0, "ema_decay": 0.995, "threads": 1}
# The policies of the papers on values: two hidden layers of 256.
_POLICY: Settings = {"model": "mlp", "model_overrides": {"hidden_dim": 256, "n_layers": 2}}
_VALUED: Settings = {**_POLICY, "batch_size": 256, "steps": 10_000}

LEARNERS: Learners = {
    "mlp": {"model": "mlp", "steps": 10_000},
    "mlp-top25": {"model": "mlp", "steps": 10_000, "best": 0.25},
    "fcnet": {"model": "fcnet", "steps": 3000},
    "bot": {"model": "bot-mix", "steps": 4000},
    "transformer": {"model": "transformer", "steps": 2000},
    "fcnet-rtg": {"model": "fcnet", "objective": "return", "steps": 3000},
    "dt": {"model": "dt", "objective": "return", "steps": 800, "batch_size": 16},
    "iql": {**_VALUED, "objective": "iql", "values": {"reward_scale": 1.0}},
    # Noise makes the range of actions wide, so that distances within it are small.
    "td3-bc": {**_VALUED, "objective": "td3-bc", "values": {"reward_scale": 16.0, "alpha": 0.02}},
}
