"""The documentation as a site, and its notebooks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

NOTEBOOKS = ROOT / "docs" / "notebooks"
IN_ORDER = ("first_encoder", "look_at_data", "use_an_encoder")


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Every page is in the navigation, and every link and anchor leads somewhere."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 'href="quickstart/#install"' in (tmp_path / "index.html").read_text(), "a link of the README to docs/"
    assert (tmp_path / "notebooks" / "first_encoder.ipynb").exists()


def test_no_output_of_a_notebook_is_stored() -> None:
    for path in NOTEBOOKS.glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert cells and not [cell for cell in cells if cell.get("outputs")], path


@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_notebooks_run_in_jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands have a terminal there, so one that asks a question would wait for its answer."""
    nbclient = pytest.importorskip("nbclient", reason="pip install nbclient ipykernel")
    nbformat = pytest.importorskip("nbformat")

    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    for name in IN_ORDER:
        notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
        nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert (tmp_path / "out/topics/results.json").exists()
