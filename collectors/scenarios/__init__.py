"""Conditions of an episode: terrain, passage, skill and its commands, randomisation."""
