"""The files that a forge reads: by their own schemas, and by what they call and name here.

Workflows cannot run here: GitHub's own schemas, which `check_jsonschema` has, find the slips.
"""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from jsonschema.validators import validator_for

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = [
    path
    for path in sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    if path.stem != "config"
]
SCHEMAS = {
    **dict.fromkeys(WORKFLOWS, "github-workflows"),
    **dict.fromkeys(FORMS, "github-issue-forms"),
    ROOT / ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
    ROOT / ".github/dependabot.yml": "dependabot",
    ROOT / "CITATION.cff": "citation-file-format",
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WRITES = {
    "docs.yml deploy": {"pages", "id-token"},
    "release.yml publish": {"id-token", "attestations"},
    "image.yml build": {"packages", "id-token", "attestations"},
}
"""Workflow and job -> what it may write; all others may only read the code."""


def parse(path: Path) -> Any:
    """A YAML file; YAML 1.1 reads the key `on` as true."""
    tree = yaml.safe_load(path.read_text())
    return {"on" if key is True else key: value for key, value in tree.items()}


def faults(tree: Any, name: str) -> list[str]:
    schema = get_builtin_schema(f"vendor.{name}")
    return [error.message for error in validator_for(schema)(schema).iter_errors(tree)]


def jobs() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Every job: its workflow's and its own name, the job, the workflow."""
    return [
        (f"{path.name} {name}", job, workflow)
        for path in WORKFLOWS
        for workflow in [parse(path)]
        for name, job in workflow["jobs"].items()
    ]


def steps() -> list[dict[str, Any]]:
    return [step for _, job, _ in jobs() for step in job.get("steps", ())]


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name)
def test_a_file_is_as_its_schema_wants_it_and_a_slip_is_seen(path: Path) -> None:
    tree = parse(path)
    assert faults(tree, SCHEMAS[path]) == []
    assert faults({**tree, "jbos": [1]}, SCHEMAS[path])


def test_workflows_call_targets_that_the_makefile_has() -> None:
    targets = set(re.findall(r"^([a-z-]+):(?!=)", (ROOT / "Makefile").read_text(), re.M))
    lines = [line for step in steps() for line in str(step.get("run", "")).splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith("make ")]
    called = {word for words in commands for word in words[1:] if "=" not in word}
    assert called <= targets
    assert called >= {"lint", "docs", "test", "test-long", "test-python", "release"}


def test_the_matrix_is_of_the_pythons_that_the_project_names() -> None:
    named = {each.split()[-1] for each in PROJECT["classifiers"] if "Python :: 3." in each}
    workflow = parse(ROOT / ".github/workflows/tests.yml")
    assert set(workflow["jobs"]["test"]["strategy"]["matrix"]["python"]) == named
    machines = workflow["jobs"]["store"]["strategy"]["matrix"]["machine"]
    assert any("arm" in machine for machine in machines)
    assert any("macos" in machine for machine in machines)


def test_jobs_may_write_only_what_they_publish_and_have_a_limit() -> None:
    for name, job, workflow in jobs():
        assert workflow["permissions"] == {"contents": "read"}, name
        assert "concurrency" in workflow, name
        granted = job.get("permissions", workflow["permissions"])
        written = {scope for scope, access in granted.items() if access == "write"}
        assert written == WRITES.get(name, set()), name
        assert "uses" in job or job["timeout-minutes"] <= 180, name
    assert WRITES.keys() <= {name for name, _, _ in jobs()}


def test_actions_are_pinned_by_commit_alike_everywhere_and_no_secret_is_read() -> None:
    versions: dict[str, str] = {}
    for path in WORKFLOWS:
        text = path.read_text()
        assert "secrets." not in text, "trusted publishing and the job's own token need none"
        for line in re.findall(r"uses: (.+)", text):
            if line.startswith("./"):
                assert (ROOT / line).is_file()
                continue
            pinned = re.fullmatch(r"([\w./-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)", line)
            assert pinned, line
            assert versions.setdefault(pinned[1], pinned[2]) == pinned[2], line
    kept = [step for step in steps() if "actions/checkout@" in step.get("uses", "")]
    assert all(step["with"]["persist-credentials"] is False for step in kept)


def test_a_release_is_tested_first_and_published_by_trust() -> None:
    release = parse(ROOT / ".github/workflows/release.yml")["jobs"]
    assert set(release["publish"]["needs"]) == {"tests", "build"}
    assert release["publish"]["environment"] == "pypi"
    assert "workflow_call" in parse(ROOT / ".github/workflows/tests.yml")["on"]
    actions = [step.get("uses", "").partition("@")[0] for step in release["publish"]["steps"]]
    order = ["actions/attest-build-provenance", "pypa/gh-action-pypi-publish"]
    assert [name for name in actions if name in order] == order


def test_images_have_the_targets_and_arguments_of_the_containerfile() -> None:
    [job] = parse(ROOT / ".github/workflows/image.yml")["jobs"].values()
    containerfile = (ROOT / "Containerfile").read_text()
    targets = {each["target"] for each in job["strategy"]["matrix"]["include"]}
    assert targets <= set(re.findall(r" AS (\w+)", containerfile))
    [build] = [step for step in job["steps"] if "build-push-action" in step.get("uses", "")]
    argument = build["with"]["build-args"].partition("=")[0]
    assert f"ARG {argument}=" in containerfile


def test_dependabot_looks_where_packages_are_named() -> None:
    updates = parse(ROOT / ".github/dependabot.yml")["updates"]
    named = {each["package-ecosystem"]: each["directory"] for each in updates}
    page = ROOT / named["npm"].lstrip("/")
    assert (page / "package-lock.json").is_file() or not page.parent.is_dir()
    assert named.keys() == {"github-actions", "npm", "pip"}


def test_the_citation_is_of_this_version_and_of_both_papers() -> None:
    citation = parse(ROOT / "CITATION.cff")
    assert (citation["title"], str(citation["version"])) == (PROJECT["name"], PROJECT["version"])
    assert citation["license"] == PROJECT["license"]
    titles = [each["title"].partition(" ")[0] for each in citation["references"]]
    assert titles == ["Fourier", "Body"]
    assert [len(each["authors"]) for each in citation["references"]] == [7, 5]


def test_agents_are_sent_to_the_rules_in_forty_lines() -> None:
    text = (ROOT / "AGENTS.md").read_text()
    assert len(text.splitlines()) <= 40
    assert "(CONTRIBUTING.md)" in text
    assert "(ARCHITECTURE.md)" in text


def test_promises_of_security_name_tests_that_exist() -> None:
    rows = re.findall(r"^\|.*\|$", (ROOT / "SECURITY.md").read_text(), re.M)[2:]
    assert len(rows) >= 6
    for row in rows:
        files = re.findall(r"`((?:tests|plugins)/[\w/]+\.py)`", row)
        assert files, row
        for file in files:
            plugin = ROOT / "/".join(file.split("/")[:2])
            removed = file.startswith("plugins/") and not plugin.is_dir()
            assert removed or (ROOT / file).is_file(), file
