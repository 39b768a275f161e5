"""Tests of the robots, terrains, skills, physics back ends, experts and rollouts."""
