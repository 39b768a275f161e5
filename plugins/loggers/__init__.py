"""Curves, settings and pages of trainings in Weights & Biases, MLflow, SwanLab and Trackio."""
