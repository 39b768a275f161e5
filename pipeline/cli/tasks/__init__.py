"""Commands of the other tasks, and of the simulators."""
