"""Runs the build steps of a Dockerfile in a folder, without a container engine.

A target is built with all stages of this file that it starts from or copies from. A folder stands for the image's root:
paths of the image (`/opt/clozeline`, `/src`) are put below it. RUN, COPY, ARG, ENV and WORKDIR do what they say.

Not run, and returned as text: commands of the distribution's package manager, files from other projects' images, and
the isolation, users and base image of a container. The base image's Python is the one that runs this program.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.processes import ran

IMAGE_FOLDERS = ("/opt/clozeline", "/src")
"""Folders of the image that steps write to."""

SYSTEM_COMMANDS = ("apt-get ",)
RUN_SECONDS = 1800


@dataclass
class Stage:
    """One FROM of the file: its name, what it starts from, and its instructions as (name, text)."""

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def stages_copied_from(self) -> list[str]:
        texts = [text for name, text in self.instructions if name == "COPY"]
        return [match[1] for text in texts if (match := re.search(r"--from=(\S+)", text))]


@dataclass
class Build:
    """The state of a build: where it happens, its variables, and what could not be done."""

    context: Path
    root: Path
    variables: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    not_run: list[str] = field(default_factory=list)


def read_stages(path: Path) -> tuple[dict[str, str], dict[str, Stage]]:
    """Return the defaults of the ARGs before the first FROM, and the stages by name."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")

    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    latest: Stage | None = None
    for line in text.splitlines():
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            base, _, stage = rest.partition(" AS ")
            latest = stages[stage] = Stage(stage, base)
        elif latest is not None:
            latest.instructions.append((name, rest.strip()))
        else:
            key, _, value = rest.partition("=")
            arguments[key] = value
    return arguments, stages


def build(path: Path, target: str, build: Build) -> None:
    """Run the steps of a target and of the stages that it needs, in the file's order."""
    _, stages = read_stages(path)
    needed = stages_needed(stages, target)
    for name in stages:
        if name in needed:
            run_stage(stages[name], stages, build)


def stages_needed(stages: dict[str, Stage], target: str) -> set[str]:
    """Return the names of the stages that a target is built from, and its own. Other projects' images are left out."""
    stage = stages[target]
    needed = {target}
    for name in (stage.base, *stage.stages_copied_from()):
        if name in stages and "/" not in stages[name].base:
            needed |= stages_needed(stages, name)
    return needed


def run_stage(stage: Stage, stages: dict[str, Stage], build: Build) -> None:
    """Run the instructions of one stage."""
    build.folder = "/" if stage.base not in stages else build.folder
    for name, text in stage.instructions:
        if name == "ARG":
            key, _, default = text.partition("=")
            build.variables[key] = default
        elif name == "ENV":
            pairs = (pair.partition("=") for pair in shlex.split(text))
            build.variables |= {key: value for key, _, value in pairs}
        elif name == "WORKDIR":
            build.folder = text
        elif name == "COPY":
            copy(text, stages, build)
        elif name == "RUN":
            run(text, build)


def copy(text: str, stages: dict[str, Stage], build: Build) -> None:
    """Copy from the context. All stages share one root, so what another stage made is there already."""
    *words, target = text.split()
    origin = next((word.removeprefix("--from=") for word in words if word.startswith("--from=")), None)
    names = [word for word in words if not word.startswith("--")]
    if origin is not None:
        assert names == [target], f"COPY {text}: a path moves between stages"
        if "/" in stages[origin].base:
            build.not_run.append(f"COPY {text}")
        return

    for name in names:
        destination = below_root(build.folder, build.root) / target
        if (build.context / name).is_dir():
            shutil.copytree(build.context / name, destination, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            destination.mkdir(parents=True, exist_ok=True)
            shutil.copy(build.context / name, destination)


def run(text: str, build: Build) -> None:
    """Run a command of the image in the folder that stands for it."""
    if text.startswith(SYSTEM_COMMANDS):
        build.not_run.append(f"RUN {text}")
        return

    command = with_root(text, build.root)
    folder = below_root(build.folder, build.root) if build.folder in IMAGE_FOLDERS else build.root
    folder.mkdir(parents=True, exist_ok=True)
    done = ran(["bash", "-euo", "pipefail", "-c", command], RUN_SECONDS, cwd=folder, env=environment(build))
    assert done.returncode == 0, f"RUN {text}\n{done.stdout}\n{done.stderr}"


def environment(build: Build) -> dict[str, str]:
    """Return this process's variables and the image's. `python` is found as in the base image."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")}
    kept["PATH"] = os.pathsep.join([str(base_python(build.root)), kept.get("PATH", "")])

    for key, value in build.variables.items():
        mapped = with_root(value, build.root)
        kept[key] = mapped.replace("$PATH", kept["PATH"])
    return kept


def base_python(root: Path) -> Path:
    """A folder with nothing but `python`, the interpreter below this program's virtual environment."""
    folder = root / "base_image"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "python"
    if not link.exists():
        link.symlink_to(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
    return folder


def below_root(path: str, root: Path) -> Path:
    return root / path.lstrip("/")


def with_root(text: str, root: Path) -> str:
    """Put the image's folders below the root."""
    for folder in IMAGE_FOLDERS:
        text = re.sub(rf"(?<![\w/]){re.escape(folder)}(?=[/\s:\"']|$)", str(below_root(folder, root)), text)
    return text
