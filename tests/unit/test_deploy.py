"""What is under deploy/: scripts that a shell takes, manifests that a cluster takes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.conftest import ROOT

DEPLOY = ROOT / "deploy"
SCRIPTS = sorted(DEPLOY.rglob("*.sh"))
SHELLCHECK = Path(sys.executable).with_name("shellcheck")


def keys(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """An object with these keys and no others."""
    own = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**own, "required": list(required)}


TEXT, COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
SIZES = {
    "type": "object",
    "additionalProperties": {"pattern": r"^\d+(\.\d+)?([KMGT]i)?$", "type": ["string", "integer"]},
}


def listed(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": 1}


CONTAINER = keys(
    ("name", "image", "resources"),
    name=NAME,
    image=TEXT,
    command=listed(TEXT),
    args=listed(TEXT),
    env=listed(keys(("name", "value"), name=TEXT, value=TEXT)),
    envFrom=listed(keys(("secretRef",), secretRef=keys(("name",), name=NAME))),
    resources=keys(("requests", "limits"), requests=SIZES, limits=SIZES),
    volumeMounts=listed(keys(("name", "mountPath"), name=NAME, mountPath=TEXT)),
)
VOLUME = keys(
    ("name",),
    name=NAME,
    persistentVolumeClaim=keys(("claimName",), claimName=NAME),
    emptyDir=keys(medium={"const": "Memory"}, sizeLimit=TEXT),
)
POD = keys(
    ("containers",),
    containers=listed(CONTAINER),
    restartPolicy={"enum": ["OnFailure", "Never"]},
    terminationGracePeriodSeconds=COUNT,
    volumes=listed(VOLUME),
)
TEMPLATE = keys(("spec",), spec=POD)
STARTED = {"type": "object", "additionalProperties": TEXT}  # Ray's parameters are all strings
METADATA = keys(("name",), name=NAME)
# The part of both definitions that we use: batch/v1 Job, and KubeRay's ray.io/v1 RayJob.
SCHEMAS = {
    "Job": keys(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "batch/v1"},
        kind=TEXT,
        metadata=METADATA,
        spec=keys(("template",), backoffLimit=COUNT, template=TEMPLATE),
    ),
    "RayJob": keys(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "ray.io/v1"},
        kind=TEXT,
        metadata=METADATA,
        spec=keys(
            ("entrypoint", "rayClusterSpec"),
            entrypoint=TEXT,
            shutdownAfterJobFinishes={"type": "boolean"},
            ttlSecondsAfterFinished=COUNT,
            backoffLimit=COUNT,
            submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
            rayClusterSpec=keys(
                ("headGroupSpec", "workerGroupSpecs"),
                rayVersion=TEXT,
                headGroupSpec=keys(
                    ("rayStartParams", "template"), rayStartParams=STARTED, template=TEMPLATE
                ),
                workerGroupSpecs=listed(
                    keys(
                        ("groupName", "rayStartParams", "template"),
                        groupName=NAME,
                        replicas=COUNT,
                        minReplicas=COUNT,
                        maxReplicas=COUNT,
                        rayStartParams=STARTED,
                        template=TEMPLATE,
                    )
                ),
            ),
        ),
    ),
}
MANIFESTS = sorted(DEPLOY.rglob("*.yaml"))


@pytest.mark.parametrize("place", MANIFESTS, ids=lambda path: path.name)
def test_manifests_conform(place: Path) -> None:
    """Keeps away: a misspelt key, which a cluster drops in silence or refuses at night."""
    content = yaml.safe_load(place.read_text())
    jsonschema.validate(content, SCHEMAS[content["kind"]])
    misspelt = yaml.safe_load(place.read_text().replace("resources:", "resource:"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(misspelt, SCHEMAS[content["kind"]])


def test_ray_is_the_one_that_is_tested() -> None:
    """Keeps away: a cluster of another Ray than the image's, which refuses its jobs."""
    content = yaml.safe_load((DEPLOY / "kubernetes/prepare-rayjob.yaml").read_text())
    pinned = re.search(r"^ray(?:\[.*\])?==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)
    assert pinned is not None
    assert content["spec"]["rayClusterSpec"]["rayVersion"] == pinned[1]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_sound(script: Path) -> None:
    done = subprocess.run(
        [SHELLCHECK, script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout
    assert script.stat().st_mode & 0o111, "sbatch and people start it by its name"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_say_how_they_are_called(script: Path) -> None:
    """Keeps away: a job that waits in the queue and fails for want of an argument."""
    done = subprocess.run(["bash", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "usage: sbatch" in done.stderr


def test_the_image_copies_what_is_packed() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    for copied in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        for name in copied.split():
            assert (ROOT / name).exists(), name
    for package in ("cc_prep", "cc_train", "pipelines", "manifests"):
        assert f"COPY {package} {package}" in text
