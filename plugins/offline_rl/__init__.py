"""Offline reinforcement learning: objectives with a value of the data's states and actions.

Each file has one algorithm's losses with the equations of its paper. They are ours, not TorchRL's
or d3rlpy's: those own their networks and their optimisers, and average over a batch, while here any
sequence model acts, windows are masked, and losses are summed over the steps of all processes.
Tests hold values and returns against their closed forms.
"""
