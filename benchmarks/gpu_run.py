"""`make gpu`: runs the tests marked gpu on one GPU, and then compares the trainer's speed with transformers'.

    python benchmarks/gpu_run.py [--output out/gpu] [--minutes 20] [--only RECIPE ...] [--no_tests] [--dry]

Every run is a process that trains on a folder of generated pairs (gpu_pairs.py) with the model of a published recipe:

    ours           python -m trainer: loader, masking, DeepSpeed, anomaly guard, metrics, and the rest of the recipe
    deepspeed      transformers' model in DeepSpeed
    plain          transformers' model under autocast, compiled

Writes OUTPUT/gpu.json and OUTPUT/gpu.md again after each run, so that results survive a crash. Runs for which no time
is left are listed as such. `--only bert_base` measures the cases of some recipes, and `--only "bert_base 512"` one of
them. `--dry` does the same with tiny models on a CPU, to test the script itself.

Needs torch 2.10 or newer and numpy, but no network; `make gpu_bundle` packs everything else.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "site"  # the packages of a bundle
sys.path[:0] = [str(path) for path in (ROOT, SITE) if path.exists()]

if TYPE_CHECKING:
    from benchmarks.gpu_cases import Bench

NOT_RUN = "not run"
"""What stands for the result of the tests with --no_tests."""


def main(arguments: list[str] | None = None) -> int:
    """Run the tests and the benchmark. Returns 1 if a test or a run failed, 2 if this machine cannot run them."""
    flags = argparse.ArgumentParser(description="Tests and measures training on this machine's GPU.")
    flags.add_argument("--output", default=str(ROOT / "out/gpu"), help="folder of gpu.md and gpu.json (out/gpu)")
    flags.add_argument("--minutes", type=float, default=20.0, help="runs that would start later are left out (20)")
    flags.add_argument(
        "--only", nargs="+", metavar="CASE", help='such as bert_base, or "bert_base 512"; all if left out'
    )
    flags.add_argument("--no_tests", action="store_true", help="only measure")
    flags.add_argument("--dry", action="store_true", help="tiny models on a CPU")
    options = flags.parse_args(arguments)

    fault = machine_fault(options.dry)
    if fault is not None:
        print(f"gpu_run: {fault}", file=sys.stderr)
        return 2

    # These modules import torch and packages of the bundle, so they are imported after the check above.
    from benchmarks.gpu_bench import SIDES, Figures, measure
    from benchmarks.gpu_cases import Bench, cases_of, write_case
    from benchmarks.gpu_report import table_line, write_report

    output = Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    bench = Bench(output, time.monotonic() + 60 * options.minutes, options.dry)
    try:
        cases = cases_of(options.only)
    except ValueError as error:
        flags.error(f"--only: {error}")

    tests = NOT_RUN if options.no_tests else run_tests(bench)
    print(f"tests: {tests}", flush=True)

    figures: list[Figures] = []
    write_report(bench, tests, figures)
    for case in cases[:1] if bench.dry else cases:
        pairs = write_case(bench, case)
        for side in SIDES:
            figures.append(measure(bench, case, side, pairs))
            write_report(bench, tests, figures)
            print(table_line(figures[-1]), flush=True)
        shutil.rmtree(pairs)

    is_broken = any(figure.note.startswith("failed") for figure in figures)
    return int(is_broken or tests.startswith("failed"))


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


def run_tests(bench: Bench) -> str:
    """Run the tests marked gpu. Returns "passed" or "failed" and pytest's last line."""
    from benchmarks.gpu_bench import environment

    # tests/conftest.py imports Beam, which these tests do not need and a bundle does not contain.
    words = [sys.executable, "-m", "pytest", "tests/gpu", "-m", "gpu", "-q", "-p", "no:cacheprovider"]
    words += ["--confcutdir", "tests/gpu"]
    done = subprocess.run(words, cwd=ROOT, env=environment(bench), capture_output=True, text=True)
    (bench.output / "tests.log").write_text(done.stdout + done.stderr)
    last_line = (done.stdout.strip().splitlines() or [done.stderr.strip()[-200:]])[-1]
    return f"{'passed' if done.returncode == 0 else 'failed'}: {last_line}"


if __name__ == "__main__":
    sys.exit(main())
