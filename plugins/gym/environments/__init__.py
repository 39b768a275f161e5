"""The tasks as environments: Gymnasium's, D4RL's, other people's and the humanoids."""
