"""The tasks that can be collected, and evaluated on: legged robots, and by name any other."""
