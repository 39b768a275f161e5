"""The doctor: checks of what stores and other projects' data hold, without training."""
