"""The thread that copies batches to a GPU never touches another rank's GPU. A trace of runtime calls stands in."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from schemas.masking import Masking
from trainer.data.dataset import PairFolder
from trainer.data.loader import BatchFormat, MaskingSchedule, Stream
from trainer.data.mixture import build_sources
from trainer.data.rank_share import RankShare
from trainer.models.batch import PackedBatch

OURS = torch.device("cuda", 3)


class Runtime:
    """The current device of each thread, 0 in a new one, and all devices that were ever made current."""

    def __init__(self) -> None:
        self._current = threading.local()
        self.touched: set[int] = set()

    def set_device(self, device: torch.device | int) -> None:
        self._current.index = device if isinstance(device, int) else device.index
        self.touched.add(self._current.index)

    @contextmanager
    def stream(self, stream: "Copies") -> Iterator[None]:
        """As torch.cuda.stream: it ends by setting the device that was current before."""
        before = getattr(self._current, "index", 0)
        self.set_device(stream.device)
        yield
        self.set_device(before)


class Copies:
    def __init__(self, device: torch.device):
        self.device = device

    def record_event(self) -> None:
        return None


@pytest.fixture
def runtime(monkeypatch) -> Runtime:
    made = Runtime()
    monkeypatch.setattr(torch.cuda, "Stream", Copies)
    monkeypatch.setattr(torch.cuda, "stream", made.stream)
    monkeypatch.setattr(torch.cuda, "set_device", made.set_device)
    monkeypatch.setattr(PackedBatch, "pinned", lambda self: self)
    monkeypatch.setattr(PackedBatch, "to", lambda self, device: self)
    return made


def test_the_loader_s_thread_sets_no_other_device(runtime: Runtime, pairs: Path) -> None:
    sources = build_sources([PairFolder(str(pairs))], None, 3, False)
    stream = Stream(sources, RankShare(0, 1, 1, 24), MaskingSchedule(Masking()), 3, BatchFormat(device=OURS))
    for step in range(3):
        stream.batch(step)
    stream.close()
    assert runtime.touched == {OURS.index}


def test_the_trace_shows_the_device_of_a_thread_that_was_not_set(runtime: Runtime) -> None:
    def copy() -> None:
        with torch.cuda.stream(torch.cuda.Stream(OURS)):  # type: ignore[arg-type]
            pass

    with ThreadPoolExecutor(1) as thread:
        thread.submit(copy).result()
    assert runtime.touched == {0, OURS.index}
