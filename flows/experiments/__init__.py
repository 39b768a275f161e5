"""Experiments: learners on sets of episodes, trained with seeds and scored in closed loop."""
