"""The lines that a job without a terminal prints about itself."""

from __future__ import annotations

import pytest

from pipeline.beam.display import progress_line


@pytest.mark.parametrize(
    ("finished", "total", "seconds", "line"),
    [
        (0, 8_000_000, 3.0, "shard: 0.0 of 8.0 MB, 0.0 MB/s, time left not known yet"),
        (5_000_000, 8_000_000, 10.0, "shard: 5.0 of 8.0 MB, 0.5 MB/s, 6 s left"),
        (8_000_000, 8_000_000, 16.0, "shard: all 8.0 MB are read; the last steps run, 16 s since the start"),
        (0, 0, 4.0, "shard: running for 4 s"),
    ],
    ids=["nothing yet", "half way", "last steps", "not measured"],
)
def test_a_line_says_what_is_known(finished: int, total: int, seconds: float, line: str) -> None:
    assert progress_line("shard", finished, total, seconds) == line


def test_bytes_of_an_earlier_attempt_took_no_time_of_this_one() -> None:
    line = progress_line("shard", 95_000_000, 100_000_000, 10.0, before=90_000_000)
    assert line == "shard: 95.0 of 100.0 MB, 0.5 MB/s, 10 s left"
