"""MoCapAct's HDF5 rollouts."""
