"""Statistics of a selection, lazy views of it, and the dataset card."""
