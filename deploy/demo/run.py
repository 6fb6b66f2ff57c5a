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
from pathlib import Path
from typing import Any

HERE, BIN = Path(__file__).parent, Path(sys.executable).parent
KILL_AT = 0.55  # of all steps; the last checkpoint then lies at a half


def main() -> None:
    flags = argparse.ArgumentParser(description="The whole of Clozeline in a few minutes.")
    flags.add_argument("--output", type=Path, default=Path("out/demo"), help="folder for everything it makes")
    flags.add_argument("--config", default="trainer/recipes/tiny.toml")
    flags.add_argument("--megabytes", default="8", help="of text")
    flags.add_argument("--set", action="append", default=[], help="change a value of the recipe")
    options = flags.parse_args()
    started = time.perf_counter()
    shutil.rmtree(options.output, ignore_errors=True)
    make_pairs(options.output, options.megabytes)
    train_and_resume(options.output, options.config, options.set)
    out = options.output
    command("python -m trainer.export", out / "run", "--output", out / "hf")
    command("python", HERE / "blanks.py", out / "hf")
    command("python", HERE / "loss_curve.py", out / "run", out / "loss.png")
    print(f"\nDone in {time.perf_counter() - started:.0f} seconds. Look at")
    for what, name in (("the data card", "pairs/card.html"), ("the loss curve", "loss.png"), ("the model", "hf")):
        print(f"  {what:<15} {out / name}")


def make_pairs(out: Path, megabytes: str) -> None:
    """The three jobs of the pipeline, on the documentation that this Python carries."""
    command("python", HERE / "corpus.py", out / "corpus.jsonl", "--megabytes", megabytes)
    command("python -m pipeline shard --input", out / "corpus.jsonl", "--output", out / ["text", "--num_shards", "4"][0],
            "--num_shards 4 --dedup exact")  # fmt: skip
    command("python -m pipeline vocab --text", out / "text", "--output", out / "vocab", "--model wordpiece --size 4000")
    command("python -m pipeline pairs --text", out / "text", "--vocab", out / "vocab", "--output", out / "pairs",
            "--objective nsp --max_length 64")  # fmt: skip


def train_and_resume(out: Path, config: str, changes: list[str]) -> None:
    """Train on two ranks, kill all of it, and let the same command finish."""
    settings = [f"data.pairs={out / 'pairs'}", f"run.output={out / 'run'}", *changes]
    sets = " ".join(f"--set {shlex.quote(setting)}" for setting in settings)
    training = f"deepspeed --quiet --num_gpus 2 --module trainer --config {config} {sets}"
    lost = kill_midway(training, out / "run")
    command(training)
    again = {line["step"]: line["loss"] for line in metrics(out / "run")}
    equal = [step for step, loss in lost.items() if again[step] == loss]
    checkpoint = max(saved_steps(out / "run"), default=0)
    print(f"\nSteps taken both before the kill and after the resume: {', '.join(map(str, lost))}.")
    print(
        f"Losses equal to the last bit: {len(equal)} of {len(lost)}. Newest checkpoint: step {checkpoint}.", flush=True
    )
    if not lost or len(equal) != len(lost):
        sys.exit("The resumed run is not the run that was killed.")
    first, last = min(again), max(again)
    mlm = {line["step"]: line["mlm_loss"] for line in metrics(out / "run")}
    print(f"MLM loss: {mlm[first]:.3f} at step {first}, {mlm[last]:.3f} at step {last}.", flush=True)


def kill_midway(training: str, run: Path) -> dict[int, float]:
    """Run the command until KILL_AT, SIGKILL all its processes, and return the losses past the last checkpoint."""
    show(training)
    process = subprocess.Popen(arguments(training), env=environment(), start_new_session=True)
    stop = KILL_AT * 10**9
    while process.poll() is None:
        time.sleep(0.1)
        if (run / "recipe.toml").exists() and stop >= 10**6:
            text = (run / "recipe.toml").read_text()
            stop = KILL_AT * int(text.split("max_steps = ")[1].split("\n")[0])
        if max((line["step"] for line in metrics(run)), default=0) >= stop:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            print("\n^ killed with SIGKILL; now the same command again")
            checkpoint = max(saved_steps(run))
            return {line["step"]: line["loss"] for line in metrics(run) if line["step"] > checkpoint}
    sys.exit(process.returncode or "The training ended before it could be killed.")


def metrics(run: Path) -> list[dict[str, Any]]:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def saved_steps(run: Path) -> list[int]:
    names = (path.name[5:] for path in run.glob("checkpoints/step-*"))
    return sorted(int(name) for name in names if name.isdigit())


def command(*parts: str | Path) -> None:
    """Show a command and run it; a failure ends the demo with the command's exit code."""
    line = " ".join(map(str, parts))
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
    return os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"}


if __name__ == "__main__":
    main()
