"""Policies of door, hammer and relocate: planned demonstrations, imitation, then PPO."""
