"""Gymnasium's MuJoCo tasks and the Adroit hand: environments, experts of our own, rollouts."""
