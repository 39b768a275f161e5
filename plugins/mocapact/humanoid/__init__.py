"""The CMU humanoid tracking motion-capture clips, as in MoCapAct (Wagener et al., 2022)."""
