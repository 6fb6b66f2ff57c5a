"""Loading DeepSpeed's CPU communication kernels, which are compiled on a machine's first start.

torch guards a build by a file `lock` in the build folder. A process that is killed there leaves it behind, and every
later start would wait for its removal forever and without a word. Here builds of this program take turns by a lock that
the system releases, so a `lock` that is found while no other builds is known to be stale.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from threading import Timer
from time import monotonic, sleep, time
from typing import IO, Any

from schemas.errors import StorageError, UsageError

LOCK = "lock"  # torch's
ANNOUNCED = 5.0  # seconds after which a wait is told of
OURS = "clozeline.lock"
STALE = 900.0  # seconds; a build takes a few minutes


def load_communication_kernels(timeout: float) -> None:
    """Build or load the kernels as the process group's start will do again. Only for CPUs.

    Raises StorageError after `timeout` seconds behind another build or a lock that may be another program's.
    """
    _prefer_own_ninja()
    _build_apart_from_other_environments()
    backend: Any = import_module("deepspeed.comm.torch")  # the package's own name for it is torch itself
    folder = _build_folder()
    if folder is None:
        return
    end = monotonic() + timeout
    with _turn(folder, end) as ours:
        _remove_stale_lock(folder, ours, end)
        if not any(folder.glob("*.so")):
            print(f"Building DeepSpeed's CPU communication kernels in {folder}: once, for some minutes.", flush=True)
        with _announcing_a_rebuild(folder), contextlib.redirect_stdout(io.StringIO()):  # "built successfully"
            try:
                backend.build_shm_op()
            except (RuntimeError, OSError, ImportError, subprocess.SubprocessError) as error:
                raise _unbuilt(folder, error) from error


@contextlib.contextmanager
def _announcing_a_rebuild(folder: Path) -> Iterator[None]:
    """Print a line when kernels that are there take long to load: torch builds them again after an upgrade."""
    out = sys.stdout
    line = f"Building DeepSpeed's CPU communication kernels in {folder} again, for some minutes."
    announce = Timer(ANNOUNCED, lambda: print(line, file=out, flush=True))
    announce.daemon = True
    if any(folder.glob("*.so")):
        announce.start()
    try:
        yield
    finally:
        announce.cancel()


def _unbuilt(folder: Path, error: Exception) -> UsageError:
    """The error for a build that failed; of the compiler's output only the line that tells why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    reason = next((line for line in lines if "error:" in line or "not found" in line), lines[0])
    found = UsageError(
        f"DeepSpeed's CPU communication kernels cannot be built in {folder}: {reason.rstrip('.')}. Install a C++ "
        "compiler (g++), ninja and Python's headers (Python.h, as in python3-dev), and start again."
    )
    found.everywhere = os.environ.get("LOCAL_RANK", "0") != "0"  # one rank of every machine reports it
    return found


def _prefer_own_ninja() -> None:
    """Let the build use the ninja that lies beside this Python, whatever PATH the process was started with.

    Versions of ninja do not read each other's logs: with one from the environment and one from the system in turn,
    every start would compile the kernels again.
    """
    programs = Path(sys.executable).parent
    if (programs / "ninja").exists():
        os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"


def _build_apart_from_other_environments() -> None:
    """Give each Python environment a build folder of its own, unless TORCH_EXTENSIONS_DIR names one.

    torch's default folder is shared by all environments of a user. The compiler's command names the environment's
    folders, so runs of two environments in turn would compile the kernels again at every start.
    """
    import deepspeed
    import torch
    from torch.utils import cpp_extension

    environment = f"{deepspeed.__file__} {torch.__file__} {torch.__version__} {sys.version}"
    digest = hashlib.sha256(environment.encode()).hexdigest()[:12]
    folder = Path(cpp_extension.get_default_build_root()) / f"clozeline-{digest}"
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(folder))


def _build_folder() -> Path | None:
    """Where torch builds the kernels; None when DeepSpeed does not use them here."""
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    from torch.utils import cpp_extension

    accelerator: Any = get_accelerator()
    builder = accelerator.create_op_builder("ShareMemCommBuilder")
    operators: Any = deepspeed.ops
    if builder is None or not operators.__compatible_ops__.get(builder.NAME, False):
        return None
    return Path(cpp_extension._get_build_directory(builder.NAME, verbose=False))


@contextlib.contextmanager
def _turn(folder: Path, end: float) -> Iterator[IO[str] | None]:
    """This process's turn to build, as a file that says "building" until it has built; None without flock."""
    announced = monotonic() + ANNOUNCED
    with (folder / OURS).open("a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if monotonic() > end:
                    raise StorageError(
                        f"Another process has been building kernels in {folder} for longer than "
                        "engine.timeout_seconds. End it, or raise engine.timeout_seconds."
                    ) from None
                if monotonic() > announced:
                    announced = end + 1
                    file.seek(0)
                    owner = file.read().strip().removeprefix("building: ") or "another process"
                    print(f"Waiting for {owner}, which builds DeepSpeed's kernels in {folder}.", flush=True)
                sleep(0.1)
            except OSError:
                yield None
                return
        yield file
        file.truncate(0)


def _remove_stale_lock(folder: Path, ours: IO[str] | None, end: float) -> None:
    """Remove torch's lock when its owner was killed. Raises StorageError when its owner may live."""
    lock = folder / LOCK
    killed = False
    if ours is not None:
        ours.seek(0)
        killed = ours.read() != ""  # the last of our processes here did not come to the end of its build
        if not killed:
            ours.write(f"building: process {os.getpid()}\n")
            ours.flush()

    announced = monotonic() + ANNOUNCED
    while lock.exists():
        with contextlib.suppress(FileNotFoundError):
            age = time() - lock.stat().st_mtime
            if killed or age > STALE:
                print(f"Removing {lock}, which a process that was killed left {age:.0f} s ago.", flush=True)
                lock.unlink()
                return
        if monotonic() > end:
            raise StorageError(
                f"{lock} says that another program builds there, for longer than engine.timeout_seconds. Delete it if "
                "none does; a program that was killed leaves it behind."
            )
        if monotonic() > announced:
            announced = end + 1
            print(f"Waiting for the program that holds {lock}, which builds DeepSpeed's kernels.", flush=True)
        sleep(0.1)
