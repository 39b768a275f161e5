"""Gymnasium's tasks with the Adroit hand, D4RL's format and FCNet's memory maps."""
