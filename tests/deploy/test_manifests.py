"""The manifests are what Kubernetes, Kubeflow Trainer and Flink's operator accept, and broken ones are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.deploy import manifests
from tests.deploy.manifests import DEPLOY, Manifest, Refused, built, find, load, load_all

OVERLAYS = ("kubernetes/overlays/s3", "kubernetes/overlays/volume", "flink")
NO_MANIFESTS = ("kustomization.yaml", "image_places.yaml")
PATCHES = ("mount_in_jobs.yaml",)
FILES = sorted(
    path.relative_to(DEPLOY).as_posix()
    for folder in ("kubernetes", "flink")
    for path in (DEPLOY / folder).rglob("*.yaml")
    if path.name not in (*NO_MANIFESTS, *PATCHES)
)


def node_pod(train: Manifest) -> Manifest:
    """What a TrainJob patches into the pods of its runtime."""
    (job,) = train["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    return job["template"]["spec"]["template"]["spec"]


def sidecar(cluster: Manifest) -> Manifest:
    return cluster["spec"]["taskManager"]["podTemplate"]["spec"]["initContainers"][0]


def rename(node: Manifest, old: str, new: str) -> None:
    node[new] = node.pop(old)


BREAKS: dict[str, dict[str, Callable[[Manifest], object]]] = {
    "kubernetes/base/job.yaml": {
        "a misspelled key": lambda job: rename(job["spec"], "backoffLimit", "backOffLimit"),
        "a key in the wrong place": lambda job: job["spec"].update(terminationGracePeriodSeconds=60),
        "a mount without a volume": lambda job: job["spec"]["template"]["spec"].update(volumes=[]),
    },
    "kubernetes/base/train.yaml": {
        "a misspelled key of a TrainJob": lambda train: rename(train["spec"]["trainer"], "numNodes", "numNodez"),
        "text for a number": lambda train: train["spec"]["trainer"].update(numProcPerNode="8 GPUs"),
        "a key that cannot be patched": lambda train: node_pod(train).update(priorityClassName="high"),
        "a misspelled label field": lambda train: rename(train["metadata"], "labels", "label"),
    },
    "flink/cluster.yaml": {
        "an unknown Flink": lambda cluster: cluster["spec"].update(flinkVersion="v1_21"),
        "a misspelled key of a sidecar": lambda cluster: rename(sidecar(cluster), "restartPolicy", "restartpolicy"),
    },
}


@pytest.mark.parametrize("path", FILES)
def test_a_file_is_valid(path: str) -> None:
    for manifest in load_all(path):
        manifests.check(manifest)


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, breaks in BREAKS.items() for name in breaks])
def test_a_broken_manifest_is_refused(path: str, name: str) -> None:
    """By kubernetes-validate, a schema of a custom resource, or the check of mounts: each sees unknown keys."""
    manifest = load(path)
    manifests.check(manifest)

    broken = copy.deepcopy(manifest)
    BREAKS[path][name](broken)
    assert broken != manifest
    with pytest.raises(Refused):
        manifests.check(broken)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_kustomize_builds_is_valid_and_complete(overlay: str) -> None:
    """Images are the user's, everything is in one namespace, and pods find their settings and volumes."""
    made = built(DEPLOY / overlay)
    for manifest in made:
        manifests.check(manifest)
        assert manifest["metadata"]["namespace"] == "clozeline"

    text = yaml.safe_dump_all(made)
    assert "image: clozeline-" not in text
    settings = [one["metadata"]["name"] for one in made if one["kind"] == "ConfigMap"]
    assert settings == (["clozeline"] if "configMap" in text else [])
    claims = [one["metadata"]["name"] for one in made if one["kind"] == "PersistentVolumeClaim"]
    assert ("claimName: clozeline" in text) == (claims == ["clozeline"])


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("kustomization.yaml")), ids=lambda path: path.parent.name)
def test_a_kustomization_names_existing_files(path: Path) -> None:
    """Where there is no kustomize to build it."""
    kustomization = yaml.safe_load(path.read_text())
    patches = [patch["path"] for patch in kustomization.get("patches", [])]
    names = [*kustomization["resources"], *patches, *kustomization.get("configurations", [])]
    assert names and all((path.parent / name).exists() for name in names)


@pytest.mark.parametrize("overlay", ["s3", "volume"])
def test_the_budget_protects_every_node_of_training(overlay: str) -> None:
    made = built(DEPLOY / "kubernetes/overlays" / overlay)
    train = find(made, "TrainJob", "train")
    budget = find(made, "PodDisruptionBudget", "train")
    assert budget["spec"]["minAvailable"] == train["spec"]["trainer"]["numNodes"]


def test_the_budget_selects_the_pods_of_training() -> None:
    (job,) = load("kubernetes/base/train.yaml")["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"][
        "replicatedJobs"
    ]
    labels = job["template"]["spec"]["template"]["metadata"]["labels"]
    selector = load("kubernetes/base/disruption.yaml")["spec"]["selector"]["matchLabels"]
    assert selector.items() <= labels.items()


def test_a_pod_lives_longer_than_its_launcher_waits_for_a_save() -> None:
    train = load("kubernetes/base/train.yaml")
    variables = {one["name"]: one.get("value") for one in train["spec"]["trainer"]["env"]}
    grace = node_pod(train)["terminationGracePeriodSeconds"]
    assert grace >= int(variables["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) + 30
