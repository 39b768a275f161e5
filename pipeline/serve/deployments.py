"""What is deployed: the flows of `flows/`, and two that need this floor's pages."""

from typing import Any

from prefect import Flow

from flows.collect import collect, collect_plan
from flows.compare import compare
from flows.evaluate import evaluate
from flows.export import export
from flows.importing import import_data
from flows.query import query
from flows.train import train
from pipeline.serve.card import card
from pipeline.serve.pipeline import pipeline

_COLLECTING = (pipeline, collect, collect_plan, import_data)
_FLOWS = (*_COLLECTING, query, card, train, evaluate, compare, export)
FLOWS: dict[str, Flow[..., Any]] = {each.name: each for each in _FLOWS}
"""Everything that is deployed, by name."""
