"""What a contributor's tools read: workflows, hooks and templates parse, and every command that they name exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
TEXTS = [
    *WORKFLOWS,
    *FORMS,
    ROOT / ".github/PULL_REQUEST_TEMPLATE.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs/release.md",
]

CI_SCRIPTS = [(ROOT / ".ci" / name).read_text() for name in ("run", "nightly")]

Table = dict[Any, Any]


def read(path: Path) -> Table:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def scripts(workflow: Table) -> list[str]:
    """Return the shell commands of all steps of a workflow."""
    return [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]


def test_pushes_and_nights_run_the_scripts_that_a_clone_has() -> None:
    ci = read(ROOT / ".github/workflows/ci.yml")
    # YAML 1.1 reads the key `on` as true.
    assert {"push", "pull_request"} <= set(ci[True])
    assert ".ci/run" in scripts(ci)

    nightly = read(ROOT / ".github/workflows/nightly.yml")
    assert nightly[True]["schedule"]
    [command] = scripts(nightly)
    assert command.split()[-1] == ".ci/nightly"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_limits_and_few_rights(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] and job["runs-on"]
        for step in job["steps"]:
            assert re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"]) if "uses" in step else step["run"]


def test_the_shell_of_workflows_and_scripts_is_clean() -> None:
    for script in [*(script for path in WORKFLOWS for script in scripts(read(path))), *CI_SCRIPTS]:
        check_shell(script)


def check_shell(script: str) -> None:
    command = [Path(sys.executable).parent / "shellcheck", "--shell=bash", "--severity=style", "-"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_scripts_and_verbs_of_make_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for name in set(re.findall(r"(?<![\w/])\.ci/\w+", text)):
        assert os.access(ROOT / name, os.X_OK), f"{name} is no program"

    makefile = (ROOT / "Makefile").read_text()
    for verb in set(re.findall(r"(?:`|^)make ([a-z_-]+)", text, re.MULTILINE)):
        assert re.search(rf"^{verb}:", makefile, re.MULTILINE), f"the Makefile has no {verb}"


def test_hooks_are_the_commands_of_make_lint() -> None:
    [local] = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local", "versions come from constraints.txt"
    recipe = re.search(r"^lint: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    commands = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]
    assert [hook["entry"] for hook in local["hooks"]] == commands


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_a_form_names_commands_that_exist(path: Path) -> None:
    from clozeline.cli import COMMANDS

    for word in re.findall(r"`clozeline (\S+)`", path.read_text()):
        assert word == "--version" or word in COMMANDS
