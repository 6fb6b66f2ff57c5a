"""A rank that waits for others at the start says for whom, and a signal ends the wait."""

from __future__ import annotations

import threading
from time import monotonic

import pytest

from schemas.errors import PreemptedError
from tests.ports import free_port
from trainer.distributed import process_group
from trainer.distributed.stop import StopRequest


@pytest.mark.parametrize(("rank", "ranks", "missing"), [(0, 2, "rank 1"), (1, 2, "rank 0"), (0, 9, "ranks 1 to 8")])
def test_a_rank_that_waits_names_the_missing_ones_and_ends_when_asked_to(
    rank: int, ranks: int, missing: str, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    port = free_port()
    places = {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in places.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(process_group, "SAY_EVERY", 0.2)

    stop = StopRequest()
    timer = threading.Timer(0.8, lambda: setattr(stop, "asked", True))
    timer.start()
    began = monotonic()
    with pytest.raises(PreemptedError, match=rf"rank {rank} waited at 127\.0\.0\.1:{port} for other ranks\. .* again"):
        process_group.meet(stop, timeout=60)
    assert monotonic() - began < 10

    told = capsys.readouterr().out
    assert f"Waiting at 127.0.0.1:{port} for {missing}, as rank {rank} of {ranks}." in told
