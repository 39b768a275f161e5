"""The CMU humanoid that tracks motion-capture clips, as in MoCapAct (Wagener et al., 2022).

The task and its observation are dm_control's (the extra `mocapact`); nothing here imports it before
it is used.
"""
