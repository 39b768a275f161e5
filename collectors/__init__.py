"""All that makes rollouts: robots, terrains, skills, physics back ends and driving policies."""
