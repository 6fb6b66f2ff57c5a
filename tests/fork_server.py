"""The process that commands of the tests are forked from; see forked.py.

    python -m tests.fork_server DESCRIPTOR

The descriptor is of a listening socket. A connection is a command: a message with its words, environment and folder as
JSON and its three streams as descriptors, answered by its process id and then by its exit code, as Popen has it. The
server ends when its standard input does, and kills what still runs.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy
import torch

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent

IMPORTED_PACKAGES = ("schemas", "pipeline", "trainer")
LATE_IMPORTS = (
    "apache_beam.runners.portability.fn_api_runner.fn_runner",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "tests.trainer.faulty_rank",
    "torch.utils.tensorboard",
    "transformers.models.bert.modeling_bert",
)
"""What modules of the project, or libraries, import within functions and what takes long to import."""

FORKED_PACKAGES = ("clozeline", "pipeline", "trainer", "tests")
LAUNCHERS = ("trainer.torchrun",)
READ_AT_START = ("HOME", "HF_", "LANG", "LC_", "LD_", "MKL_", "OMP_", "PYTHON", "TORCH_", "TRANSFORMERS_")
"""How the names of variables begin whose value counts when Python starts or when a library is imported."""


def serve(listener: socket.socket) -> None:
    import_all()
    gc.collect()
    gc.freeze()
    gc.unfreeze = lambda: None  # see forked.py

    # Not epoll, whose descriptor every fork would share.
    selector = selectors.PollSelector()
    selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
    selector.register(listener, selectors.EVENT_READ)
    running: dict[int, socket.socket] = {}
    processes: dict[int, int] = {}
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                pid = fork(connection, [listener, *running.values()], list(processes))
                process = os.pidfd_open(pid)
                selector.register(process, selectors.EVENT_READ)
                running[process], processes[process] = connection, pid
            elif key.fd in running:
                selector.unregister(key.fd)
                os.close(key.fd)
                _, status = os.waitpid(processes.pop(key.fd), 0)
                answer(running[key.fd], os.waitstatus_to_exitcode(status))
                running.pop(key.fd).close()
            else:
                for pid in processes.values():
                    os.kill(pid, signal.SIGKILL)
                return


def import_all() -> None:
    """Import every module of the project but its programs. One that cannot be imported fails in its own tests."""
    for package in IMPORTED_PACKAGES:
        for found in pkgutil.walk_packages([str(ROOT / package)], f"{package}.", onerror=lambda name: None):
            if not found.name.endswith("__main__"):
                with suppress(Exception):
                    importlib.import_module(found.name)
    for name in LATE_IMPORTS:
        with suppress(ImportError):
            importlib.import_module(name)


def answer(connection: socket.socket, number: int) -> None:
    with suppress(OSError):  # a test that waits no longer
        connection.sendall(str(number).encode())


def fork(connection: socket.socket, sockets: list[socket.socket], processes: list[int]) -> int:
    """Start the command of a connection, and return its process id.

    sockets, processes: descriptors of the server that the command must not hold open.
    """
    message, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    pid = os.fork()
    if pid == 0:
        for other in (connection, *sockets):
            other.close()
        for process in processes:
            os.close(process)
        become(json.loads(message), streams)

    for stream in streams:
        os.close(stream)
    answer(connection, pid)
    return pid


def become(command: dict[str, Any], streams: list[int]) -> NoReturn:
    """Let this process be the command."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        if stream > 2:
            os.close(stream)

    code = 1
    try:
        os.chdir(command["folder"])
        words = forked_words(command["words"], command["environment"])
        if words is None:
            program = command["words"][0]
            path = program if "/" in program else str(BIN / program)
            os.execvpe(path, [path, *command["words"][1:]], command["environment"])
        code = run_module(words, command)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        if isinstance(sys.exc_info()[1], KeyboardInterrupt):
            code = -signal.SIGINT
    end(code)


def forked_words(words: list[str], environment: dict[str, str]) -> list[str] | None:
    """Return the module of a command and its arguments, or None if the command must be a new process."""
    if words[0] in ("python", sys.executable) and words[1:2] == ["-m"]:
        module, *rest = words[2:]
    elif words[0] in ("clozeline", str(BIN / "clozeline")):
        module, rest = "clozeline", words[1:]
    else:
        return None

    names = [name for name in {*os.environ, *environment} if name.startswith(READ_AT_START) and name != "PYTHONPATH"]
    is_same_start = all(os.environ.get(name) == environment.get(name) for name in names)
    finds_ours = environment.get("PYTHONPATH", "").split(os.pathsep)[0] in ("", ".", str(ROOT))
    if module.split(".")[0] not in FORKED_PACKAGES or module in LAUNCHERS or not (is_same_start and finds_ours):
        return None
    return [module, *rest]


def run_module(words: list[str], command: dict[str, Any]) -> int:
    """Run a module as `python -m` would, and return the exit code."""
    os.environ.clear()
    os.environ.update(command["environment"])
    tempfile.tempdir = None
    sys.path[0] = os.getcwd()
    sys.argv[:] = words
    numpy.random.seed()
    torch.default_generator.seed()  # and random does so itself

    sys.modules.pop(words[0], None)
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    return 0


def end(code: int) -> NoReturn:
    """End as the interpreter does, but for the destruction of what was imported."""
    with suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = 120
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
