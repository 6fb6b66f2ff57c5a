"""An environment that holds Clozeline's wheel.

`make_environment` downloads nothing: other packages come from where the tests run. `install_environment` is what a user
does.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = ("clozeline", "schemas", "pipeline", "trainer", "pyproject.toml", "README.md", "LICENSE")

HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


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

    def hide(self, module: str) -> None:
        """Have no Python of the environment find a module, as if it were not installed. An empty name ends that."""
        (self.packages / "hidden.py").write_text(HIDE.format(module=module))
        (self.packages / "hidden.pth").write_text("import hidden\n")


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


def make_environment(root: Path, wheel: Path) -> WheelEnvironment:
    """Install a wheel in an environment of its own, which has the packages of this one, too."""
    venv.create(root, with_pip=False, symlinks=True)
    made = WheelEnvironment(root)
    _pip("--python", str(root / "bin/python"), "install", str(wheel))
    (made.packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
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
