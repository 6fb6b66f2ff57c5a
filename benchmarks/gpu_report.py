"""Writes the results of `make gpu`: gpu.json for programs and gpu.md for people."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.gpu_bench import Figures
from benchmarks.gpu_cases import Bench


def device_facts() -> dict[str, Any]:
    """Return a description of the device that the figures were measured on."""
    if not torch.cuda.is_available():
        return {"device": "CPU", "torch": torch.__version__}
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "gigabytes": round(properties.total_memory / 1e9),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def write_report(bench: Bench, tests: str, figures: list[Figures]) -> None:
    """Write gpu.json and gpu.md."""
    facts = device_facts()
    content = {"machine": facts, "dry": bench.dry, "tests": tests, "figures": [asdict(one) for one in figures]}
    (bench.output / "gpu.json").write_text(json.dumps(content, indent=1) + "\n")

    names = ("recipe", "rows", "side", "step", "micro-batch", "tokens/s", "rows/s", "MFU", "peak GB", "note")
    header = f"| {' | '.join(names)} |\n{'|---' * len(names)}|"
    title = f"# {facts['device']}, torch {facts['torch']}{' (dry run)' if bench.dry else ''}"
    lines = [title, "", f"Tests: {tests}", "", header, *(table_line(one) for one in figures)]
    (bench.output / "gpu.md").write_text("\n".join(lines) + "\n")


def table_line(figures: Figures) -> str:
    """Return one line of the table."""

    def shown(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    columns = [
        figures.recipe,
        figures.rows,
        figures.side,
        shown(figures.step_tokens, ",.0f"),
        shown(figures.micro_batch_tokens, ","),
        shown(figures.tokens_per_second, ",.0f"),
        shown(figures.rows_per_second, ",.0f"),
        shown(figures.mfu, ".1%"),
        shown(figures.gigabytes, ".1f"),
        figures.note,
    ]
    return f"| {' | '.join(columns)} |"
