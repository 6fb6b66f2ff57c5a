"""The lines of docs/interop.md open our files, and find in them what pyarrow reads from each file."""

from __future__ import annotations

from glob import glob
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pyarrow.ipc
import pyarrow.parquet
import pytest
import torch

from tests.docs.conftest import Sandbox
from tests.docs.pages import PAGES

MODULES = ("datasets", "duckdb", "polars", "pyarrow", "tokenizers", "transformers")


def test_other_tools_open_our_files(sandbox: Sandbox, text: Path, pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {name: import_module(name) for name in MODULES}  # here, because every worker of xdist imports this file
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", sandbox.folder / "cache")
    for folder in (text, pairs):
        sandbox.put(folder, f"out/{folder.name}")

    table = [
        line.split(" | ") for line in PAGES["docs/interop.md"].splitlines() if "out/pairs" in line and line[0] == "|"
    ]
    lines = [(tool, line.strip("`| ")) for _, tool, line in table]
    assert len(lines) == 11
    for tool, line in lines:
        for kind in ("pairs", "text") if ".arrow" in line else ("pairs",):
            names = modules | {"glob": lambda pattern: sorted(glob(pattern))}
            found = eval(line.replace("out/pairs", f"out/{kind}"), names)
            if "vocabulary" in line:
                assert len(found.get_vocab()) == 160
            else:
                assert rows_of(tool, found) == expected_rows(Path("out", kind), "ledger" in line), (kind, line)

    sandbox.run_page("docs/interop.md")


def expected_rows(folder: Path, is_ledger: bool) -> list[dict[str, Any]]:
    """Return the rows of a folder's ledger or shards, read by pyarrow file by file."""
    if is_ledger:
        return plain(pyarrow.parquet.read_table(folder / "ledger.parquet").to_pylist())
    tables = [pyarrow.ipc.open_file(path).read_all() for path in sorted(folder.glob("*.arrow"))]
    return plain([row for table in tables for row in table.to_pylist()])


def rows_of(tool: str, found: Any) -> list[dict[str, Any]]:
    """Return the rows of what a tool's line gives."""
    if tool == "pyarrow":
        return plain(found.to_pylist())
    if tool == "polars":
        return plain(found.to_dicts())
    if tool == "DuckDB":
        return plain([dict(zip(found.columns, row, strict=True)) for row in found.fetchall()])
    return plain(list(found))


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with tensors as lists and numbers, and integers of 64 bits as torch shows them, with a sign."""
    return [{name: plain_value(value) for name, value in row.items()} for row in rows]


def plain_value(value: Any) -> Any:
    value = value.tolist() if isinstance(value, torch.Tensor) else value
    return value - 2**64 if isinstance(value, int) and value >= 2**63 else value
