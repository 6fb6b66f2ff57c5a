"""An environment that holds Clozeline's wheel and the packages of some extras, and no other package.

`make_environment` downloads no packages: the environment links to those that are installed where the tests run. Which
ones it gets follows from the requirements in their metadata, as with pip.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = ("clozeline", "schemas", "pipeline", "trainer", "pyproject.toml", "README.md", "LICENSE")


@dataclass(frozen=True)
class WheelEnvironment:
    """A virtual environment. root: its folder."""

    root: Path

    @property
    def programs(self) -> Path:
        """The folder of its commands."""
        return self.root / "bin"

    @property
    def packages(self) -> Path:
        """The folder that its Python imports from."""
        return self.root / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"

    def add(self, *extras: str) -> None:
        """Add the packages of extras, and what these need."""
        (metadata,) = self.packages.glob("clozeline-*.dist-info")
        clozeline = Distribution.at(metadata)
        for name in sorted(_closure(clozeline, set(extras))):
            if name != "clozeline":
                _link(distribution(name), self.packages)


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this repository, without leaving a trace in it."""
    source = folder / "source"
    source.mkdir(parents=True)
    for name in SOURCES:
        path = REPOSITORY / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, source / name)

    _pip("wheel", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    (wheel,) = folder.glob("*.whl")
    return wheel


def make_environment(root: Path, wheel: Path, *extras: str) -> WheelEnvironment:
    """Install a wheel with extras in an environment of its own."""
    venv.create(root, with_pip=False, symlinks=True)
    made = WheelEnvironment(root)
    _pip("--python", str(root / "bin/python"), "install", str(wheel))
    made.add(*extras)
    return made


def install_environment(root: Path, wheel: Path, *extras: str) -> WheelEnvironment:
    """As a user does: pip downloads the packages, of the versions of constraints.txt. Takes minutes."""
    venv.create(root, with_pip=True, symlinks=True)
    constraints = REPOSITORY / "constraints.txt"
    command = [str(root / "bin/python"), "-m", "pip", "install", "--quiet", "--constraint", str(constraints)]
    subprocess.run([*command, f"{wheel}[{','.join(extras)}]"], check=True, timeout=3000)
    return WheelEnvironment(root)


def _pip(*words: str) -> None:
    options = ["--no-deps", "--no-index", "--quiet", "--disable-pip-version-check"]
    where = 2 if words[0] == "--python" else 0
    command = [sys.executable, "-m", "pip", *words[:where], words[where], *options, *words[where + 1 :]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _closure(first: Distribution, extras: set[str]) -> set[str]:
    """Return the names of all distributions that one needs with some of its extras, directly or not."""
    needed: dict[str, set[str]] = {}
    waiting = [(first, extras)]
    while waiting:
        found, wanted = waiting.pop()
        name = canonicalize_name(found.metadata["Name"])
        known = needed.get(name)
        if known is not None and wanted <= known:
            continue

        needed[name] = wanted | (known or set())
        for requirement in _requirements(found, wanted):
            waiting.append((_installed(requirement), set(requirement.extras)))
    return set(needed)


def _requirements(found: Distribution, extras: set[str]) -> Iterator[Requirement]:
    for line in found.requires or []:
        requirement = Requirement(line)
        environments = [{"extra": extra} for extra in extras] or [{"extra": ""}]
        if requirement.marker is None or any(requirement.marker.evaluate(values) for values in environments):
            yield requirement


def _installed(requirement: Requirement) -> Distribution:
    try:
        return distribution(requirement.name)
    except PackageNotFoundError:
        raise AssertionError(f"{requirement} is needed, and it is not installed where the tests run") from None


def _link(found: Distribution, folder: Path) -> None:
    """Link a distribution's packages and files. Folders that several distributions share are made, not linked."""
    for path in dict.fromkeys(_roots(found)):
        link = folder / path
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(Path(str(found.locate_file(""))) / path)


def _roots(found: Distribution) -> Iterator[Path]:
    for file in found.files or []:
        if file.parts[0] in ("..", "/", "__pycache__"):  # commands of other packages are not needed
            continue

        root = Path(file.parts[0])
        for part in file.parts[1:]:
            folder = Path(str(found.locate_file(str(root))))
            if root.suffix == ".dist-info" or (folder / "__init__.py").exists():
                break
            root /= part
        yield root
