"""Checks where a run will write: the disk's speed and free space, file locks, shared memory and object stores.

Every file that is written here is removed again, even after an error.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from time import monotonic, perf_counter

from schemas import storage
from schemas.errors import ClozelineError, DataError, StorageError
from trainer.doctor.finding import Finding, failed, failed_with
from trainer.doctor.plan import Plan

TEST_FILE = ".clozeline-doctor-"
"""The prefix of the name of every file that is written."""

TEST_BYTES = 64_000_000
BLOCK_BYTES = 4_000_000

TEST_SECONDS = 4.0
"""A test stops writing or reading after this time. The sync of what it has written may take longer."""

SLOW_DISK = 50e6
"""Bytes per second below which a disk counts as slow: a checkpoint of BERT-base (1.3 GB) takes 26 seconds."""

SMALL_SHARED_MEMORY = 512_000_000
"""Bytes below which free shared memory counts as small. NCCL takes tens of MB per rank; Docker's default is
64 MB."""

URL_SECONDS = 30.0
"""A store that does not answer within this time counts as unreachable."""

CHECKPOINT_BYTES_PER_PARAMETER = 12


def check_storage(plan: Plan) -> list[Finding]:
    """Check the run's folder, shared memory, and every URL that was asked about."""
    return [
        check_disk(plan),
        check_locks(plan.existing_folder),
        check_shared_memory(Path("/dev/shm")),
        *(check_url(url) for url in plan.written_urls),
    ]


@contextlib.contextmanager
def temporary_file(folder: Path) -> Iterator[Path]:
    """Yield a path for a new file in a folder, and remove the file at the end."""
    path = folder / f"{TEST_FILE}{secrets.token_hex(6)}"
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


# The disk


def check_disk(plan: Plan) -> Finding:
    """Write a file as a checkpoint is written, and read it back."""
    folder = plan.existing_folder
    free = shutil.disk_usage(folder).free
    needed = checkpoint_bytes(plan)
    facts = {"folder": str(folder), "free_bytes": free, "needed_bytes": needed}

    test_bytes = min(TEST_BYTES, free // 4)
    try:
        with temporary_file(folder) as path:
            write_speed = written_per_second(path, test_bytes)
            read_speed = read_per_second(path)
    except OSError as error:
        advice = "Choose another folder (--folder, run.output), free some space, or check the permissions."
        return failed("disk", f"{folder}: {error.strerror}", advice, facts, StorageError.exit_code)

    facts |= {"written_bytes_per_second": write_speed, "read_bytes_per_second": read_speed}
    value = (
        f"{folder}: writes {write_speed / 1e6:,.0f} MB/s, reads {read_speed / 1e6:,.0f} MB/s, {free / 1e9:,.1f} GB free"
    )
    if needed > free:
        advice = "Lower checkpoint.keep, free some space, or choose another run.output."
        return Finding("disk", "warning", f"{value}; checkpoints take {needed / 1e9:,.1f} GB", advice, facts)
    if write_speed < SLOW_DISK:
        advice = "Saving stops training for longer than it needs to. Use a faster disk, or raise checkpoint.every."
        return Finding("disk", "warning", value, advice, facts)
    return Finding("disk", "ok", value, facts=facts)


def checkpoint_bytes(plan: Plan) -> int:
    """Return the bytes of all checkpoints that a recipe keeps and of the one being written; 0 without a recipe."""
    if plan.recipe is None:
        return 0
    from trainer.models.host_memory import minimum_parameters

    checkpoints = plan.recipe.checkpoint.keep + 1
    return CHECKPOINT_BYTES_PER_PARAMETER * minimum_parameters(plan.recipe.model) * checkpoints


def written_per_second(path: Path, test_bytes: int) -> float:
    """Write random bytes, which no disk can compress, sync them once, and return bytes per second. Raises OSError.

    There is one sync, as for a checkpoint. A sync after each block would measure the latency of a sync.
    """
    block = secrets.token_bytes(min(BLOCK_BYTES, max(test_bytes, 1)))
    written = 0
    started = perf_counter()
    with path.open("wb") as file:
        while written < max(test_bytes, 1) and perf_counter() - started < TEST_SECONDS:
            file.write(block)
            written += len(block)
        file.flush()
        os.fsync(file.fileno())
    return written / (perf_counter() - started)


def read_per_second(path: Path) -> float:
    """Read a file and return bytes per second. Drops the file from the page cache first, if the system allows it."""
    with path.open("rb", buffering=0) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

        read = 0
        started = perf_counter()
        while chunk := file.read(BLOCK_BYTES):
            read += len(chunk)
            if perf_counter() - started > TEST_SECONDS:
                break
    return read / max(perf_counter() - started, 1e-9)


# Locks


def check_locks(folder: Path) -> Finding:
    """Check that a lock on a file in the folder excludes a second one, because this protects a run's folder."""
    facts = {"folder": str(folder), "flock": False}
    advice = "The run will hold its folder by a file that it rewrites, which is less safe: start one run only."

    try:
        with temporary_file(folder) as path, path.open("w") as first, path.open("r") as second:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return Finding("file locks", "ok", f"work in {folder}", facts=facts | {"flock": True})
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC):
            return Finding("file locks", "note", "not checked, because the folder cannot be written", facts=facts)
        return Finding("file locks", "warning", f"{folder} has no flock ({error.strerror})", advice, facts)
    return Finding("file locks", "warning", f"{folder}: two processes can hold one lock", advice, facts)


# Shared memory


def check_shared_memory(folder: Path) -> Finding:
    """Check the machine's free shared memory, through which ranks of one machine exchange gradients."""
    if not folder.is_dir():
        return Finding("shared memory", "note", f"this system has no {folder}")

    usage = shutil.disk_usage(folder)
    facts = {"total_bytes": usage.total, "free_bytes": usage.free}
    value = f"{usage.free / 1e9:,.2f} of {usage.total / 1e9:,.2f} GB free in {folder}"
    if usage.free < SMALL_SHARED_MEMORY:
        advice = "Several ranks may need more. In a container: docker run --shm-size=8g, or mount an emptyDir there."
        return Finding("shared memory", "warning", value, advice, facts)
    return Finding("shared memory", "ok", value, facts=facts)


# Object stores


def check_url(url: str) -> Finding:
    """Write, read and remove a small file at a URL. Gives up after URL_SECONDS."""
    name = f"url {url}"
    found: list[Finding] = []
    started = monotonic()
    thread = Thread(target=lambda: found.append(_try_url(name, url)), daemon=True)
    thread.start()
    thread.join(URL_SECONDS)

    if not found:
        message = f"no answer within {URL_SECONDS:.0f} seconds"
        return failed(name, message, "Check the address, the credentials and the network.", code=5)

    seconds = monotonic() - started
    finding = found[0]
    if finding.state != "ok":
        return finding
    return Finding(name, "ok", f"{finding.value} in {seconds:.1f} s", facts={"url": url, "seconds": seconds})


def _try_url(name: str, url: str) -> Finding:
    content = secrets.token_bytes(1000)
    try:
        target = storage.join(url, f"{TEST_FILE}{secrets.token_hex(6)}")
        try:
            storage.publish(target, content)
            came_back = storage.read(target)
        finally:
            storage.remove(target)
    except DataError:
        came_back = b""
    except ClozelineError as error:
        return failed_with(name, error)

    if came_back != content:
        return failed(name, "what was written did not come back", "Check the store's configuration.", code=5)
    return Finding(name, "ok", "written, read and removed")
