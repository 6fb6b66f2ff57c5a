"""A rank that waits for others at the start says for whom, and a signal ends the wait."""

from __future__ import annotations

import os
import subprocess
import threading
from time import monotonic
from types import SimpleNamespace

import pytest

from schemas.errors import PreemptedError, UsageError
from tests import forked
from tests.ports import free_port
from trainer.distributed import process_group
from trainer.distributed.stop import StopRequest


def place(monkeypatch: pytest.MonkeyPatch, rank: int, ranks: int) -> int:
    """Let this process be a rank, and return the port at which it waits for the others."""
    port = free_port()
    places = {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in places.items():
        monkeypatch.setenv(name, str(value))
    return port


@pytest.mark.parametrize(("rank", "ranks", "missing"), [(0, 2, "rank 1"), (1, 2, "rank 0"), (0, 9, "ranks 1 to 8")])
def test_a_rank_that_waits_names_the_missing_ones_and_ends_when_asked_to(
    rank: int, ranks: int, missing: str, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    port = place(monkeypatch, rank, ranks)
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


@pytest.mark.parametrize(("rank", "missing"), [(0, "rank 1"), (1, "rank 0")])
def test_a_rank_that_never_comes_is_named_once_the_time_is_over(
    rank: int, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = place(monkeypatch, rank, 2)
    with pytest.raises(
        UsageError, match=rf"Rank {rank} waited 0\.5 s at 127\.0\.0\.1:{port} for {missing}\. "
    ) as caught:
        process_group.meet(None, timeout=0.5)
    assert not caught.value.everywhere, "each rank that is there prints it"


def test_a_rank_that_is_alone_uses_no_address() -> None:
    """Scripts of other runs export one, and suites start several such processes at once."""
    program = (
        "from trainer.distributed import process_group as g; g.start_distributed(1); print(g.open_host_group(1).size())"
    )
    places = {"MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "1"}
    ended = forked.run(["python", "-m", "tests.run_code", program], os.environ | places, timeout=120)
    assert ended.returncode == 0 and ended.stdout.splitlines()[-1] == "1", ended.stderr


WAITS = "process_group.meet(None, timeout=2)"
DIES = """
store = process_group.open_store(0, 3)
store.wait(["clozeline/met/1"])
time.sleep(0.5)
os._exit(9)
"""


@pytest.mark.parametrize("first", [WAITS, DIES], ids=["its time is over", "it is killed"])
def test_the_others_name_the_missing_rank_when_rank_0_ends(
    first: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 is another process. This one is rank 1 and would wait longer, and rank 2 never comes."""
    port = place(monkeypatch, 1, 3)
    program = "import os, time\nfrom trainer.distributed import process_group\n" + first
    words = ["python", "-m", "tests.run_code", program]
    rank_0 = forked.Command(words, os.environ | {"RANK": "0"}, stderr=subprocess.PIPE)
    with pytest.raises(UsageError, match=rf"Rank 1 waited [\d.]+ s at 127\.0\.0\.1:{port} for rank 2\. ") as caught:
        process_group.meet(None, timeout=60)
    assert not caught.value.everywhere, "each rank that is there prints it"

    _, told = rank_0.communicate(timeout=60)
    if first == WAITS:
        assert f"Rank 0 waited 2 s at 127.0.0.1:{port} for rank 2. " in told
        assert "recvValue failed" not in capfd.readouterr().err, "rank 0 keeps the store until the others have looked"


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    gpus = SimpleNamespace(device_name=lambda: "cuda", device_count=lambda: 1)
    with pytest.raises(UsageError, match=r"LOCAL_RANK is 1, .* GPUs for 1 ranks, those of CUDA_VISIBLE_DEVICES=3"):
        process_group.check_devices(gpus)
    monkeypatch.setenv("LOCAL_RANK", "0")
    process_group.check_devices(gpus)
