"""What is under deploy/: scripts that a shell takes, manifests that a cluster takes."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    securityContext=keys(("fsGroup",), fsGroup=COUNT),
    restartPolicy={"enum": ["OnFailure", "Never"]},
    terminationGracePeriodSeconds=COUNT,
    volumes=listed(VOLUME),
)
TEMPLATE = keys(("spec",), spec=POD)
STARTED = {"type": "object", "additionalProperties": TEXT}  # Ray's parameters are all strings
METADATA = keys(("name",), name=NAME)
# The part of the definitions that we use: v1 PersistentVolumeClaim, batch/v1 Job, and KubeRay's
# ray.io/v1 RayJob.
SCHEMAS = {
    "PersistentVolumeClaim": keys(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "v1"},
        kind=TEXT,
        metadata=METADATA,
        spec=keys(
            ("accessModes", "resources"),
            accessModes=listed({"enum": ["ReadWriteOnce", "ReadWriteMany"]}),
            resources=keys(("requests",), requests=SIZES),
        ),
    ),
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


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_conform(path: Path) -> None:
    """Keeps away: a misspelt key, which a cluster drops in silence or refuses at night."""
    content = yaml.safe_load(path.read_text())
    jsonschema.validate(content, SCHEMAS[content["kind"]])
    misspelt = yaml.safe_load(path.read_text().replace("resources:", "resource:"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(misspelt, SCHEMAS[content["kind"]])


def test_ray_is_the_one_that_is_tested() -> None:
    """Keeps away: a cluster of another Ray than the image's, which refuses its jobs."""
    content = yaml.safe_load((DEPLOY / "kubernetes/prepare-rayjob.yaml").read_text())
    pinned = re.search(r"^ray(?:\[.*\])?==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)
    assert pinned is not None
    assert content["spec"]["rayClusterSpec"]["rayVersion"] == pinned[1]


def test_manifests_take_the_image_and_the_claim_that_the_page_makes() -> None:
    """Keeps away: a pod that waits for ever for an image that nobody built or a claim that nobody
    made, or whose user may not write there."""
    built = re.findall(r"-t REGISTRY/(\S+)", (ROOT / "docs/cluster.md").read_text())
    texts = [path.read_text() for path in MANIFESTS]
    assert {image for text in texts for image in re.findall(r"image: \S+?/(\S+)", text)} == {*built}
    contents = {path.name: yaml.safe_load(path.read_text()) for path in MANIFESTS}
    pod = contents["train-job.yaml"]["spec"]["template"]["spec"]
    claims = [volume.get("persistentVolumeClaim") for volume in pod["volumes"]]
    assert {"claimName": contents["runs-claim.yaml"]["metadata"]["name"]} in claims
    user = re.search(r"useradd .*--uid (\d+)", (DEPLOY / "Dockerfile").read_text())
    assert user is not None
    assert pod["securityContext"]["fsGroup"] == int(user[1])


@contextmanager
def head_of_a_job() -> Iterator[str]:
    """The number of a job at whose port on this machine somebody listens."""
    with socket.socket() as listener:
        for number in range(9000, 10000):
            with suppress(OSError):
                listener.bind(("localhost", 20000 + number))
                break
        listener.listen()
        yield str(number)


@pytest.mark.parametrize("name", ["prepare.sh", "train.sh"])
def test_steps_have_the_cores_of_their_job(name: str, tmp_path: Path) -> None:
    """Keeps away: 16 Ray workers or eight processes of torchrun on one core, and a script that goes
    on before the head answers."""
    log = tmp_path / "steps"
    programs = {
        "srun": f'echo "$SRUN_CPUS_PER_TASK" >> {log}; [ "${{*##*ray*}}" ] || exec /bin/sleep 50',
        "scontrol": "echo localhost",
        "python": "echo 2",
        "sleep": "true",
        "cc-prep": "exec /bin/sleep 1",  # so that steps in the background begin meanwhile
    }
    for program, line in programs.items():
        (tmp_path / program).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / program).chmod(0o755)
    job = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NUM_NODES": "2"}
    path = f"{tmp_path}:{os.environ['PATH']}"
    with head_of_a_job() as number:
        done = subprocess.run(
            ["bash", DEPLOY / "slurm" / name, "data", "root", "out"],
            env={
                "PATH": path, "CC_BIN": str(tmp_path), "SLURM_CPUS_PER_TASK": "16",
                "SLURM_JOB_ID": number, **job,
            },
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    steps = {"prepare.sh": 2, "train.sh": 1}  # the Ray of the head and of the others
    assert log.read_text().split() == ["16"] * steps[name]


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


def test_the_image_installs_what_is_tested() -> None:
    """Keeps away: the newest torch, without CUDA, which the next line replaces by one with CUDA."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", "")
    installs = re.findall(r"pip install [^;\n]*", text)
    assert len(installs) == 2
    assert all("--constraint constraints.txt" in line for line in installs)
