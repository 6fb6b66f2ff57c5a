"""Reads the manifests of deploy/ and checks them as an API server would, and more strictly.

A kind of Kubernetes itself is checked by kubernetes-validate with `strict`, a custom resource by the schema of its own
CustomResourceDefinition (schemas/, made by make_schemas.py). Unknown keys are errors in both: an API server drops them,
and the setting silently has no effect.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.processes import ran

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOY = REPOSITORY / "deploy"
SCHEMAS = Path(__file__).parent / "schemas"

KUBERNETES_VERSION = "1.33"
CUSTOM_KINDS = {"TrainJob": "trainjob", "FlinkDeployment": "flinkdeployment"}

Manifest = dict[str, Any]


def load(path: str) -> Manifest:
    """Return the one manifest in a file of deploy/."""
    (manifest,) = load_all(path)
    return manifest


def load_all(path: str) -> list[Manifest]:
    return list(yaml.safe_load_all((DEPLOY / path).read_text()))


def find(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    """Return the manifest of that kind and name."""
    (found,) = (one for one in manifests if one["kind"] == kind and one["metadata"]["name"] == name)
    return found


def check(manifest: Manifest) -> None:
    """Raise an error if a key or a type is wrong, or if a container mounts a volume that its pod lacks."""
    schema = CUSTOM_KINDS.get(manifest["kind"])
    if schema is None:
        kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)
    else:
        validator(schema).validate(manifest)
        # All kinds have the same metadata.
        other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": manifest["metadata"]}
        kubernetes_validate.validate(other, KUBERNETES_VERSION, strict=True)

    for pod in pods(manifest):
        check_mounts(pod)


@cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    """Return what checks against a schema of schemas/."""
    return jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{name}.json").read_text()))


def pods(node: Any) -> Iterator[dict[str, Any]]:
    """Yield every specification of a pod within a manifest."""
    if isinstance(node, dict):
        if "containers" in node:
            yield node
        for value in node.values():
            yield from pods(value)
    if isinstance(node, list):
        for item in node:
            yield from pods(item)


def check_mounts(pod: dict[str, Any]) -> None:
    """Raise ValueError if a container mounts a volume that the pod does not have."""
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        for mount in container.get("volumeMounts", []):
            if mount["name"] not in volumes:
                raise ValueError(f"{container['name']} mounts {mount['name']}, which is not among the pod's volumes")


def expand(arguments: list[str], variables: dict[str, str]) -> list[str]:
    """Replace $(NAME), as the kubelet does in a container's arguments."""
    expanded = []
    for argument in arguments:
        for name, value in variables.items():
            argument = argument.replace(f"$({name})", value)
        assert "$(" not in argument, f"{argument}: no such variable"
        expanded.append(argument)
    return expanded


def kustomize(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build a folder with a real kustomize. Skips where there is none."""
    commands = {"kustomize": ["kustomize", "build"], "kubectl": ["kubectl", "kustomize"]}
    command = next((words for program, words in commands.items() if shutil.which(program)), None)
    if command is None:
        pytest.skip("neither kustomize nor kubectl is installed; pip and apt have none to install")
    return ran([*command, folder], env=os.environ | {"KUBECONFIG": os.devnull})


def built(folder: Path) -> list[Manifest]:
    """Return what kustomize makes of a folder."""
    done = kustomize(folder)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))
