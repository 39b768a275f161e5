"""Training experts of the CMU humanoid, and evaluating on its task."""
