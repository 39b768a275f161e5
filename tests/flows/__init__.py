"""Tests of collection, the demo and its Prefect flow."""
