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
import inspect
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy
import torch

from schemas import pages

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent

IMPORTED_PACKAGES = ("schemas", "pipeline", "trainer")
LATE_IMPORTS = (
    "apache_beam.runners.portability.fn_api_runner.fn_runner",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.launcher.launch",
    "tests.trainer.faulty_rank",
    "torch.distributed.run",
    "torch.utils.tensorboard",
    "transformers.models.bert.modeling_bert",
)
"""What modules of the project, or libraries, import within functions and what takes long to import."""

PACKAGES_WITH_PAGES = ("pipeline", "trainer.finetune", "trainer.metrics", "trainer.suite")

FORKED_PACKAGES = ("clozeline", "deepspeed", "pipeline", "trainer", "tests", "torch")
PROGRAMS = {"clozeline": "clozeline", "deepspeed": "deepspeed.launcher.runner", "torchrun": "torch.distributed.run"}
"""The module that a program of this environment runs."""

STARTED_BY_EXEC = ("trainer.torchrun",)
"""Modules that read the variables of processes that they have started, which the kernel keeps from the last exec."""

READ_AT_START = ("HOME", "HF_", "LANG", "LC_", "LD_", "MKL_", "OMP_", "PYTHON", "TORCH_", "TRANSFORMERS_")
"""How the names of variables begin whose value counts when Python starts or when a library is imported."""

WITHOUT_EFFECT = ("PYTHONPATH", "PYTHONSAFEPATH", "TORCH_NCCL_")
"""Those of them that a fork follows, or that matter to GPUs alone."""

STARTED_WITH = dict(os.environ)
PATH = sys.path[1:]


def serve(listener: socket.socket) -> None:
    import_all()
    compile_pages()
    gc.collect()
    gc.freeze()
    gc.unfreeze = lambda: None  # see forked.py
    subprocess.Popen._execute_child = start_child

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


def compile_pages() -> None:
    """Compile the templates of all pages: every run writes a report, and most of its time would go into these."""
    for package in PACKAGES_WITH_PAGES:
        environment = pages._environment(package, is_html=True)
        for name in environment.list_templates(extensions=["html"]):
            environment.get_template(name)


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
        os.setsid()
        become(json.loads(message), streams)

    for stream in streams:
        os.close(stream)
    answer(connection, pid)
    return pid


def become(command: dict[str, Any], streams: list[int]) -> NoReturn:
    """Let this process be the command."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in set(streams):
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
        if "-u" in command["words"][1:2]:
            for stream in (sys.stdout, sys.stderr):
                stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        code = run_module(words, command)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        if isinstance(sys.exc_info()[1], KeyboardInterrupt):
            code = -signal.SIGINT
    end(code)


EXECUTE_CHILD = subprocess.Popen._execute_child  # type: ignore[attr-defined]
PARAMETERS = inspect.signature(EXECUTE_CHILD)
EMPTY = (None, False, (), -1)


def start_child(process: Any, *arguments: Any) -> None:
    """Start the process of a Popen object in a command: as a fork of the command, where it can be one.

    It replaces Popen._execute_child, which is called with the descriptors that the process is to have as its streams.
    """
    given = PARAMETERS.bind(process, *arguments).arguments
    environment = dict(os.environ if given["env"] is None else given["env"])
    is_plain = all(given[name] in EMPTY for name in ("executable", "preexec_fn", "pass_fds", "shell", "umask"))
    words = list(map(os.fsdecode, given["args"])) if is_plain else [""]
    if forked_words(words, environment) is None:
        EXECUTE_CHILD(process, *arguments)
        return

    # What is still in a buffer would be printed by both.
    sys.stdout.flush()
    sys.stderr.flush()
    process.pid = os.fork()
    if process.pid == 0:
        if given["start_new_session"]:
            os.setsid()
        streams = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        forget_parent(streams)
        become({"words": words, "environment": environment, "folder": given["cwd"] or os.getcwd()}, streams)

    process._child_created = True
    process._close_pipe_fds(*(given[name] for name in given if name.startswith(("p2c", "c2p", "err"))))


def forget_parent(streams: list[int]) -> None:
    """Leave a fork of a command what an exec would leave it.

    Descriptors become those of the null device, because objects of the parent may close their numbers later.
    """
    streams[:] = [number if given == -1 else given for number, given in enumerate(streams)]
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor not in streams:
            with suppress(OSError):  # the listing's own
                os.dup2(null, descriptor)

    atexit._clear()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def forked_words(words: list[str], environment: dict[str, str]) -> list[str] | None:
    """Return the module of a command and its arguments, or None if the command must be a new process."""
    program, *rest = words
    if program in ("python", sys.executable) and rest[:1] == ["-u"]:
        rest = rest[1:]
    if program in ("python", sys.executable) and rest[:1] == ["-m"]:
        module, *rest = rest[1:]
    elif program.removeprefix(f"{BIN}/") in PROGRAMS:
        module = PROGRAMS[program.removeprefix(f"{BIN}/")]
    else:
        return None

    names = [name for name in {*STARTED_WITH, *environment} if name.startswith(READ_AT_START)]
    is_same_start = all(
        STARTED_WITH.get(name) == environment.get(name) for name in names if not name.startswith(WITHOUT_EFFECT)
    )
    finds_ours = environment.get("PYTHONPATH", "").split(os.pathsep)[0] in ("", ".", str(ROOT))
    if module.split(".")[0] not in FORKED_PACKAGES or module in STARTED_BY_EXEC or not (is_same_start and finds_ours):
        return None
    return [module, *rest]


def run_module(words: list[str], command: dict[str, Any]) -> int:
    """Run a module as `python -m` would, and return the exit code."""
    os.environ.clear()
    os.environ.update(command["environment"])
    tempfile.tempdir = None
    sys.path[:] = PATH if os.environ.get("PYTHONSAFEPATH") else [os.getcwd(), *PATH]
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
