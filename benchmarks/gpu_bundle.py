"""`make gpu_bundle`: packs what `make gpu` needs besides PyTorch into one file, for a machine without network.

    python benchmarks/gpu_bundle.py [--output out/gpu_bundle.tar.xz] [--python 3.12]

On that machine:

    tar xf gpu_bundle.tar.xz && cd gpu_bundle && make gpu        (or: python benchmarks/gpu_run.py)

The file holds this source tree and a folder `site` with copies of the installed DeepSpeed, transformers and pytest and
of what they import. PyTorch, its requirements and numpy come from the machine's image. With `--python`, packages that
are compiled for the Python version of this machine are downloaded for that version instead.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TREE = (
    "benchmarks",
    "clozeline",
    "pipeline",  # its commands need Beam, but every start checks that all our packages are there
    "schemas",
    "trainer",
    "tests/gpu",
    "tests/trainer/models/flash_stand_ins.py",
    "Makefile",
    "pyproject.toml",
    "LICENSE",
    "README.md",
)
"""The parts of this source tree to pack. Of the tests only those marked gpu, because the others need Beam."""

WANTED = ("deepspeed", "transformers", "pytest", "pytest-timeout", "pydantic", "pyarrow", "safetensors", "fsspec")
WANTED_FOR_RUNS = ("jinja2", "tomli-w", "psutil", "tqdm")
"""Further packages that the trainer imports. TensorBoard is left out: a run works without it and says so. SciPy and
scikit-learn (30 MB) are left out because no measured recipe needs them: they are for fine-tuning, whose tests need a
machine that has them, and for initial weights from co-occurrences."""

OF_THE_IMAGE = {"torch", "triton", "numpy", "setuptools", "wheel", "pip"}
"""Packages that are not packed, because PyTorch's images have them."""

NOT_IMPORTED = {"hf-xet", "typer", "rich", "shellingham"}
"""Requirements of huggingface_hub and transformers that only their downloads and command lines import."""

LEFT_OUT = (
    r"deepspeed/(autotuning|nebula|inference)/.*\.(json|md)$",
    r"pyarrow/(include|tests|src)/",
    r"pyarrow/.*\.(pyx|pxd|pxi|h|lib|a)$",
    r"pyarrow/(libarrow)?_(flight|gandiva)",
    r"pyarrow/_(orc|s3fs|gcsfs|azurefs|hdfs)\.",
    r"pyarrow/libarrow_python\.so(\.\d+\.\d+\.\d+)?$",  # copies of libarrow_python.so.NNNN, which is the one loaded
    r"(^|/)tests?/",
    r"__pycache__/",
    r"\.(md|rst|txt)$",
)
"""Patterns of package files that nothing here imports, which include half of pyarrow."""

PLATFORM = "manylinux_2_28_x86_64"
MOST_BYTES = 60_000_000


def main(arguments: list[str] | None = None) -> int:
    """Write the bundle. Returns 1 if it is larger than MOST_BYTES, otherwise 0."""
    flags = argparse.ArgumentParser(description="Packs what `make gpu` needs on a machine without network.")
    flags.add_argument("--output", default=str(ROOT / "out/gpu_bundle.tar.xz"))
    flags.add_argument("--python", default=sysconfig.get_python_version(), help="version on the other machine")
    options = flags.parse_args(arguments)

    output = Path(options.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "gpu_bundle"
        pack(folder, options.python)
        with tarfile.open(output, "w:xz", preset=1) as archive:
            archive.add(folder, "gpu_bundle")

    size = output.stat().st_size
    print(f"{output}: {size / 1e6:.1f} MB for Python {options.python}")
    if size > MOST_BYTES:
        print(f"gpu_bundle: more than {MOST_BYTES / 1e6:.0f} MB. Leave out more.", file=sys.stderr)
        return 1
    return 0


def pack(folder: Path, python: str) -> list[Distribution]:
    """Copy this source tree and all packages into a folder, and return the packages."""
    copy_tree(folder)
    packages = closure((*WANTED, *WANTED_FOR_RUNS))
    for package in packages:
        copy_package(package, folder / "site", python)
    return packages


def copy_tree(folder: Path) -> None:
    """Copy this source tree, without files that runs and tests have left in it."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "golden")
    folder.mkdir(parents=True)
    for name in TREE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name)


def closure(wanted: tuple[str, ...]) -> list[Distribution]:
    """Return the installed packages of these names and all their requirements, without those of the image."""
    found: dict[str, Distribution] = {}
    pending = list(wanted)
    while pending:
        name = normalized(pending.pop())
        if name in found or name in OF_THE_IMAGE or name in NOT_IMPORTED:
            continue
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # for another platform or Python

        found[name] = package
        pending += required_by(package)
    return [found[name] for name in sorted(found)]


def required_by(package: Distribution) -> list[str]:
    """Return the names of the packages that a package requires on any platform, without those of its extras."""
    required = [requirement for requirement in package.requires or [] if "extra ==" not in requirement]
    return [re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0] for requirement in required]


def normalized(name: str) -> str:
    """Return a package's name in PyPI's normalized form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def copy_package(package: Distribution, site: Path, python: str) -> None:
    """Copy a package's files, or download them if the installed ones are compiled for another version of Python."""
    files = [file for file in package.files or [] if ".." not in file.parts]
    has_own_version = any(f"cpython-{''.join(python.split('.'))}" in file.name for file in files)
    is_compiled = any(re.search(r"\.cpython-\d+-.*\.so$", file.name) for file in files)
    if is_compiled and not has_own_version:
        download(package, site, python)
        return

    for file in files:
        if not is_left_out(file.as_posix()):
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(str(package.locate_file(file)), target)


def is_left_out(path: str) -> bool:
    """Return whether a file is not needed. Metadata stays, because transformers reads the versions of packages."""
    return ".dist-info/" not in path and any(re.search(pattern, path) for pattern in LEFT_OUT)


def download(package: Distribution, site: Path, python: str) -> None:
    """Install the same version of a package for another Python into the bundle."""
    with tempfile.TemporaryDirectory() as temporary:
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", temporary]
        words += ["--only-binary=:all:", "--python-version", python, "--platform", PLATFORM]
        words += ["--platform", "manylinux2014_x86_64", f"{package.name}=={package.version}"]
        subprocess.run(words, check=True)
        for file in sorted(Path(temporary).rglob("*")):
            name = file.relative_to(temporary).as_posix()
            if file.is_file() and not is_left_out(name):
                target = site / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, target)


if __name__ == "__main__":
    sys.exit(main())
