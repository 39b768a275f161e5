"""The files for clusters and clouds: their form, and that what they call is what we have.

The schemas hold what these files use of the formats (batch/v1 Job of Kubernetes 1.33, SkyPilot's
task, Prefect's deployments), closed, so that a slip in a name is found without a cluster.
"""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from prefect.client.schemas.objects import ConcurrencyLimitConfig
from prefect.client.schemas.schedules import CronSchedule

from collectors.legged.data import COLLECTION_PRESETS
from datasets.storage.s3.bucket import is_bucket_url
from pipeline.cli.main import build_parser
from pipeline.serve.deployments import FLOWS

ROOT = Path(__file__).resolve().parent.parent
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
NAME = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
QUANTITY = {"type": "string", "pattern": r"^\d+(m|[KMGT]i)?$"}
QUANTITIES = {"type": "object", "additionalProperties": QUANTITY}

CONTAINER = fields(
    ["name", "image"],
    name=NAME,
    image={"type": "string", "pattern": r"^[\w.:/-]+:[\w.-]+$"},
    command=many(TEXT),
    args=many(TEXT),
    env=many(fields(["name", "value"], name=TEXT, value={"type": "string"})),
    envFrom=many(fields(["secretRef"], secretRef=fields(["name"], name=NAME))),
    resources=fields(["requests"], requests=QUANTITIES, limits=QUANTITIES),
    securityContext=fields(
        [], allowPrivilegeEscalation=FLAG, capabilities=fields([], drop=many(TEXT))
    ),
    volumeMounts=many(fields(["name", "mountPath"], name=NAME, mountPath=TEXT)),
)
POD = fields(
    ["containers", "restartPolicy"],
    restartPolicy={"enum": ["Never", "OnFailure"]},
    automountServiceAccountToken=FLAG,
    securityContext=fields(
        [], runAsNonRoot=FLAG, runAsUser=COUNT, seccompProfile=fields(["type"], type=TEXT)
    ),
    containers=many(CONTAINER),
    volumes=many(fields(["name"], name=NAME, emptyDir=fields([], sizeLimit=QUANTITY))),
)
RULE = fields(
    ["action", "onPodConditions"],
    action={"enum": ["Ignore", "Count", "FailIndex", "FailJob"]},
    onPodConditions=many(fields(["type"], type=TEXT)),
)
JOB = fields(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "batch/v1"},
    kind={"const": "Job"},
    metadata=fields(["name"], name=NAME, namespace=NAME, labels=TEXTS),
    spec=fields(
        ["completions", "completionMode", "template"],
        completionMode={"const": "Indexed"},
        completions={"type": "integer", "minimum": 1},
        parallelism={"type": "integer", "minimum": 1},
        backoffLimitPerIndex=COUNT,
        maxFailedIndexes=COUNT,
        ttlSecondsAfterFinished=COUNT,
        podFailurePolicy=fields(["rules"], rules=many(RULE)),
        template=fields(["spec"], spec=POD),
    ),
)

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


@pytest.mark.parametrize(
    ("name", "schema"),
    [("deploy/kubernetes-collect.yaml", JOB), ("deploy/skypilot-train.yaml", SKY)],
)
def test_the_file_fits_its_format_and_a_slip_does_not(name: str, schema: dict[str, Any]) -> None:
    tree = load(name)
    assert faults(schema, tree) == []
    assert faults(schema, tree | {"spce": {}})


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
    start = words.index("pipeline.cli")
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
