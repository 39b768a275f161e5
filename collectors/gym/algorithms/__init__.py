"""Networks, replay buffer and soft actor-critic."""
