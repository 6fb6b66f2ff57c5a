"""`make gpu`: compares the trainer's speed on one GPU with transformers', and runs the tests marked gpu.

    python benchmarks/gpu_run.py [--output out/gpu] [--minutes 12] [--only RECIPE ...] [--continue FILE] [--gpus 2 4]
                                 [--label CODE] [--scratch DIR] [--dry]

Every item is a process that trains on a folder of generated pairs (gpu_pairs.py) with the model of a published recipe:

    ours           python -m trainer: loader, masking, DeepSpeed, anomaly guard, metrics, and the rest of the recipe
    plain          transformers' model under autocast, compiled
    deepspeed      transformers' model in DeepSpeed

Items are in the order of their value (gpu_cases.py), because a card is often lent for minutes only. After each item,
OUTPUT/gpu.json and OUTPUT/gpu.md are written again. `--continue FILE` takes the figures of an earlier gpu.json, which
may be the same file, and measures only what it lacks for this card, this torch and this code (`--label`). The trainer's
runs also write OUTPUT/profile_RECIPE_ROWS.md and .json: where the time of their steps goes (gpu_profile.py).

`--only bert_base` measures the cases of some recipes, and `--only "bert_base 512"` one of them; `--only tests` runs the
tests. `--gpus 2 4` measures BERT-large at 128 on more GPUs as well, where there are as many. `--dry` does the same with
tiny models on a CPU, to test the script itself.

Needs torch 2.10 or newer and numpy, but no network; `make gpu_bundle` packs everything else.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "site"  # the packages of a bundle
sys.path[:0] = [str(path) for path in (ROOT, SITE) if path.exists()]

ITEM_SECONDS = 150
"""The limit of an item: most take 40 to 80."""

DRY_ITEM_SECONDS = 600


def main(arguments: list[str] | None = None) -> int:
    """Measure one item after the other. Returns 1 if one failed, 2 if this machine cannot run them."""
    flags = parser()
    options = flags.parse_args(arguments)
    fault = machine_fault(options.dry)
    if fault is not None:
        print(f"gpu_run: {fault}", file=sys.stderr)
        return 2

    # These modules import torch and packages of the bundle, so they are imported after the check above.
    from benchmarks.gpu_bench import FAILED, measure
    from benchmarks.gpu_cases import Bench, items_of
    from benchmarks.gpu_report import Results, table_line

    output = options.output.absolute()
    scratch = (options.scratch or output / "scratch").absolute()
    shutil.rmtree(scratch / "pairs", ignore_errors=True)  # of an earlier code
    for folder in (output, scratch):
        folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(output, scratch, time.monotonic() + 60 * options.minutes, options.dry, options.label)
    try:
        items = items_of(options.only, options.gpus, options.dry)
    except ValueError as error:
        flags.error(f"--only: {error}")
    try:
        results = Results(bench, options.earlier)
    except ValueError as error:
        flags.error(f"--continue: {error}")

    outcomes = []
    results.write()
    for item in items:
        if results.holds(item):
            continue
        figures = measure(bench, item, DRY_ITEM_SECONDS if options.dry else ITEM_SECONDS)
        outcomes.append(figures.outcome)
        results.add(figures)
        print(table_line(figures), flush=True)
    return int(FAILED in outcomes)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    flags = argparse.ArgumentParser(description="Measures and tests training on this machine's GPU.")
    flags.add_argument("--output", type=Path, default=ROOT / "out/gpu", help="for gpu.md and gpu.json (out/gpu)")
    flags.add_argument("--scratch", type=Path, help="for pairs, runs and compiled code (OUTPUT/scratch)")
    flags.add_argument("--minutes", type=float, default=12.0, help="items that would start later are left out (12)")
    flags.add_argument(
        "--only", nargs="+", metavar="CASE", help='such as bert_base, or "bert_base 512"; all if left out'
    )
    flags.add_argument(
        "--continue", dest="earlier", type=Path, metavar="FILE", help="an earlier gpu.json; measure what it lacks"
    )
    flags.add_argument("--gpus", nargs="+", type=int, default=[], metavar="N", help="further numbers of GPUs, as 2 4 8")
    flags.add_argument("--label", default=commit(), help="names the code that is measured (the commit)")
    flags.add_argument("--dry", action="store_true", help="tiny models on a CPU")
    return flags


def commit() -> str:
    """Return the commit of this source tree, empty without git."""
    words = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine_fault(dry: bool) -> str | None:
    """Return one line that says what this machine lacks, None if it lacks nothing."""
    try:
        import numpy  # noqa: F401
        import torch
    except ImportError as error:
        return f"{error.name} is not installed. Use an image with PyTorch and numpy."

    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 10):
        return f"torch {torch.__version__} is too old. Use an image with 2.10 or newer."
    if not dry and not torch.cuda.is_available():
        return "this machine has no GPU that torch can use. --dry runs tiny models on the CPU."
    return None


if __name__ == "__main__":
    sys.exit(main())
