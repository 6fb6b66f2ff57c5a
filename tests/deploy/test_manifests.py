"""The manifests are what Kubernetes, Kubeflow Trainer and Flink's operator accept."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.deploy import manifests
from tests.deploy.manifests import DEPLOY, Manifest, built, find, load, load_all

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


@pytest.mark.parametrize("path", FILES)
def test_a_file_is_valid(path: str) -> None:
    for manifest in load_all(path):
        manifests.check(manifest)


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
