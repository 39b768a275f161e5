"""Robots, terrains, skills, physics back ends and the policies that drive them: everything that makes rollouts."""
