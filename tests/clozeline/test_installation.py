"""What is said about a missing extra and about another project's module: one line, exit code 2, no traceback."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from clozeline import installation
from clozeline.installation import BASE, EXTRAS, find_clash, missing_extra, missing_findings, run_explained
from tests.processes import ran

ROOT = Path.cwd()
IMPORT_NAMES = {"scikit-learn": "sklearn"}


def test_each_extra_names_the_modules_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra, modules in EXTRAS.items():
        packages = [re.split(r"[<>=\[]", requirement)[0] for requirement in project["optional-dependencies"][extra]]
        assert sorted(IMPORT_NAMES.get(name, name.replace("-", "_")) for name in packages) == sorted(modules), extra


HIDE_MODULE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from clozeline.cli import main
"""


def run_without(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `clozeline` in a Python that does not find a module, as if it were not installed."""
    return ran([sys.executable, "-c", f"{HIDE_MODULE}sys.exit(main(sys.argv[2:]))", module, *words])


HELP = """
for command in sys.argv[2:]:
    try:
        main([command, "--help"])
    except SystemExit as ended:
        assert ended.code == 0
"""


def test_help_needs_no_extra() -> None:
    commands = ("train", "export", "finetune", "suite", "recipes", "doctor")
    done = ran([sys.executable, "-c", HIDE_MODULE + HELP, "tomli_w", *commands])
    assert done.returncode == 0 and done.stdout.count("usage: clozeline ") == 6, done.stderr


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [
        ("apache_beam", ["shard", "--input", "README.md", "--output", "{out}"], "pipeline"),
        ("torch", ["train", "--config", "tiny"], "trainer"),
        ("safetensors", ["export", "run", "--output", "{out}"], "export"),
    ],
)
def test_a_missing_extra_is_one_line_with_the_pip_command(
    module: str, words: list[str], extra: str, tmp_path: Path
) -> None:
    done = run_without(module, *[word.format(out=tmp_path / "out") for word in words])
    assert done.returncode == 2, done.stderr
    assert done.stderr == (
        f'clozeline: the package {module} is not installed. It comes with the extra "{extra}": '
        f'pip install "clozeline[{extra}]"\n'
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("module", BASE)
def test_a_package_that_all_parts_need_is_named(module: str) -> None:
    message = missing_extra(ModuleNotFoundError(f"No module named {module!r}", name=module), "trainer")
    said = f"the package {module} is not installed. All of clozeline needs it: pip install"
    assert message == f'{said} "clozeline[trainer]"'


def test_doctor_names_what_all_parts_need() -> None:
    """Without site-packages, as after `pip install --no-deps`."""
    done = ran([sys.executable, "-S", "-m", "clozeline", "doctor"])
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("clozeline: the package fsspec is not installed.")
    assert 'pip install "clozeline[trainer]"' in done.stderr


def test_doctor_lists_what_is_missing_by_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "find_spec", lambda name: None)
    findings = missing_findings()
    assert [one["name"] for one in findings[:3]] == ["pipeline", "trainer", "finetune"]
    assert "torch" in findings[1]["value"] and "torch" not in findings[2]["value"]
    assert [one["exit_code"] for one in findings[:3]] == [0, 2, 0]
    assert 'pip install "clozeline[all]"' in findings[-1]["advice"]


def test_the_packages_that_all_parts_need_are_those_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sorted(re.split(r"[<>=]", requirement)[0] for requirement in project["dependencies"]) == sorted(BASE)


@pytest.mark.parametrize(
    ("module", "extra", "expected"),
    [
        ("tqdm", "trainer", "trainer"),
        ("tqdm", "pipeline", "pipeline"),
        ("jieba", "pipeline", "chinese"),
        ("sudachidict_small", "pipeline", "japanese"),
        ("pythainlp", "pipeline", "thai"),
        ("s3fs", "trainer", "s3"),
        ("gcsfs", "trainer", "gcs"),
        ("s3fs", "all", "s3"),
        ("torch", "all", "all"),
        ("torch.nothing", "trainer", None),
        ("trainer.nothing", "trainer", None),
        ("yaml", "trainer", None),
    ],
)
def test_only_packages_of_extras_are_explained(module: str, extra: str, expected: str | None) -> None:
    message = missing_extra(ModuleNotFoundError(f"No module named {module!r}", name=module), extra)
    if expected is None:
        assert message is None
    else:
        assert message is not None and message.endswith(f'pip install "clozeline[{expected}]"')


def test_other_missing_modules_keep_their_traceback() -> None:
    def program() -> int:
        raise ModuleNotFoundError("No module named 'yaml'", name="yaml")

    with pytest.raises(ModuleNotFoundError, match="yaml"):
        run_explained(program, "trainer")


def test_this_installation_has_no_clash() -> None:
    assert find_clash() is None


@pytest.mark.parametrize("form", ["module", "package", "namespace"])
def test_another_module_that_is_found_first_is_named_with_its_path(form: str, tmp_path: Path) -> None:
    if form == "module":
        other = tmp_path / "trainer.py"
        other.write_text("raise SystemExit('the other trainer')")
    else:
        other = tmp_path / "trainer" / "__init__.py"
        other.parent.mkdir()
        other.write_text("raise SystemExit('the other trainer')")

    if form == "namespace":
        for name in ("clozeline", "schemas", "pipeline"):
            shutil.copytree(ROOT / name, tmp_path / name)
        other.unlink()
        other = other.parent

    code = "import sys; from clozeline.cli import main; sys.exit(main(['recipes']))"
    path, flags = os.pathsep.join([str(tmp_path), str(ROOT)]), ["-P"]
    if form == "namespace":
        # Python prefers any regular package to a folder without __init__.py, so ours must not be found at all:
        # neither in the checkout nor, through the editable installation, in site-packages (-S).
        path, flags = str(tmp_path), ["-P", "-S"]
    done = ran([sys.executable, *flags, "-c", code], env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("clozeline: ") and done.stderr.count("\n") == 1
    assert f"another project's module trainer at {other} instead of" in done.stderr


def test_a_file_that_another_project_replaced_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in installation.OUR_PACKAGES:
        (tmp_path / name).mkdir()
        shutil.copy(ROOT / name / "__init__.py", tmp_path / name)
    monkeypatch.setattr(installation, "ROOT", tmp_path)
    monkeypatch.setattr(installation, "_module_file", lambda name: tmp_path / name / "__init__.py")
    assert find_clash() is None

    (tmp_path / "trainer/__init__.py").write_text('"""Theirs."""')
    message = find_clash()
    assert message is not None and f"{tmp_path}/trainer/__init__.py is not clozeline's" in message
