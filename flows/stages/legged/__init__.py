"""Training experts of legged robots, and replaying stored episodes."""
