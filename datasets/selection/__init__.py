"""Selections of episodes, saved selections, and returns-to-go."""
