"""The README is short and true: its commands run, and its figures, verbs and exit codes are those of the code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from clozeline import __version__
from clozeline.cli import COMMANDS, EXIT_CODES
from schemas import errors
from tests.docs.conftest import Sandbox
from tests.docs.pages import PAGES, ROOT

README = PAGES["README.md"]


def test_it_is_short() -> None:
    assert README.count("\n") <= 150


def test_it_names_the_wheel_and_the_makefile_s_verbs() -> None:
    for page in (README, PAGES["docs/quickstart.md"]):
        assert f"clozeline-{__version__}-py3-none-any.whl[all]" in page
    makefile = (ROOT / "Makefile").read_text()
    verbs = re.findall(r"`make (\w+)`", README)
    assert verbs == ["demo", "test"]
    for verb in verbs:
        assert re.search(rf"^{verb}: (setup|\.venv/installed)", makefile, re.MULTILINE)


@pytest.mark.timeout(600)
def test_its_commands_run_in_order(sandbox: Sandbox) -> None:
    """As processes, each as a user would start it."""
    sandbox.run_page("README.md", pipeline_in_process=False)

    for run in ("out/run", "out/again", "out/one"):
        lines = Path(run, "metrics.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["step"] == 6
    assert Path("out/hf/config.json").exists()


def test_its_exit_codes_are_the_commands() -> None:
    section = README.split("## Exit codes\n")[1].split("##")[0]
    codes = re.findall(r"\b(\d+) [a-z]", section)
    assert codes == re.findall(r"^ +(\d+) ", EXIT_CODES, re.MULTILINE)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.UsageError, "2 usage"),
        (errors.DataError, "3 bad data"),
        (errors.CheckpointError, "4 bad checkpoint"),
        (errors.StorageError, "5 storage"),
        (errors.PreemptedError, "75 preempted"),
    ],
)
def test_its_exit_codes_are_the_errors(error: type[errors.ClozelineError], words: str) -> None:
    assert int(words.split()[0]) == error.exit_code
    assert words in README.replace("\n", " ")


def test_it_names_every_command() -> None:
    for name in COMMANDS:
        assert f"`clozeline {name}`" in README or f"`{name}`" in README or f"clozeline {name}\n" in README, name


def test_its_figures_are_measured_ones() -> None:
    """Every number of the benchmark table is in docs/measurements.md."""
    table = README.split("## Benchmarks\n")[1].split("## Words")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 10
    for row in rows:
        for cell in row.strip("| ").split(" | ")[1:]:
            number = cell.strip().split(" ")[0]
            assert number in PAGES["docs/measurements.md"], cell
