"""Writes the results of `make gpu`, gpu.json for programs and gpu.md for people, and reads those of earlier runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_bench import DONE, Figures
from benchmarks.gpu_cases import Bench, Item
from schemas import storage

COLUMNS: dict[str, tuple[str, str]] = {
    "recipe": ("recipe", ""),
    "rows": ("rows", ""),
    "side": ("side", ""),
    "GPUs": ("gpus", ""),
    "step": ("step_tokens", ",.0f"),
    "micro-batch": ("micro_batch_tokens", ","),
    "tokens/s": ("tokens_per_second", ",.0f"),
    "rows/s": ("rows_per_second", ",.0f"),
    "MFU": ("mfu", ".1%"),
    "peak GB": ("gigabytes", ".1f"),
    "busy": ("busy", ".1%"),
    "host ms": ("host_ms", ".1f"),
    "attention": ("attention", ""),
    "item s": ("seconds", ".0f"),
    "outcome": ("outcome", ""),
    "note": ("note", ""),
}
"""The fields of Figures in the table, and their formats, by heading."""


def device_facts() -> dict[str, Any]:
    """Return a description of the device that the figures are measured on."""
    if not torch.cuda.is_available():
        return {"device": "CPU", "torch": torch.__version__}
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "gigabytes": round(properties.total_memory / 1e9),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


class Results:
    """All figures so far, those of earlier runs included. Files are written again after each item."""

    def __init__(self, bench: Bench, earlier: Path | None):
        """earlier: a gpu.json to continue, which need not exist. Raises ValueError if it is none."""
        self._bench = bench
        self._machine = device_facts()
        there = read_figures(earlier) if earlier is not None and earlier.exists() else []
        self._figures = {figures.key: figures for figures in there}

    def holds(self, item: Item) -> bool:
        """Return whether an item is done on this device, with this torch and code."""
        figures = self._figures.get(self._placed(Figures(item.recipe, item.rows, item.side, item.gpus)).key)
        return figures is not None and figures.outcome == DONE

    def add(self, figures: Figures) -> None:
        """Take the figures of an item, in place of earlier ones, and write all files."""
        self._placed(figures)
        self._figures[figures.key] = figures
        self.write()

    def write(self) -> None:
        """Write gpu.json and gpu.md, each completely or not at all."""
        content = {
            "machine": self._machine,
            "dry": self._bench.dry,
            "label": self._bench.label,
            "figures": [asdict(figures) for figures in self._figures.values()],
        }
        for name, text in (("gpu.json", json.dumps(content, indent=1) + "\n"), ("gpu.md", self._tables())):
            storage.publish(str(self._bench.output / name), text.encode(), durable=False)

    def _placed(self, figures: Figures) -> Figures:
        figures.device, figures.torch = self._machine["device"], self._machine["torch"]
        figures.label = self._bench.label
        return figures

    def _tables(self) -> str:
        """Return one table for each device, torch and code."""
        groups: dict[tuple[str, ...], list[Figures]] = {}
        for figures in self._figures.values():
            groups.setdefault((figures.device, figures.torch, figures.label), []).append(figures)

        lines = []
        for (device, version, label), group in groups.items():
            code = f", code {label}" if label else ""
            lines += [f"# {device}, torch {version}{code}{' (dry run)' if self._bench.dry else ''}", ""]
            lines += [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
            lines += [*map(table_line, group), ""]
        return "\n".join(lines)


def read_figures(path: Path) -> list[Figures]:
    """Return the figures of a gpu.json. Raises ValueError if it is none."""
    try:
        return [Figures(**figures) for figures in json.loads(path.read_text())["figures"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no gpu.json of this version ({error!r}). Move it away.") from error


def table_line(figures: Figures) -> str:
    """Return one line of the table."""
    values = [(getattr(figures, field), form) for field, form in COLUMNS.values()]
    return f"| {' | '.join('' if value is None else format(value, form) for value, form in values)} |"
