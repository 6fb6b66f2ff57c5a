"""torchrun, with the ranks' own exit code and with as long as they need to save.

    python -m trainer.torchrun --nproc_per_node 8 [torchrun's flags] -m trainer --config bert_base

Takes torchrun's flags and starts ranks as torchrun does. It differs once the run is asked to stop:

                             torchrun                               here
    the ranks saved (75)     exit code 1 and a traceback            exit code 75, which schedulers can act on
    SIGTERM, SIGINT          kills ranks that save for over 30 s    passes the signal on and waits
    SIGUSR1                  ends, and its ranks with it            passes the signal on and waits

And where the node of its store ends first, torchrun logs a traceback after a run that went well; this one does not.

Slurm's --signal reaches every process of a step, launchers too, and Kubernetes signals the launcher alone.
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

from schemas.errors import PreemptedError
from trainer.distributed.preemption import INTERRUPTED, LISTENED

SIGNALS_OF_TORCHRUN = "SIGHUP,SIGQUIT"
"""Signals at which torchrun ends its ranks in its own way. All others that the ranks listen to are handled here."""

LOGGER_OF_AGENTS = "torch.distributed.elastic.agent.server.api"
"""The logger of torchrun's part that waits for the ranks of a node, and then for the other nodes."""


class Stopped(BaseException):
    """The launcher was asked to stop before it had started a rank. Not an Exception, so that torchrun lets it pass."""


class SignalRelay:
    """Passes signals on to the ranks of this launcher, which decide what to do; `last` is the latest signal."""

    def __init__(self) -> None:
        self.last: int | None = None

    def listen(self) -> SignalRelay:
        """Handle signals from now on. Call it from the main thread."""
        for number in LISTENED:
            signal.signal(number, self._pass_on)
        return self

    def _pass_on(self, number: int, frame: Any) -> None:
        self.last = number
        ranks = ranks_of(os.getpid())
        if not ranks:
            raise Stopped

        for rank in ranks:
            # A rank that has just ended needs no signal.
            with contextlib.suppress(psutil.Error):
                rank.send_signal(number)


def ranks_of(launcher: int) -> list[psutil.Process]:
    """Return the ranks that a launcher has started: its children, except for helpers that have no RANK."""
    ranks = []
    for child in psutil.Process(launcher).children():
        with contextlib.suppress(psutil.Error):
            if "RANK" in child.environ():
                ranks.append(child)
    return ranks


def is_no_lost_barrier(record: logging.LogRecord) -> bool:
    """Return False for what a launcher logs whose ranks have all ended well, when it finds the others gone.

    Launchers wait for each other before they end, at a store that one of them has. That one may have ended before the
    answer has reached the others, which changes nothing for them. A wait that takes too long is still logged.
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
    """Return the exit code of a launcher that was asked to stop before it had ranks: nothing was lost."""
    return INTERRUPTED if asked == signal.SIGINT else PreemptedError.exit_code


def exit_code(of_rank: int, asked: int | None) -> int:
    """Return the launcher's exit code. `of_rank` is negative for a rank that died of a signal.

    A rank that is signaled before it listens, as its interpreter starts, dies of the signal that asked it to stop.
    """
    if asked is not None and of_rank == -asked:
        return code_without_ranks(asked)
    return of_rank if of_rank > 0 else 128 - of_rank


def failure_message(rank: int, failure: ProcessFailure) -> str:
    """Name the rank that failed first. It has said why itself, unless a signal killed it."""
    name = f"clozeline: rank {rank} (process {failure.pid})"
    if failure.exitcode < 0:
        killer = signal.Signals(-failure.exitcode).name
        return f"{name} was killed by {killer}. The same command resumes from the last checkpoint."
    return f"{name} ended first, with exit code {failure.exitcode}."


if __name__ == "__main__":
    raise SystemExit(main())
