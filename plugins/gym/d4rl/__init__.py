"""D4RL's HDF5 files."""
