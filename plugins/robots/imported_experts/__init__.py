"""Policies trained elsewhere: legged_gym, Isaac Lab, mjlab."""
