"""Gymnasium's tasks, D4RL's format and the Adroit hand; the README says more."""
