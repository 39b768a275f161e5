"""The CMU humanoid tracking motion-capture clips, and MoCapAct's format (Wagener et al., 2022)."""
