"""A whole pipeline: collect, describe, train, evaluate, compare, report."""
