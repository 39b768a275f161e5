"""What users run: collection, training, evaluation, the whole road; plain or as Prefect flows.

Every function takes a frozen plan, leaves its results in files, and goes on from there when it is
run again.
"""
