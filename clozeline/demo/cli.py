"""`clozeline demo`: text -> vocabulary -> pairs -> training, killed halfway and resumed -> export -> fill in blanks.

Every step is a command that a user would type, and is printed before it runs. The training is stopped by SIGKILL, which
leaves it no chance to save, and started again by the same command. So the steps between the last checkpoint and the
kill are taken twice, and their metrics are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

from clozeline.installation import USAGE_ERROR, missing_extras
from schemas import storage
from schemas.command_line import CommandParser, file_path, local_folder, positive, run
from schemas.errors import StorageError, UsageError
from trainer.command_line import add_set_flag
from trainer.config.load import load_recipe

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

    started = time.perf_counter()
    out = options.output
    empty(out)
    show("export DS_ACCELERATOR=cpu  # two ranks on the CPU, whether or not there is a GPU")

    make_pairs(out, options.megabytes)
    train_and_resume(out, options.config, options.set)
    command(f"clozeline export {out}/run --output {out}/hf")
    command(f"python -m clozeline.start.blanks - {out}/run --output {out}/hf", "\n".join(BLANKS))

    print(f"\nDone in {time.perf_counter() - started:.0f} seconds. Look at")
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

    shutil.rmtree(out, ignore_errors=True)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / MARKER).touch()
    except OSError as error:
        raise StorageError(f"{out} cannot be written: {error.strerror}. Give another --output.") from error


def make_pairs(out: Path, megabytes: int) -> None:
    """Make a corpus of Python's own documentation, and run the three jobs of the pipeline on it."""
    text = out / "text"
    vocab = out / "vocab"
    command(f"python -m clozeline.demo.corpus {out}/corpus.jsonl --megabytes {megabytes}")
    shard = f"--output {text} --num_shards 4 --dedup exact --holdout 0.02"
    facts = '--corpus_name "documentation of Python and installed packages"'
    command(f"clozeline shard --input {out}/corpus.jsonl {facts} {shard}")
    command(f"clozeline vocab --text {text} --output {vocab} --model wordpiece --size 4000")

    rows = "--objective full_sentences --max_length 128"
    command(f"clozeline pairs --text {text} --vocab {vocab} --output {out}/pairs {rows}")
    command(f"clozeline pairs --text {text}_heldout --vocab {vocab} --output {out}/held_out {rows}")


def train_and_resume(out: Path, config: str, changes: list[str]) -> None:
    """Train on two ranks, kill both, let the same command finish, and compare the steps that were taken twice.

    changes: further `--set` values. Ends the demo unless the steps are equal.
    """
    run = out / "run"
    settings = [f"data.pairs={out}/pairs", f"run.output={run}", f"evaluation.pairs={out}/held_out"]
    settings += changes
    sets = " ".join(f"--set {setting}" for setting in settings)
    training = f"{LAUNCHER} --quiet --num_gpus 2 --module trainer --config {config} {sets}"

    lost = kill_midway(training, run)
    command(training)
    lines = {line["step"]: line for line in trained_lines(run)}

    equal = sum(without_times(lines[step]) == without_times(line) for step, line in lost.items())
    print(f"\nTaken before the kill and again after the resume: steps {min(lost)} to {max(lost)}, {len(lost)} logged.")
    print(f"Equal to the last bit (losses, accuracies, gradient norms): {equal} of {len(lost)}.", flush=True)
    if equal != len(lost):
        sys.exit("The resumed run is not the run that was killed.")

    first = lines[min(lines)]
    last = lines[max(lines)]
    evaluated = metrics(run)[-1]
    print(f"MLM loss: {first['mlm_loss']:.3f} at step {first['step']}, {last['mlm_loss']:.3f} at step {last['step']}.")
    print(
        f"On held-out text: {evaluated['eval_mlm_loss_masked']:.3f} at [MASK]; word frequencies alone have "
        f"{evaluated['eval_unigram_loss']:.3f}."
    )


def without_times(line: Line) -> Line:
    """Return a line of metrics without the values that differ between any two runs."""
    return {name: value for name, value in line.items() if name not in TIMES}


def kill_midway(training: str, run: Path) -> dict[int, Line]:
    """Start the command, SIGKILL all its processes at KILL_AT, and return the result of `lost_lines`."""
    show(training)
    process = subprocess.Popen(arguments(training), env=environment(), start_new_session=True)

    while process.poll() is None:
        time.sleep(0.05)
        if is_past_kill(run):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            print("\n^ killed with SIGKILL; now the same command again")
            return lost_lines(run)

    sys.exit(process.returncode or "The training ended before it could be killed.")


def lost_lines(run: Path) -> dict[int, Line]:
    """Return the lines that a killed run logged after its last checkpoint, by step. Ends the demo if there are none."""
    last_saved = max(saved_steps(run), default=0)
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
    lines = metrics(run)
    if not recipe.exists() or not lines:
        return False

    max_steps = tomllib.loads(recipe.read_text())["run"]["max_steps"]
    return lines[-1]["step"] >= KILL_AT * max_steps


def trained_lines(run: Path) -> list[Line]:
    """Return the lines of steps, without those of evaluations."""
    return [line for line in metrics(run) if "loss" in line]


def metrics(run: Path) -> list[Line]:
    """Return the complete lines of a run's metrics.jsonl."""
    path = run / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def saved_steps(run: Path) -> list[int]:
    """Return the steps that have a published checkpoint, in order."""
    names = [path.name.removeprefix("step-") for path in run.glob("checkpoints/step-*")]
    return sorted(int(name) for name in names if name.isdigit())


def command(line: str, text: str | None = None) -> None:
    """Show a command and run it, with `text` on its stdin. If it fails, end the demo with its exit code."""
    show(line)
    exit_code = subprocess.run(arguments(line), env=environment(), input=text, text=True, check=False).returncode
    if exit_code:
        sys.exit(exit_code)


def show(line: str) -> None:
    print(f"\n$ {line}", flush=True)
    if line.startswith(LAUNCHER):
        print("The launcher loads torch before it starts the ranks, which takes seconds.", flush=True)
    elif "blanks" in line:
        print("It loads torch and transformers, which takes seconds.", flush=True)


def arguments(line: str) -> list[str]:
    """Return the words of a command line, with the program that it starts: this Python's, or one that is in BIN."""
    program, *rest = shlex.split(line)
    if program == "clozeline":
        return [sys.executable, "-m", "clozeline", *rest]
    return [sys.executable if program == "python" else str(BIN / program), *rest]


def environment() -> dict[str, str]:
    """Return this process's environment with the virtual environment first on PATH, as after `activate`."""
    path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
    return os.environ | {"DS_ACCELERATOR": "cpu", "PATH": path}
