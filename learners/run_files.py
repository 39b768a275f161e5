"""Names of a run folder's checkpoints; imports no torch."""

KEPT = {"last": "checkpoint.safetensors", "best": "best.safetensors"}
