"""Policies learned from stored episodes: networks, objectives, the trainer and checkpoints."""

if __name__ != "gaitforge.learners":
    raise ImportError(
        "this folder is gaitforge's: import gaitforge.learners; to import another package called "
        "learners, start Python in another folder"
    )
