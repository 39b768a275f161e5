"""What is deployed: the flows of `flows/`, and two that need this floor's pages."""

from typing import Any

from prefect import Flow

from gaitforge.flows.collect import collect, collect_plan
from gaitforge.flows.evaluate import evaluate
from gaitforge.flows.export import export
from gaitforge.flows.importing import import_data
from gaitforge.flows.query import query
from gaitforge.flows.train import train
from gaitforge.pipeline.serve.card import card
from gaitforge.pipeline.serve.experiment import experiment

_COLLECTING = (experiment, collect, collect_plan, import_data)
_FLOWS = (*_COLLECTING, query, card, train, evaluate, export)
FLOWS: dict[str, Flow[..., Any]] = {each.name: each for each in _FLOWS}
"""Everything that is deployed, by name."""
