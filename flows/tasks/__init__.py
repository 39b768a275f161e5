"""The tasks that can be collected: legged robots, Gymnasium's tasks, the CMU humanoid."""
