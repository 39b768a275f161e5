"""robomimic's HDF5 files, as Isaac Lab's recorder and Isaac Lab Mimic write them too."""
