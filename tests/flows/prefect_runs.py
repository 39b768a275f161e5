"""What a Prefect server knows of runs, for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Server:
    """A server by its API's address."""

    url: str

    def ask(self, path: str, **body: Any) -> Any:
        """The answer to a request."""
        answer = httpx.post(f"{self.url}/{path}", json=body, timeout=60)
        answer.raise_for_status()
        return answer.json()

    def runs(self, flow: str, **filters: Any) -> list[dict[str, Any]]:
        """A flow's runs, newest first."""
        known = self.ask(
            "flow_runs/filter",
            flows={"name": {"any_": [flow]}},
            flow_runs=filters,
            sort="EXPECTED_START_TIME_DESC",
        )
        return known

    def tasks(self, run: str) -> dict[str, str]:
        """Name -> state of the task runs of a flow run."""
        found: dict[str, str] = {}
        while True:
            page = self.ask(
                "task_runs/filter",
                flow_runs={"id": {"any_": [run]}},
                limit=200,
                offset=len(found),
            )
            found |= {task["name"]: task["state_type"] for task in page}
            if len(page) < 200:
                return found

    def artifacts(self, run: str) -> dict[str, dict[str, Any]]:
        """Key -> artifact of a flow run."""
        found = self.ask("artifacts/filter", artifacts={"flow_run_id": {"any_": [run]}})
        return {artifact["key"]: artifact for artifact in found}
