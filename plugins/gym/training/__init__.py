"""Training a Gymnasium task's policies."""
