"""The files for clusters and clouds: their form, and that what they call is what we have.

Kubernetes' own schemas, strict, and one of what the file for SkyPilot uses of its format, so that a
slip in a name is found without a cluster.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
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
from gaitforge.datasets.storage.s3.bucket import is_bucket_url
from gaitforge.pipeline.cli.main import build_parser
from gaitforge.pipeline.serve.deployments import FLOWS

ROOT = Path(__file__).resolve().parent.parent
SETUP = "deploy/kubernetes-setup.yaml"
KUBERNETES = "1.33"
PREFECT_FILES = ("prefect.yaml", "deploy/prefect-kubernetes.yaml")


def fields(required: list[str], **known: Any) -> dict[str, Any]:
    """The schema of an object with these fields and no others."""
    return {
        "type": "object",
        "required": required,
        "properties": known,
        "additionalProperties": False,
    }


def many(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a list that is not empty."""
    return {"type": "array", "items": schema, "minItems": 1}


TEXT = {"type": "string", "minLength": 1}
FLAG = {"type": "boolean"}
COUNT = {"type": "integer", "minimum": 0}
TEXTS = {"type": "object", "additionalProperties": TEXT}

SKY = fields(
    ["resources", "run"],
    name=TEXT,
    resources=fields(
        [],
        infra=TEXT,
        accelerators={"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}},
        cpus={"type": ["string", "integer"]},
        use_spot=FLAG,
        disk_size={"type": "integer", "minimum": 1},
        job_recovery=fields(
            [],
            strategy={"enum": ["FAILOVER", "EAGER_NEXT_REGION"]},
            max_restarts_on_errors=COUNT,
        ),
    ),
    num_nodes={"type": "integer", "minimum": 1},
    workdir=TEXT,
    envs=TEXTS,
    file_mounts={
        "type": "object",
        "propertyNames": {"pattern": "^/"},
        "additionalProperties": fields(
            [],
            name=TEXT,
            source=TEXT,
            store={"enum": ["s3", "gcs", "azure", "r2", "ibm", "oci", "nebius"]},
            mode={"enum": ["MOUNT", "COPY", "MOUNT_CACHED"]},
        ),
    },
    setup=TEXT,
    run=TEXT,
)


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


def test_the_cloud_task_fits_its_format_and_a_slip_does_not() -> None:
    tree = load("deploy/skypilot-train.yaml")
    assert faults(SKY, tree) == []
    assert faults(SKY, tree | {"spce": {}})


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


def test_a_mounted_bucket_takes_what_a_training_appends() -> None:
    mounts = load("deploy/skypilot-train.yaml")["file_mounts"]
    assert {mount["mode"] for mount in mounts.values()} == {"MOUNT_CACHED"}


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


def instructions(kind: str) -> list[str]:
    """What the Containerfile's instructions of a kind say, continued lines joined."""
    text = (ROOT / "Containerfile").read_text().replace("\\\n", " ")
    return re.findall(rf"^{kind} +(.*)$", text, re.M)


def test_the_container_is_built_by_what_the_project_has_and_not_run_by_root() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"&& make ([a-z-]+)", " ".join(instructions("RUN")))
    assert targets == ["setup"]
    assert all(f"\n{target}:" in makefile for target in targets)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [chosen] = [each.removeprefix("EXTRAS=") for each in instructions("ARG") if "EXTRAS" in each]
    assert set(chosen.split(",")) | {"warp"} <= set(project["optional-dependencies"])
    ignored = [line.strip("*/") for line in (ROOT / ".containerignore").read_text().splitlines()]
    tracked = subprocess.run(
        ["git", "ls-files"], check=False, cwd=ROOT, capture_output=True, text=True
    ).stdout
    if tracked:  # also in an archive without git, where nothing is to be compared
        assert not {Path(name).parts[0] for name in tracked.splitlines()} & set(ignored)
    assert instructions("USER") == ["1000"]
    assert [json.loads(each) for each in instructions("ENTRYPOINT")] == [["gaitforge"]]
    stages = [each.split()[-1] for each in instructions("FROM")]
    assert {"cpu", "cuda"} <= set(stages)
    copied = [each for each in instructions("COPY") if each.startswith("--from=")]
    assert {each.split()[0].removeprefix("--from=") for each in copied} <= set(stages)
