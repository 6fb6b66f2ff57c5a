"""`clozeline demo`: text -> vocabulary -> pairs -> training, killed halfway and resumed -> export -> fill in blanks.

Every step is a command that a user would type, and is printed before it runs. The training is stopped by SIGKILL, which
leaves it no chance to save, and started again by the same command. So the steps between the last checkpoint and the
kill are taken twice, and their metrics are compared.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from clozeline.installation import USAGE_ERROR, missing_extras
from schemas import storage
from schemas.command_line import CommandParser, file_path, local_folder, positive, run
from schemas.errors import StorageError, UsageError
from trainer.checkpoint.format import steps_saved
from trainer.command_line import add_set_flag
from trainer.config.load import load_recipe
from trainer.distributed.stop import listened
from trainer.metrics.log import read_metrics

BIN = Path(sys.executable).parent
LAUNCHER = "deepspeed"

BLANKS = (
    "If the key is not found, a [MASK] is raised.",
    "Return [MASK] if the object is a string, false otherwise.",
    "The default [MASK] is used if the argument is omitted.",
    "For more [MASK], see the documentation.",
    "Wait until the [MASK] has finished.",
    "The start and [MASK] of the slice.",
)

KILL_AT = 0.55
"""The share of all steps after which the training is killed. With the default recipe, the last checkpoint is then at
one half."""

MARKER = ".made_by_demo"
"""An empty file in the output folder. The next demo deletes the folder only if this file is there."""

TIMES = (
    "tokens_per_second",
    "loader_stall_fraction",
    "seconds",
    "step_seconds",
    "slowest_rank",
    "slowest_ratio",
    "peak_memory_bytes",
    "eval_seconds",
)
"""Metrics that differ between any two runs."""

Line = dict[str, Any]  # one line of metrics.jsonl


def main(arguments: list[str] | None = None, prog: str = "clozeline demo") -> int:
    """Run the demo. It ends with the exit code of the command that fails."""
    return run(lambda: _demo(parser(prog).parse_args(arguments)))


def parser(prog: str) -> CommandParser:
    """Return the parser of the command line."""
    flags = CommandParser(
        prog,
        "All of Clozeline in two to three minutes: text, vocabulary, pairs, a training that is killed and resumed, an "
        "export, blanks filled in.",
        [prog, f"{prog} --output out/small --megabytes 2 --set run.max_steps=100"],
    )
    group = flags.add_argument_group("what it does")
    group.add_argument("--output", type=_local, default=Path("out/demo"), metavar="DIR", help="folder for everything")
    group.add_argument("--megabytes", type=positive, default=8, metavar="N", help="amount of text")
    group.add_argument("--config", type=file_path, default="tiny", metavar="RECIPE", help="recipe to train")
    add_set_flag(group, "section.key=value", "override a value of the recipe; may be repeated")
    return flags


def _local(text: str) -> Path:
    return Path(local_folder(text))


def _demo(options: argparse.Namespace) -> int:
    missing = missing_extras("pipeline", "trainer", "export")
    if missing is not None:
        raise UsageError(missing)
    if not (BIN / LAUNCHER).exists():
        raise UsageError(
            f"{BIN / LAUNCHER} is missing, with which the demo trains. Install DeepSpeed into the environment of this "
            "Python."
        )
    load_recipe(options.config, [*options.set, "data.pairs=pairs", "run.output=run"])

    started_at = time.perf_counter()
    out = options.output
    for number in listened():
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    empty(out)
    print("\n$ export DS_ACCELERATOR=cpu  # two ranks on the CPU, whether or not there is a GPU", flush=True)

    make_pairs(out, options.megabytes)
    train_and_resume(out, options.config, options.set)
    command("clozeline", "export", f"{out}/run", "--output", f"{out}/hf")
    blanks = ("python", "-m", "clozeline.start.blanks", "-", f"{out}/run", "--output", f"{out}/hf")
    command(*blanks, text="\n".join(BLANKS))

    print(f"\nDone in {time.perf_counter() - started_at:.0f} seconds. Look at")
    results = {
        "the data card": "pairs/card.html",
        "the run report": "run/report.html",
        "the model": "hf",
    }
    for title, name in results.items():
        print(f"  {title:<15} {out / name}")
    print("With your own text: clozeline start FOLDER")
    return 0


def empty(out: Path) -> None:
    """Make an empty output folder in place of an earlier demo's. Ends the demo if it holds anything else."""
    storage.check_writable_folder(str(out))
    is_ours = (out / MARKER).exists()
    is_empty = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    if not is_ours and not is_empty:
        print(
            f"clozeline: --output {out} holds files, and no {MARKER}, which a demo leaves. Remove it yourself if it is "
            "an earlier demo's, or give a new or an empty folder.",
            file=sys.stderr,
        )
        sys.exit(USAGE_ERROR)

    try:
        out.resolve().mkdir(parents=True, exist_ok=True)  # of a link, what it leads to
        for path in out.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        (out / MARKER).touch()
    except OSError as error:
        raise StorageError(f"{out} cannot be written: {error.strerror}. Give another --output.") from error


