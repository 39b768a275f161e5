"""The benchmark legged-shift-v1: data of three kinds of episodes, and learners scored on each."""
