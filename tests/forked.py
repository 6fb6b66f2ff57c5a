"""Commands of this project, each a fork of one process that has already imported what takes seconds to import.

`python -m trainer` spends about 5 seconds of CPU time on imports, and the tests start hundreds of such commands. Here a
server (fork_server.py) imports every module of the project and the libraries that these use, with one thread. A command
is a fork of it that runs the module as `python -m` does: with its words, standard streams, environment and working
directory, in a new session, until the exit code or the signal that `python -m` would end with.

Two things differ from `python -m`. All commands of a server have the same seed of hashes. And gc.unfreeze does nothing,
because it would let one collection visit, and so copy, all that the server has imported.

Launchers are such commands too, and what a command itself starts (ranks, the jobs of a suite) is a fork of it, without
its descriptors, signal handlers and exit handlers.

Other programs (scripts, `python -c`), interpreter flags, and commands with other values of the variables that Python or
an import reads are started by exec, as usual, and so is what those start: `make demo` has nothing but new processes.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
ADDRESS = "CLOZELINE_TESTS_FORK_SERVER"
"""The variable with the path of the server's socket, which workers of xdist inherit, so that all share one server."""


class Command(subprocess.Popen):
    """A running command: Popen with text=True and start_new_session=True, but its process is a child of the server."""

    def __init__(
        self,
        words: Sequence[object],
        environment: Mapping[str, str] | None = None,
        folder: Path | str | None = None,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
    ):
        self.words = list(map(str, words))
        self.args = self.words
        self.returncode: Any = None
        theirs: list[int] = []
        self.stdin, self.stdout, self.stderr = (
            _stream(given, number, theirs) for number, given in enumerate((stdin, stdout, stderr))
        )

        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.connect(server_address())
        command = {
            "words": self.words,
            "environment": dict(os.environ if environment is None else environment),
            "folder": str(folder or Path.cwd()),
        }
        socket.send_fds(self._server, [json.dumps(command).encode()], theirs)
        for descriptor in set(theirs) - {0, 1, 2}:
            os.close(descriptor)
        self.pid = self._answer()

    def _answer(self) -> int:
        answer = self._server.recv(64)
        assert answer, "the server of forked commands has ended"
        return int(answer)

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._server], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = self._answer()
            self._server.close()
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """Read the streams to their ends and wait. A stream that an earlier call has read is empty."""
        texts = ["", ""]
        readers = [
            threading.Thread(target=_read, args=(stream, texts, place), daemon=True)
            for place, stream in enumerate((self.stdout, self.stderr))
            if stream is not None and not stream.closed
        ]
        for reader in readers:
            reader.start()
        if self.stdin is not None and not self.stdin.closed:
            with suppress(BrokenPipeError), self.stdin:
                self.stdin.write(input or "")
        self.wait(timeout)
        for reader in readers:
            reader.join()
        return texts[0], texts[1]


def run(
    words: Sequence[object],
    environment: Mapping[str, str] | None = None,
    folder: Path | str | None = None,
    timeout: float = 240,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, as subprocess.run(capture_output=True, text=True) does."""
    command = Command(words, environment, folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = command.communicate(timeout=timeout)
    except BaseException:
        command.kill()
        raise
    return subprocess.CompletedProcess(command.words, command.returncode, out, err)


def _stream(given: int | IO[Any] | None, number: int, theirs: list[int]) -> IO[str] | None:
    """Append the descriptor that the command gets as `number`, and return our end if it is a pipe."""
    if given == subprocess.PIPE:
        reader, writer = os.pipe()
        theirs.append(reader if number == 0 else writer)
        return open(writer, "w") if number == 0 else open(reader)
    if given is None:
        theirs.append(number)
    elif given == subprocess.DEVNULL:
        theirs.append(os.open(os.devnull, os.O_RDWR))
    elif given == subprocess.STDOUT:
        theirs.append(theirs[1])
    else:
        theirs.append(os.dup(given if isinstance(given, int) else given.fileno()))
    return None


def _read(stream: IO[str], texts: list[str], place: int) -> None:
    with stream:
        texts[place] = stream.read()


def server_address() -> str:
    """Return the path of the server's socket, and start a server if the process that started this one has none."""
    return os.environ.get(ADDRESS) or own_server()


@cache
def own_server() -> str:
    """Start a server that ends with this process, and its commands with it."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(server())


@contextmanager
def server(**environment: str) -> Iterator[str]:
    """Run a server with more variables than this process has, and yield the path of its socket."""
    with tempfile.TemporaryDirectory(prefix="clozeline-forks-") as folder:
        path = f"{folder}/socket"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(path)
            listener.listen(64)
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", str(listener.fileno())],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"} | environment,
                # Pipes, because Python's stream objects, which commands inherit, remember whether they can seek.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        try:
            yield path
        finally:
            process.communicate()
