"""Fine-tunings that signal themselves: `python -m tests.trainer.finetune.stopping FILE`.

FILE holds a JSON list of commands, each with `words`, the command's arguments, and optionally `signal`, `step` and
`moment`: the process sends itself that signal at the end of that step, or while it writes that step's checkpoint. Each
command runs in a separate process, forked from one that has imported everything. Prints their exit codes as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from trainer.distributed.stop import StopRequest
from trainer.finetune import fit, run, seed_events  # noqa: F401 (imports torch and transformers before the forks)
from trainer.finetune.cli import main


def run_forked(command: dict[str, Any]) -> int:
    """Run a command in a forked process and return its exit code, or minus the signal that ended it."""
    process = os.fork()
    if process == 0:
        os.dup2(2, 1)  # the answer alone goes to stdout
        stop = StopRequest().listen()
        if "signal" in command:
            signal_at(command["moment"], command["step"], command["signal"])
        os._exit(main(command["words"], stop=stop))
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def signal_at(moment: str, step: int, number: int) -> None:
    """Let this process send itself a signal before the step's last calls, or before a checkpoint's last files."""
    owner, name = {
        "step": (seed_events.SeedEvents, "on_step_end"),
        "checkpoint": (fit.FinetuneTrainer, "_save_rng_state"),
    }[moment]
    call = getattr(owner, name)

    def signaling(self: Any, *arguments: Any, **more: Any) -> Any:
        state = arguments[1] if moment == "step" else self.state
        if state.global_step == step:
            signal.raise_signal(number)
        return call(self, *arguments, **more)

    setattr(owner, name, signaling)


if __name__ == "__main__":
    print(json.dumps([run_forked(command) for command in json.loads(Path(sys.argv[1]).read_text())]))
