"""Handles signals that ask a run to save and end, and lets all ranks stop at the same place.

    SIGTERM, SIGUSR1   save the last complete step and exit with 75; a run of one process that does not train yet, and
    SIGHUP             so has nothing to save, exits at once. SIGHUP, of a closed terminal, is ignored after `nohup`
    SIGINT (Ctrl-C)    save, too, and exit with 75; if nothing trains, or a second time, exit at once with 130. Shells
                       let what scripts start in the background (`&`) ignore it

Slurm (--signal), Kubernetes, spot instances and torchrun send one of the first two, to one rank or to all, often twice.
A terminal sends SIGINT to every process of the job, and launchers add a SIGTERM.

`StopRequest`: two threads of this process. Python runs a signal handler in the main thread, between two bytecodes. The
handler only notes the request, which is too late for an immediate exit, because the main thread may be blocked in a
collective or compile an extension for minutes. So Python's C handler also writes the signal's number to a pipe
(signal.set_wakeup_fd), and a daemon thread reads the pipe. Only that thread ends the process at once, with os._exit. Of
several ranks, one that ends alone would leave others waiting.

`StopAgreement`: all ranks. A step of a large batch may take longer than the 30 seconds that torchrun and Kubernetes
leave for saving, so a run must be able to stop in the middle of one, or of an evaluation, and all ranks at the same
place, because ZeRO 2 and 3 communicate in every micro-batch. Before each micro-batch every rank starts an asynchronous
all-reduce (maximum) of one number, 1 if this rank was asked to stop. Before the next micro-batch, which may be the
first of the next step, it waits for that result, which has usually arrived long ago, and abandons the step if it is 1.
A blocking all-reduce would instead make fast ranks wait in every micro-batch.

    micro-batch      0          1          0 of the next step
    before it        ask        read, ask  read: 1, so all ranks stop

So training stops within two micro-batches of a signal, or within one if there is a single rank. The group uses gloo, on
the CPU, so that no device is synchronized. gloo's own threads communicate, and the main thread makes all calls.

Programs listen to signals before they import torch, so nothing here imports it at the top.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
from threading import Thread
from time import monotonic
from typing import Any, NoReturn

from schemas import progress
from schemas.errors import INTERRUPTED, PreemptedError

STOPPING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
SAME_REQUEST = 0.5
"""Seconds within which a second SIGINT counts as the first, because some wrappers signal both process and group."""

AT_THE_START = "before training began. Nothing was lost; the same command starts again."


def listened() -> list[signal.Signals]:
    """Return the signals to listen to; without SIGHUP if `nohup`, and SIGINT if `command &` in a script ignores it."""
    ignored = {number for number in (signal.SIGHUP, signal.SIGINT) if signal.getsignal(number) is signal.SIG_IGN}
    return [number for number in (*STOPPING, signal.SIGINT) if number not in ignored]


class StopRequest:
    """Whether this process was asked to stop."""

    def __init__(self) -> None:
        self.asked = False
        self._is_alone = os.environ.get("WORLD_SIZE", "1") == "1"  # as the launcher says, if there is one
        self._is_training = False
        self.interrupted = False  # by Ctrl-C, known as soon as `asked` is
        self._interrupted_at: float | None = None
        self._pipe_writer: int | None = None

    def listen(self) -> StopRequest:
        """From now on, note the signals instead of ending the process. Call it from the main thread."""
        reader, self._pipe_writer = os.pipe()
        os.set_blocking(self._pipe_writer, False)
        signal.set_wakeup_fd(self._pipe_writer, warn_on_full_buffer=False)
        for number in listened():
            signal.signal(number, self._note)

        Thread(target=self._read_signals, args=(reader,), name="signals", daemon=True).start()
        return self

    def training_begins(self) -> None:
        """Note that there is now something to save, so the first SIGINT requests that instead of ending the process."""
        self._is_training = True

    def ignore(self) -> None:
        """From now on, ignore the signals, because a late one must not change the exit code of a run that saved."""
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        # Not SIG_IGN, because child processes would inherit it and could not be interrupted.
        signal.signal(signal.SIGINT, lambda number, frame: None)
        # The interpreter takes handlers away before the process ends, but keeps SIG_IGN.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)

        # Closing the writing end makes the reading thread end.
        if self._pipe_writer is not None:
            signal.set_wakeup_fd(-1)
            os.close(self._pipe_writer)
            self._pipe_writer = None

    def _note(self, number: int, frame: Any) -> None:
        self.interrupted |= number == signal.SIGINT
        self.asked = True

    def _read_signals(self, reader: int) -> None:
        """Read signal numbers, one byte each, until the pipe is closed, and act on those that end the process."""
        while True:
            numbers = os.read(reader, 64)
            if not numbers:
                break
            if not self._is_training and self._is_alone and any(number in numbers for number in STOPPING):
                _end(f"asked to stop {AT_THE_START}", PreemptedError.exit_code)
            for _ in range(numbers.count(signal.SIGINT)):
                self._interrupt()
        os.close(reader)

    def _interrupt(self) -> None:
        if not self._is_training:
            _end(f"interrupted {AT_THE_START}", INTERRUPTED)

        now = monotonic()
        if self._interrupted_at is None:
            self._interrupted_at = now
            _say("interrupted: saving the last complete step. Interrupt again to end at once without saving.")
        elif now - self._interrupted_at >= SAME_REQUEST:
            _end(
                "interrupted again, ended without saving. The same command resumes from the last checkpoint.",
                INTERRUPTED,
            )


class StopAgreement:
    """Shares this rank's stop request so that all ranks stop together. Creating and closing it are collective calls."""

    def __init__(self, request: StopRequest, timeout: float = 1200.0):
        """Open the group. timeout: seconds after which a rank that does not answer is an error.

        Raises UsageError on every rank if one of them cannot connect.
        """
        import torch
        import torch.distributed as dist

        from trainer.distributed.process_group import open_host_group

        self._request = request
        self._group: Any = None
        if dist.get_world_size() > 1:
            self._group = open_host_group(timeout)

        # The number that is reduced in place, set and read through NumPy, and the reduction that was not read yet.
        self._shared = torch.zeros(1)
        self._asked_by_any = self._shared.numpy()
        self._pending: Any = None

    def training_begins(self) -> None:
        """Let the signal handlers know that from now on there is something to save."""
        self._request.training_begins()

    def leaves_step(self) -> bool:
        """Return whether all ranks abandon the step before its next micro-batch. A collective call."""
        if self._group is None:
            return self._request.asked

        if self._agreed_to_stop():
            return True

        import torch.distributed as dist

        self._asked_by_any[0] = self._request.asked
        self._pending = dist.all_reduce(self._shared, dist.ReduceOp.MAX, group=self._group, async_op=True)
        return False

    def close(self) -> None:
        """Release the group's threads and sockets."""
        if self._group is not None:
            import torch.distributed as dist

            # Wait for the last call, so that gloo's threads are idle. It fails if a rank was lost.
            with contextlib.suppress(RuntimeError):
                self._agreed_to_stop()
            dist.destroy_process_group(self._group)
            self._group = None

    def _agreed_to_stop(self) -> bool:
        """Wait for the last reduction and return its result; False if none was started since the last read."""
        if self._pending is None:
            return False

        self._pending.wait()
        self._pending = None
        return bool(self._asked_by_any[0])


def _say(message: str) -> None:
    """Write a line to stderr on rank 0. Not with the logger, whose lock the blocked main thread may hold."""
    if os.environ.get("RANK", "0") == "0":
        with contextlib.suppress(OSError):
            begin = "\n" if progress.is_drawn() else ""  # ends the bar's line without the bar's lock
            os.write(2, f"{begin}clozeline: {message}\n".encode())


def _end(message: str, code: int) -> NoReturn:
    """End the process. Checkpoints are published by a rename, so cutting a save short leaves the older ones intact."""
    _say(message)
    os._exit(code)
