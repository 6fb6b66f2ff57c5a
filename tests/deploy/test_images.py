"""The Dockerfile is clean, and its build steps make environments in which jobs and trainings run.

There is no container engine here: dockerfile.py runs the RUN lines in a folder. Not proven: the base images, Debian's
packages, users, and Beam's boot program, which are not run.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from schemas.manifest import read_manifest
from tests.deploy.dockerfile import Build, build, environment, read_stages
from tests.deploy.manifests import DEPLOY, REPOSITORY
from tests.processes import ran

DOCKERFILE = DEPLOY / "images/Dockerfile"
PINNED = dict(line.split("==") for line in (REPOSITORY / "constraints.txt").read_text().splitlines())


def test_the_dockerfile_is_clean() -> None:
    program = Path(sys.executable).parent / "hadolint"
    done = ran([program, DOCKERFILE])
    assert done.returncode == 0, done.stdout


def test_versions_and_extras_are_those_of_the_project() -> None:
    arguments, stages = read_stages(DOCKERFILE)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert arguments["BEAM_VERSION"] == PINNED["apache-beam"]
    assert arguments["PYTHON_VERSION"] == project["requires-python"].removeprefix(">=")

    for name in ("pipeline-build", "trainer-build"):
        (extras,) = (text for kind, text in stages[name].instructions if kind == "ARG")
        assert set(extras.partition("=")[2].split(",")) <= set(project["optional-dependencies"])


@pytest.mark.parametrize("target", ["pipeline", "trainer"])
def test_an_image_has_a_user_and_labels_and_copies_all_packages(target: str) -> None:
    _, stages = read_stages(DOCKERFILE)
    last = dict(stages[target].instructions)
    assert last["USER"] == "${USER_ID}:${USER_ID}" and ("ARG", "USER_ID=1000") in stages[target].instructions
    assert "org.opencontainers.image.licenses" in last["LABEL"]

    ignored = (DEPLOY / "images/Dockerfile.dockerignore").read_text().splitlines()
    copied = [text.split()[:-1] for kind, text in stages["source"].instructions if kind == "COPY"]
    assert sorted(f"!{name}" for names in copied for name in names) == sorted(
        line for line in ignored if line.startswith("!")
    )


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_a_job_runs_in_a_fresh_pipeline_image(corpus: Path, tmp_path: Path) -> None:
    image = Build(REPOSITORY, tmp_path / "image")
    build(DOCKERFILE, "pipeline", image)
    text = tmp_path / "text"
    in_image(image, tmp_path, ["clozeline", "shard", "--input", str(corpus), "--output", str(text), "--num_shards=2"])
    assert read_manifest(str(text), "text").num_shards == 2

    assert only_not_run(image) == ["COPY --from=beam"]
    check_pinned(image)
    assert not importable(image, "torch") and not importable(image, "nvidia")


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_the_trainer_starts_in_a_fresh_trainer_image(pairs: Path, tmp_path: Path) -> None:
    image = Build(REPOSITORY, tmp_path / "image")
    build(DOCKERFILE, "trainer", image)
    assert set(only_not_run(image)) == {"RUN apt-get"}
    check_pinned(image)
    assert not importable(image, "apache_beam")

    sizes = ["model.hidden_size=32", "model.intermediate_size=64", "run.max_steps=2", "schedule.warmup_steps=1"]
    changes = [part for key in [f"data.pairs={pairs}", "run.output=run", *sizes] for part in ("--set", key)]
    in_image(image, tmp_path, ["clozeline", "train", "--config", "tiny", *changes], DS_ACCELERATOR="cpu")


# ---- Images in folders ----


def in_image(image: Build, folder: Path, words: list[str], **variables: str) -> str:
    """Run a command with the image's variables, and return what it prints."""
    done = ran(["/usr/bin/env", *words], cwd=folder, env=environment(image) | variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def importable(image: Build, module: str) -> bool:
    code = f"import importlib.util; print(importlib.util.find_spec('{module}') is not None)"
    return in_image(image, image.root, ["python", "-c", code]).strip() == "True"


def check_pinned(image: Build) -> None:
    """Every package of the image has the version of constraints.txt. torch brings CUDA's, which it pins itself."""
    installed = json.loads(in_image(image, image.root, ["python", "-m", "pip", "list", "--format=json"]))
    names = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in PINNED.items()}
    for package in installed:
        name = re.sub(r"[-_.]+", "-", package["name"]).lower()
        if name in ("pip", "setuptools", "clozeline", "triton") or name.startswith(("nvidia-", "cuda-")):
            continue
        assert package["version"].partition("+")[0] == names.get(name), f"{package} is not in constraints.txt"


def only_not_run(image: Build) -> list[str]:
    """The first two words of each step that was not run."""
    return [" ".join(step.split()[:2]) for step in image.not_run]
