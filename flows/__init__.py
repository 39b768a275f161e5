"""What users run: collection, training, evaluation and the whole road, as plain functions and as Prefect flows.

Every function takes a frozen plan, leaves its results in files, and goes on from there when it is run again.
"""
