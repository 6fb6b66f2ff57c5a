"""What a local job reports when a worker process ends: the loss, or the error that came before it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from pipeline.beam.internals import WORKER_THREADS
from pipeline.beam.local import WorkerLostError, supervised
from pipeline.commit.failures import carried
from schemas.errors import StorageError


def end_a_worker(code: int = 1) -> None:
    """Raise in a thread that waits for a worker, as Beam does when the process has ended."""

    def wait_for_worker() -> None:
        raise RuntimeError(f"Worker subprocess exited with return code {code}")

    thread = threading.Thread(target=wait_for_worker, name=WORKER_THREADS[0])
    thread.start()
    thread.join()


def fill_the_disk(_: object) -> None:
    raise carried(StorageError("The disk is full"))


def lose_the_channel(_: object) -> None:
    raise RuntimeError("Channel closed prematurely.")


@pytest.mark.parametrize(("code", "cause"), [(1, "ended with exit code 1"), (-9, "was killed; when memory")])
def test_a_lost_worker_is_reported_with_its_cause(code: int, cause: str) -> None:
    with pytest.raises(WorkerLostError, match=cause), supervised():
        end_a_worker(code)
        raise RuntimeError("Beam noticed")


def test_a_broken_channel_is_a_lost_worker() -> None:
    with pytest.raises(WorkerLostError), supervised():
        lose_the_channel(None)


@pytest.mark.parametrize("step", [fill_the_disk])
def test_an_error_of_ours_is_the_cause_of_a_worker_that_ends_after_it(step: Callable[[object], None]) -> None:
    with pytest.raises(RuntimeError, match="The disk is full"), supervised():
        end_a_worker()
        step(None)


def test_other_errors_stay_as_they_are() -> None:
    hook = threading.excepthook
    with pytest.raises(RuntimeError, match="a fault of the program"), supervised():
        raise RuntimeError("a fault of the program")
    assert threading.excepthook is hook
