"""A torchrun that returns the ranks' own exit code and gives them as long as they need to save.

    python -m trainer.torchrun --nproc_per_node 8 [torchrun's flags] -m trainer --config bert_base

Takes torchrun's flags and starts ranks as torchrun does. It differs once the run is asked to stop:

                             torchrun                               here
    the ranks saved (75)     exit code 1 and a traceback            exit code 75, which schedulers can act on
    SIGTERM, SIGINT, SIGHUP  kills ranks that save for over 30 s    passes the signal on and waits
    SIGUSR1                  ends, and its ranks with it            passes the signal on and waits

Also, if the node that hosts its store exits first, torchrun logs a traceback after a successful run; this one does not.

Slurm's --signal reaches every process of a step, including launchers. Kubernetes signals the launcher alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from typing import Any

import psutil
from torch.distributed import DistNetworkError
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from schemas.errors import INTERRUPTED, PreemptedError
from trainer.distributed.stop import listened

SIGNALS_OF_TORCHRUN = "SIGQUIT"
"""Signals that are left to torchrun, which ends its ranks. All others that the ranks listen to are handled here."""

LOGGER_OF_AGENTS = "torch.distributed.elastic.agent.server.api"
"""The logger of the part of torchrun that waits for the ranks of a node, and then for the other nodes."""


class Stopped(BaseException):
    """The launcher was asked to stop before it had started a rank. Not an Exception, so torchrun does not catch it."""


class SignalRelay:
    """Passes signals on to the ranks of this launcher, which decide what to do. last: the latest signal, or None."""

    def __init__(self) -> None:
        self.last: int | None = None

    def listen(self) -> SignalRelay:
        """Handle signals from now on. Call it from the main thread."""
        for number in listened():
            signal.signal(number, self._pass_on)
        return self

    def _pass_on(self, number: int, frame: Any) -> None:
        self.last = number
        ranks = ranks_of(os.getpid())
        if not ranks:
            raise Stopped

        for rank in ranks:
            # The rank may have just exited.
            with contextlib.suppress(psutil.Error):
                rank.send_signal(number)


def ranks_of(launcher: int) -> list[psutil.Process]:
    """Return the ranks that the launcher with this process id has started: its children that have RANK set."""
    ranks = []
    for child in psutil.Process(launcher).children():
        with contextlib.suppress(psutil.Error):
            if "RANK" in child.environ():
                ranks.append(child)
    return ranks


def is_no_lost_barrier(record: logging.LogRecord) -> bool:
    """Return False for the error that a launcher logs if its ranks ended well but the store is already gone.

    Before they exit, launchers wait for each other at a store that one of them hosts. That one may exit before its
    answer reaches the others, which does them no harm. A wait that times out is still logged.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not (record.funcName == "_exit_barrier" and isinstance(error, DistNetworkError))


def main(arguments: list[str] | None = None) -> int:
    """Start the ranks of this node, wait for them, and return the exit code of the first that failed, or 0."""
    words = sys.argv[1:] if arguments is None else arguments
    relay = SignalRelay()
    logging.getLogger(LOGGER_OF_AGENTS).addFilter(is_no_lost_barrier)
    try:
        relay.listen()
        options = torchrun.parse_args(["--signals_to_handle", SIGNALS_OF_TORCHRUN, *words])
        torchrun.run(options)
        return 0
    except Stopped:
        return code_without_ranks(relay.last)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code = exit_code(failure.exitcode, relay.last)
        if code not in (PreemptedError.exit_code, INTERRUPTED):
            print(failure_message(rank, failure), file=sys.stderr, flush=True)
        return code


def code_without_ranks(asked: int | None) -> int:
    """Return the exit code of a launcher that signal `asked` stopped before any rank had begun to train."""
    return INTERRUPTED if asked == signal.SIGINT else PreemptedError.exit_code


def exit_code(of_rank: int, asked: int | None) -> int:
    """Return the launcher's exit code: that of the rank, or 128 + the signal number for a rank killed by a signal.

    of_rank: the rank's exit code, negative for a signal. asked: the signal that asked the launcher to stop. A rank that
    gets this signal while its interpreter starts, before it listens, dies of it, which counts as a stop.
    """
    if asked is not None and of_rank == -asked:
        return code_without_ranks(asked)
    return of_rank if of_rank > 0 else 128 - of_rank


def failure_message(rank: int, failure: ProcessFailure) -> str:
    """Return a message naming the rank that failed first, which has printed the reason unless a signal killed it."""
    name = f"clozeline: rank {rank} (process {failure.pid})"
    if failure.exitcode < 0:
        killer = signal.Signals(-failure.exitcode).name
        return f"{name} was killed by {killer}. The same command resumes from the last checkpoint."
    return f"{name} ended first, with exit code {failure.exitcode}."


if __name__ == "__main__":
    raise SystemExit(main())
