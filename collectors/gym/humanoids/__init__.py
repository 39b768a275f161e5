"""The humanoid tasks of the Body Transformer paper, simulated by MuJoCo."""
