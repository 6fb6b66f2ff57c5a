"""Whether all ranks end together, which a watchdog must know."""

from types import SimpleNamespace
from typing import Any

import pytest

from schemas.errors import DataError
from trainer import run_context
from trainer.distributed.watchdog import RankLostError
from trainer.run_context import watch_ranks


class WatchdogStandIn:
    """Notes how it was closed; some ranks may be lost."""

    def __init__(self, lost: list[str]):
        self._lost = lost
        self.closed: list[bool] = []

    def lost(self) -> list[str]:
        return self._lost

    def close(self, left: bool) -> None:
        self.closed.append(left)


def error_everywhere() -> DataError:
    error = DataError("raised by all ranks")
    error.everywhere = True
    return error


@pytest.mark.parametrize(
    ("error", "lost", "raised", "all_ranks_end"),
    [
        (None, [], None, True),
        (DataError("raised by one rank"), [], DataError, False),
        (error_everywhere(), [], DataError, True),
        (RuntimeError("Connection closed by peer"), [], RuntimeError, False),
        (RuntimeError("Connection closed by peer"), ["rank 1"], RankLostError, False),
    ],
    ids=["done", "one rank's error", "all ranks' error", "fault", "lost rank"],
)
def test_a_watchdog_knows_whether_all_ranks_end(
    monkeypatch: pytest.MonkeyPatch, error: Any, lost: list[str], raised: Any, all_ranks_end: bool
) -> None:
    watchdog = WatchdogStandIn(lost)
    monkeypatch.setattr(run_context, "Watchdog", lambda *arguments: watchdog)
    monkeypatch.setattr(run_context, "dist", SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: 2))

    caught: Any = None
    try:
        with watch_ranks(600.0):
            if error is not None:
                raise error
    except Exception as exception:
        caught = exception

    assert type(caught) is (type(None) if raised is None else raised)
    assert watchdog.closed == [all_ranks_end]
    if raised is RankLostError:
        assert "Lost rank 1." in str(caught)
