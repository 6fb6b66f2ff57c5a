"""`make demo`: text -> vocabulary -> pairs -> training, killed half way and resumed -> export -> fill in blanks.

Every step is a command that a user would type, printed before it runs. The training is stopped by SIGKILL, the worst
that can happen to it, and started again by the same command: the steps between the last checkpoint and the kill are
then taken twice, and their losses are compared.
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

HERE, BIN = Path("deploy/demo"), Path(sys.executable).parent
KILL_AT = 0.55  # of all steps; the last checkpoint then lies at a half
TIMES = ("seconds", "tokens_per_second", "loader_stall_fraction")  # what no two runs share


def main() -> None:
    flags = argparse.ArgumentParser(description="The whole of Clozeline in a few minutes.")
    flags.add_argument("--output", type=Path, default=Path("out/demo"), help="folder for everything it makes")
    flags.add_argument("--config", default="trainer/recipes/tiny.toml")
    flags.add_argument("--megabytes", default="8", help="of text")
    flags.add_argument("--set", action="append", default=[], help="change a value of the recipe")
    options = flags.parse_args()
    started = time.perf_counter()
    show("export DS_ACCELERATOR=cpu  # two ranks on the CPU, whether or not there is a GPU")
    shutil.rmtree(options.output, ignore_errors=True)
    make_pairs(options.output, options.megabytes)
    train_and_resume(options.output, options.config, options.set)
    out = options.output
    command(f"python -m trainer.export {out}/run --output {out}/hf")
    command(f"python {HERE}/blanks.py {out}/hf")
    command(f"python {HERE}/loss_curve.py {out}/run {out}/loss.png")
    print(f"\nDone in {time.perf_counter() - started:.0f} seconds. Look at")
    for what, name in (("the data card", "pairs/card.html"), ("the loss curve", "loss.png"), ("the model", "hf")):
        print(f"  {what:<15} {out / name}")


def make_pairs(out: Path, megabytes: str) -> None:
    """The three jobs of the pipeline, on the documentation that this Python carries."""
    text, vocab = out / "text", out / "vocab"
    command(f"python {HERE}/corpus.py {out}/corpus.jsonl --megabytes {megabytes}")
    command(f"python -m pipeline shard --input {out}/corpus.jsonl --output {text} --num_shards 4 --dedup exact")
    command(f"python -m pipeline vocab --text {text} --output {vocab} --model wordpiece --size 4000")
    pairs = f"--output {out}/pairs --objective nsp --max_length 64"
    command(f"python -m pipeline pairs --text {text} --vocab {vocab} {pairs}")


def train_and_resume(out: Path, config: str, changes: list[str]) -> None:
    """Train on two ranks, kill all of it, let the same command finish, and compare the steps that were taken twice."""
    run = out / "run"
    sets = " ".join(f"--set {setting}" for setting in (f"data.pairs={out}/pairs", f"run.output={run}", *changes))
    training = f"deepspeed --quiet --num_gpus 2 --module trainer --config {config} {sets}"
    lost = kill_midway(training, run)
    command(training)
    again = {line["step"]: line for line in metrics(run)}
    equal = sum(again[step] == line | {name: again[step][name] for name in TIMES} for step, line in lost.items())
    print(f"\nTaken before the kill and again after the resume: steps {min(lost)} to {max(lost)}, {len(lost)} logged.")
    print(f"Equal to the last bit (losses, accuracies, gradient norms): {equal} of {len(lost)}.", flush=True)
    if equal != len(lost):
        sys.exit("The resumed run is not the run that was killed.")
    first, last = again[min(again)], again[max(again)]
    print(f"MLM loss: {first['mlm_loss']:.3f} at step {first['step']}, {last['mlm_loss']:.3f} at step {last['step']}.")


def kill_midway(training: str, run: Path) -> dict[int, dict[str, Any]]:
    """Start the command, SIGKILL all its processes at KILL_AT, and return what it logged past its last checkpoint."""
    show(training)
    process = subprocess.Popen(arguments(training), env=environment(), start_new_session=True)
    while process.poll() is None:
        time.sleep(0.05)
        recipe = run / "recipe.toml"
        if recipe.exists() and metrics(run)[-1:]:
            max_steps = tomllib.loads(recipe.read_text())["run"]["max_steps"]
            if metrics(run)[-1]["step"] >= KILL_AT * max_steps:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                print("\n^ killed with SIGKILL; now the same command again")
                return {line["step"]: line for line in metrics(run) if line["step"] > max(saved_steps(run))}
    sys.exit(process.returncode or "The training ended before it could be killed.")


def metrics(run: Path) -> list[dict[str, Any]]:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def saved_steps(run: Path) -> list[int]:
    names = (path.name[5:] for path in run.glob("checkpoints/step-*"))
    return sorted(int(name) for name in names if name.isdigit())


def command(line: str) -> None:
    """Show a command and run it; a failure ends the demo with the command's exit code."""
    show(line)
    code = subprocess.run(arguments(line), env=environment(), check=False).returncode
    if code:
        sys.exit(code)


def show(line: str) -> None:
    print(f"\n$ {line}", flush=True)


def arguments(line: str) -> list[str]:
    program, *rest = shlex.split(line)
    return [str(BIN / program), *rest]


def environment() -> dict[str, str]:
    """This one's, with the environment's programs first, as after `source .venv/bin/activate`."""
    return os.environ | {"DS_ACCELERATOR": "cpu", "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"}


if __name__ == "__main__":
    main()
