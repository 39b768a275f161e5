"""A doctor for data: checks of what stores and other projects' datasets hold, without training."""
