"""Humanoid-Mod: run on flat ground (Sferrazza et al. 2024, Section 5.2)."""

from gaitforge.collectors.gym.humanoids.humanoid import Humanoid


class HumanoidMod(Humanoid):
    """The base task as it is."""
