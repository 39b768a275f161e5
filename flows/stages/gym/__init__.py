"""Training, evaluating and comparing on Gymnasium's tasks."""