def make_pairs(out: Path, megabytes: int) -> None:
    """Make a corpus of Python's own documentation, and run the three jobs of the pipeline on it."""
    text = out / "text"
    vocab = out / "vocab"
    corpus = f"{out}/corpus.jsonl"
    command("python", "-m", "clozeline.demo.corpus", corpus, "--megabytes", str(megabytes))
    facts = ("--corpus_name", "documentation of Python and installed packages")
    shard = ("--output", f"{text}", "--num_shards", "4", "--dedup", "exact", "--holdout", "0.02")
    command("clozeline", "shard", "--input", corpus, *facts, *shard)
    command("clozeline", "vocab", "--text", f"{text}", "--output", f"{vocab}", "--model", "wordpiece", "--size", "4000")

    for texts, folder in ((f"{text}", "pairs"), (f"{text}_heldout", "held_out")):
        rows = ("--vocab", f"{vocab}", "--objective", "full_sentences", "--max_length", "128")
        command("clozeline", "pairs", "--text", texts, "--output", f"{out}/{folder}", *rows)


def train_and_resume(out: Path, config: str, changes: list[str]) -> None:
    """Train on two ranks, kill both, let the same command finish, and compare the steps that were taken twice.

    changes: further `--set` values. Ends the demo unless the steps are equal.
    """
    run = out / "run"
    settings = [f"data.pairs={out}/pairs", f"run.output={run}", f"evaluation.pairs={out}/held_out"]
    sets = [word for setting in [*settings, *changes] for word in ("--set", setting)]
    training = (LAUNCHER, "--quiet", "--num_gpus", "2", "--module", "trainer", "--config", config, *sets)

    lost = kill_midway(training, run)
    command(*training)
    lines = {line["step"]: line for line in trained_lines(run)}

    equal = sum(without_times(lines[step]) == without_times(line) for step, line in lost.items())
    print(f"\nTaken before the kill and again after the resume: steps {min(lost)} to {max(lost)}, {len(lost)} logged.")
    print(f"Equal to the last bit (losses, accuracies, gradient norms): {equal} of {len(lost)}.", flush=True)
    if equal != len(lost):
        sys.exit("The resumed run is not the run that was killed.")

    first = lines[min(lines)]
    last = lines[max(lines)]
    evaluated = read_metrics(str(run))[-1]
    print(f"MLM loss: {first['mlm_loss']:.3f} at step {first['step']}, {last['mlm_loss']:.3f} at step {last['step']}.")
    print(
        f"On held-out text: {evaluated['eval_mlm_loss_masked']:.3f} at [MASK]; word frequencies alone have "
        f"{evaluated['eval_unigram_loss']:.3f}."
    )


def without_times(line: Line) -> Line:
    """Return a line of metrics without the values that differ between any two runs."""
    return {name: value for name, value in line.items() if name not in TIMES}


def kill_midway(training: Sequence[str], run: Path) -> dict[int, Line]:
    """Start the command, SIGKILL all its processes at KILL_AT, and return the result of `lost_lines`."""
    with started(training) as process:
        while process.poll() is None:
            time.sleep(0.05)
            if is_past_kill(run):
                kill_all(process)
                print("\n^ killed with SIGKILL; now the same command again")
                return lost_lines(run)

    sys.exit(process.returncode or "The training ended before it could be killed.")


def lost_lines(run: Path) -> dict[int, Line]:
    """Return the lines that a killed run logged after its last checkpoint, by step. Ends the demo if there are none."""
    last_saved = max(steps_saved(str(run)), default=0)
    lost = {line["step"]: line for line in trained_lines(run) if line["step"] > last_saved}
    if last_saved == 0 or not lost:
        sys.exit(
            f"The run was killed after {KILL_AT:.0%} of its steps. By then it must have saved a checkpoint and logged "
            "a step after it, to compare that step. Lower checkpoint.every or run.log_every."
        )
    return lost


def is_past_kill(run: Path) -> bool:
    """Return whether a run has logged a step at or after KILL_AT."""
    recipe = run / "recipe.toml"
    lines = read_metrics(str(run))
    if not recipe.exists() or not lines:
        return False

    max_steps = tomllib.loads(recipe.read_text())["run"]["max_steps"]
    return lines[-1]["step"] >= KILL_AT * max_steps


def trained_lines(run: Path) -> list[Line]:
    """Return the lines of steps, without those of evaluations."""
    return [line for line in read_metrics(str(run)) if "loss" in line]


def command(*words: str, text: str | None = None) -> None:
    """Show a command and run it, with `text` on its stdin. If it fails, end the demo with its exit code."""
    with started(words, stdin=None if text is None else subprocess.PIPE, text=True) as process:
        process.communicate(text)
    if process.returncode:
        sys.exit(process.returncode)


@contextmanager
def started(words: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Show a command and start it. At the end of the block none of its processes is left, whatever ended the block."""
    print(f"\n$ {shlex.join(words)}", flush=True)
    if words[0] == LAUNCHER:
        print("The launcher loads torch before it starts the ranks, which takes seconds.", flush=True)
    elif "clozeline.start.blanks" in words:
        print("It loads torch and transformers, which takes seconds.", flush=True)

    process = subprocess.Popen(program(*words), env=environment(), **options)
    try:
        yield process
    finally:
        kill_all(process)


def kill_all(process: subprocess.Popen[Any]) -> None:
    """SIGKILL a process and those that it started."""
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(process.pid)
        for one in [*first.children(recursive=True), first]:
            with suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait()


def program(name: str, *words: str) -> list[str]:
    """Return a command with the program that it starts: this Python's, or one that is in BIN."""
    if name == "clozeline":
        return [sys.executable, "-m", "clozeline", *words]
    return [sys.executable if name == "python" else str(BIN / name), *words]


def environment() -> dict[str, str]:
    """Return this process's environment with the virtual environment first on PATH, as after `activate`."""
    path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
    return os.environ | {"DS_ACCELERATOR": "cpu", "PATH": path}
