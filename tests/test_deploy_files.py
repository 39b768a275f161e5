"""The files for clusters and clouds: their form, and that what they call is what we have.

Kubernetes' own schemas, strict, and the names of SkyPilot's format that its file may use, so that
a slip is found without a cluster.
"""

import json
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator
from prefect.client.schemas.objects import ConcurrencyLimitConfig
from prefect.client.schemas.schedules import CronSchedule
from prefect.utilities.templating import apply_values
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

from gaitforge.collectors.legged.data import COLLECTION_PRESETS
from gaitforge.datasets.storage.s3 import is_bucket_url
from gaitforge.pipeline.cli.deployments import FLOWS
from gaitforge.pipeline.cli.main import build_parser

ROOT = Path(__file__).resolve().parent.parent
SETUP = "deploy/kubernetes-setup.yaml"
KUBERNETES = "1.33"
PREFECT_FILES = ("prefect.yaml", "deploy/prefect-kubernetes.yaml")


SKYPILOT = {
    "": "name resources num_nodes workdir envs file_mounts setup run",
    "resources": "infra accelerators cpus use_spot disk_size job_recovery",
    "job_recovery": "strategy max_restarts_on_errors",
    "mount": "name source store mode",
}
"""Object -> the names of its fields."""


def load(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def faults(schema: dict[str, Any], tree: Any) -> list[str]:
    return [str(error.message) for error in Draft202012Validator(schema).iter_errors(tree)]


def deployments() -> list[Any]:
    return [
        pytest.param(
            each, id=f"{Path(name).stem}-{each['entrypoint'].split(':')[1]}-{each['name']}"
        )
        for name in PREFECT_FILES
        for each in load(name)["deployments"]
    ]


def test_the_cloud_task_has_known_fields_and_mounts_that_take_what_a_training_appends() -> None:
    task = load("deploy/skypilot-train.yaml")
    recovery, mounts = task["resources"]["job_recovery"], task["file_mounts"].values()
    found = {"": task, "resources": task["resources"], "job_recovery": recovery}
    for kind, each in [*found.items(), *(("mount", mount) for mount in mounts)]:
        assert each.keys() <= set(SKYPILOT[kind].split())
    assert {mount["mode"] for mount in mounts} == {"MOUNT_CACHED"}


def kubernetes() -> list[Any]:
    """Every object of the files for Kubernetes, and the Job that a Prefect worker makes."""
    names = ("deploy/kubernetes-setup.yaml", "deploy/kubernetes-collect.yaml")
    found = [each for name in names for each in yaml.safe_load_all((ROOT / name).read_text())]
    return [*found, worker_job({})]


def worker_job(values: dict[str, Any]) -> Any:
    """The Job that Prefect's worker makes of the pool's template and a deployment's variables."""
    template = json.loads((ROOT / "deploy/prefect-kubernetes-pool.json").read_text())
    known = template["variables"]["properties"]
    assert known.keys() >= values.keys()
    defaults = {name: each["default"] for name, each in known.items() if "default" in each}
    given = {**defaults, "env": {}, "labels": {}, "annotations": {}, "name": "collect", **values}
    given["env"] = [{"name": name, "value": value} for name, value in given["env"].items()]
    given["command"] = ["prefect", "flow-run", "execute"]
    return apply_values(template["job_configuration"], given)["job_manifest"]


def test_kubernetes_takes_the_files_and_a_slip_is_refused() -> None:
    trees = kubernetes()
    kinds = {"Namespace", "PersistentVolumeClaim", "ServiceAccount", "Role", "RoleBinding"}
    assert {tree["kind"] for tree in trees} == kinds | {"Deployment", "Job"}
    for tree in trees:
        kubernetes_validate.validate(tree, KUBERNETES, strict=True)
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(tree | {"spce": {}}, KUBERNETES, strict=True)


def test_what_the_kubernetes_files_name_is_there_and_no_pod_is_root() -> None:
    trees = kubernetes()
    by_kind = {(tree["kind"], tree["metadata"].get("name")) for tree in trees}
    secrets = set(re.findall(r"secret generic (\w+)", (ROOT / SETUP).read_text()))
    pods = [
        tree["spec"]["template"]["spec"] for tree in trees if tree["kind"] in ("Job", "Deployment")
    ]
    assert len(pods) == 3
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        if "serviceAccountName" in pod:
            assert ("ServiceAccount", pod["serviceAccountName"]) in by_kind
        for volume in pod.get("volumes", ()):
            claim = volume.get("persistentVolumeClaim", {}).get("claimName", "data")
            assert ("PersistentVolumeClaim", claim) in by_kind
        for container in pod["containers"]:
            assert {each["secretRef"]["name"] for each in container["envFrom"]} <= secrets
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert container["image"] == "registry.example.org/gaitforge:0.1.0"


def test_the_pools_template_is_one_that_prefects_worker_takes() -> None:
    template = json.loads((ROOT / "deploy/prefect-kubernetes-pool.json").read_text())
    known = KubernetesWorkerJobConfiguration.model_fields.keys()
    assert template["job_configuration"].keys() <= known


def test_pods_of_a_deployment_ask_for_a_cpu_for_each_thread() -> None:
    file = load("deploy/prefect-kubernetes.yaml")
    [nightly] = [each for each in file["deployments"] if each["name"] == "nightly"]
    job = worker_job(nightly["work_pool"]["job_variables"])
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert int(container["resources"]["requests"]["cpu"]) == nightly["parameters"]["threads"]
    assert {"name": "OMP_NUM_THREADS", "value": "1"} in container["env"]


def test_pods_of_the_job_make_the_parts_of_the_preset() -> None:
    spec = load("deploy/kubernetes-collect.yaml")["spec"]
    [container] = spec["template"]["spec"]["containers"]
    values = {entry["name"]: entry["value"] for entry in container["env"]}
    assert spec["completions"] == COLLECTION_PRESETS[values["PRESET"]].parts
    assert is_bucket_url(values["STORE"])

    [line] = container["args"]
    words = shlex.split(with_values(line, values | {"JOB_COMPLETION_INDEX": "7"}))
    assert words[:2] == ["exec", "gaitforge"]
    arguments = build_parser().parse_args(words[2:])
    assert arguments.parts == (7,)
    assert arguments.preset == values["PRESET"]
    assert arguments.store == values["STORE"]


def test_the_cloud_task_trains_into_the_mounted_bucket() -> None:
    task = load("deploy/skypilot-train.yaml")
    values = task["envs"] | {"SKYPILOT_NUM_GPUS_PER_NODE": "1"}
    words = shlex.split(with_values(task["run"], values).replace("\\\n", " "))
    start = words.index("gaitforge")
    assert words[start - 1] == "-m"
    arguments = build_parser().parse_args(words[start + 1 :])
    assert arguments.command == "train"
    assert any(arguments.out.is_relative_to(place) for place in task["file_mounts"])


@pytest.mark.parametrize("name", ["deploy/kubernetes-collect.yaml", "deploy/skypilot-train.yaml"])
def test_no_secret_stands_in_a_file(name: str) -> None:
    tree = load(name)
    values = tree.get("envs") or {
        entry["name"]: entry["value"]
        for container in tree["spec"]["template"]["spec"]["containers"]
        for entry in container["env"]
    }
    assert not [key for key in values if re.search("SECRET|TOKEN|PASSW|ACCESS_KEY", key)]


@pytest.mark.parametrize("deployment", deployments())
def test_a_deployment_calls_a_flow_with_parameters_that_it_takes(
    deployment: dict[str, Any],
) -> None:
    path, name = deployment["entrypoint"].split(":")
    assert (ROOT / path).is_file()
    flow = getattr(import_module(path.removesuffix(".py").replace("/", ".")), name)
    assert flow in FLOWS.values()
    found = flow.parameters.model_dump()
    schema = {
        "type": "object",
        "properties": found["properties"],
        "required": found["required"],
        "additionalProperties": False,
    }
    assert faults(schema, deployment["parameters"]) == []
    assert faults(schema, deployment["parameters"] | {"threads": -1})
    assert deployment["work_pool"]["name"]


@pytest.mark.parametrize("name", PREFECT_FILES)
def test_nightly_collections_are_new_ones_and_one_at_a_time(name: str) -> None:
    [nightly] = [each for each in load(name)["deployments"] if each["name"] == "nightly"]
    [schedule] = nightly["schedules"]
    assert CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"])
    assert nightly["parameters"]["new_every_day"] is True
    limit = ConcurrencyLimitConfig(**nightly["concurrency_limit"])
    assert (limit.limit, limit.collision_strategy) == (1, "ENQUEUE")


def with_values(line: str, values: dict[str, str]) -> str:
    """A shell line with its variables replaced."""
    return re.sub(r"\$(\w+)", lambda found: values[found.group(1)], line)
