"""What a Prefect server knows of runs, for tests."""

import time
from dataclasses import dataclass
from typing import Any

import httpx

BUSY = httpx.codes.SERVICE_UNAVAILABLE
"""What a server answers whose database was busy: ask again, as Prefect's own clients do."""
LONGEST_WAIT_S = 16.0


@dataclass(frozen=True)
class Server:
    """A server by its API's address."""

    url: str

    def ask(self, path: str, **body: Any) -> Any:
        """The answer to a request."""
        return self._answer("POST", path, json=body)

    def look_up(self, path: str) -> Any:
        """What the server has at a path."""
        return self._answer("GET", path)

    def _answer(self, method: str, path: str, **what: Any) -> Any:
        wait_s = 0.5
        while True:
            answer = httpx.request(method, f"{self.url}/{path}", timeout=60, **what)
            if answer.status_code != BUSY or wait_s > LONGEST_WAIT_S:
                answer.raise_for_status()
                return answer.json()
            time.sleep(wait_s)
            wait_s *= 2

    def deployment(self, flow: str) -> dict[str, Any] | None:
        """The deployment of a served flow; None where there is none yet."""
        answer = httpx.get(f"{self.url}/deployments/name/{flow}/gaitforge", timeout=60)
        return answer.json() if answer.is_success else None

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

    def said(self, run: str) -> str:
        """What a flow run logged, and its end."""
        lines = self.ask("logs/filter", logs={"flow_run_id": {"any_": [run]}}, sort="TIMESTAMP_ASC")
        state = self.look_up(f"flow_runs/{run}")["state"]
        return "\n".join([*(line["message"] for line in lines), str(state["message"])])

    def artifacts(self, run: str) -> dict[str, dict[str, Any]]:
        """Key -> artifact of a flow run."""
        found = self.ask("artifacts/filter", artifacts={"flow_run_id": {"any_": [run]}})
        return {artifact["key"]: artifact for artifact in found}
