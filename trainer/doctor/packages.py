"""Compares the installed packages with the versions that Clozeline supports."""

from __future__ import annotations

import platform
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from trainer.doctor.finding import Finding, failed
from trainer.doctor.plan import Plan

ROOT = Path(__file__).resolve().parents[2]
"""The root of the clone, which holds pyproject.toml, or site-packages if Clozeline was installed from a wheel."""

SHOWN = ("torch", "deepspeed", "pyarrow", "apache-beam")
"""Packages that get their own finding. Beam is not needed for training."""

OPTIONAL = ("apache-beam",)


class Requirement(NamedTuple):
    """A package that Clozeline requires. versions: as in ">=2.10,<2.15". extra: empty if all parts need the package."""

    package: str
    versions: str
    extra: str


def check_packages(plan: Plan) -> list[Finding]:
    """Check Python and the packages of the trainer."""
    requirements = all_requirements()
    findings = [check_python(python_versions())]

    for package in SHOWN:
        extra = "pipeline" if package in OPTIONAL else "trainer"
        matching = [one for one in requirements if one.package == package and one.extra in ("", extra)]
        versions = matching[0].versions if matching else ""
        findings.append(check_package(Requirement(package, versions, extra)))

    findings.append(check_other_packages(requirements))
    return findings


def check_python(versions: str) -> Finding:
    """Check the interpreter against requires-python."""
    version = platform.python_version()
    facts = {"version": version, "supported": versions, "executable": sys.executable}
    if not is_within(version, versions):
        return failed("python", f"{version}; {versions} is needed", "Use a newer Python.", facts)
    return Finding("python", "ok", f"{version} at {sys.executable}", facts=facts)


def check_package(requirement: Requirement) -> Finding:
    """Check one of the packages that get their own finding."""
    package, versions, extra = requirement
    install = f'pip install "clozeline[{extra}]"'
    version = installed_version(package)
    facts = {"version": version, "supported": versions}

    if version is None and package in OPTIONAL:
        return Finding(package, "note", "not installed; only the pipeline needs it", f"For the pipeline: {install}")
    if version is None:
        return failed(package, "not installed", f"Install it: {install}", facts)
    if not is_within(version, versions):
        return Finding(package, "warning", f"{version} is outside of {versions}", f"Install it again: {install}", facts)
    return Finding(package, "ok", f"{version} (supported: {versions})", facts=facts)


def check_other_packages(requirements: list[Requirement]) -> Finding:
    """Check all other packages of the trainer together."""
    needed = [one for one in requirements if one.extra in ("", "trainer") and one.package not in SHOWN]
    missing = []
    outside = []
    for package, versions, _ in needed:
        version = installed_version(package)
        if version is None:
            missing.append(package)
        elif not is_within(version, versions):
            outside.append(f"{package} {version} ({versions})")

    facts = {"missing": missing, "outside": outside}
    install = 'Install them: pip install "clozeline[trainer]"'
    if missing:
        return failed("other packages", f"not installed: {', '.join(missing)}", install, facts)
    if outside:
        return Finding("other packages", "warning", f"outside of their ranges: {', '.join(outside)}", install, facts)
    return Finding("other packages", "ok", ", ".join(one.package for one in needed), facts=facts)


def installed_version(package: str) -> str | None:
    """Return the version of an installed distribution, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def all_requirements() -> list[Requirement]:
    """Return the requirements in pyproject.toml or, without a clone, in the installed package's metadata."""
    project = _pyproject()
    if project:
        lines = [(line, "") for line in project.get("dependencies", [])]
        for extra, of_extra in project.get("optional-dependencies", {}).items():
            lines += [(line, extra) for line in of_extra]
        return [_requirement(line, extra) for line, extra in lines]

    try:
        installed = metadata.requires("clozeline") or []
    except metadata.PackageNotFoundError:
        installed = []

    requirements = []
    for line in installed:
        # As in: torch<2.15,>=2.10; extra == "trainer"
        specifier, _, marker = line.partition(";")
        match = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
        requirements.append(_requirement(specifier, match[1] if match else ""))
    return requirements


def python_versions() -> str:
    """Return Clozeline's requires-python, as in ">=3.11"; empty if Clozeline is not installed."""
    project = _pyproject()
    if project:
        return project["requires-python"]
    try:
        return metadata.metadata("clozeline")["Requires-Python"] or ""
    except (metadata.PackageNotFoundError, KeyError):
        return ""


def is_within(version: str, versions: str) -> bool:
    """Return whether a version satisfies all bounds, each of which is >=, <=, == or < and a release.

    Local parts of the version are ignored. Raises ValueError for any other bound.

    Example: `is_within("2.13.0+cpu", ">=2.10,<2.15")` -> `True`.
    """
    number = _release(version)
    for bound in filter(None, versions.split(",")):
        operator, limit = _split_bound(bound)
        is_met = {">=": number >= limit, "<": number < limit, "<=": number <= limit, "==": number == limit}
        if not is_met[operator]:
            return False
    return True


def _split_bound(bound: str) -> tuple[str, tuple[int, ...]]:
    match = re.fullmatch(r"\s*(>=|<=|==|<)\s*([\w.]+)\s*", bound)
    if match is None:
        raise ValueError(f"{bound} is not a bound of a version")
    return match[1], _release(match[2])


def _release(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version, padded with zeros."""
    numbers = [int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3]]
    return tuple(numbers + [0] * (3 - len(numbers)))


def _pyproject() -> dict:
    path = ROOT / "pyproject.toml"
    if not path.exists():
        return {}
    project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
    return project if project.get("name") == "clozeline" else {}


def _requirement(line: str, extra: str) -> Requirement:
    match = re.match(r"\s*([\w.-]+)(\[[\w,]*\])?\s*(.*)", line)
    assert match is not None
    return Requirement(match[1], match[3].strip(), extra)
