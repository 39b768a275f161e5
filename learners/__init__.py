"""Policies learned from stored episodes: networks, objectives, the trainer and checkpoints."""
