"""Isaac Gym, in a process of its own Python."""
