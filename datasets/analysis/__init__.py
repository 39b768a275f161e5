"""Statistics and lazy views of a selection, and the dataset card."""
