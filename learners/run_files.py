"""Checkpoints of a run folder by name; without torch, for those who only name them."""

KEPT = {"last": "checkpoint.safetensors", "best": "best.safetensors"}
