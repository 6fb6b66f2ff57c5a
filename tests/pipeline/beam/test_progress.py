"""The lines that a job without a terminal prints about itself."""

from __future__ import annotations

from pathlib import Path

from pipeline.beam.display import NOT_MEASURED, JobProgress, Work
from pipeline.commit.staging import Staging


def test_a_line_says_what_is_known(tmp_path: Path) -> None:
    shown = JobProgress("shard", Staging(str(tmp_path), "job"), Work("split-", 8, 8_000_000))
    assert shown._line(0, 0, 3.0) == "shard:   0% 0.00/8.00M [00:03<?, ?B/s]"
    assert shown._line(5_000_000, 0, 10.0) == "shard:  62% 5.00M/8.00M [00:10<00:06, 500kB/s]"
    assert "shard, last steps: 100%" in shown._line(8_000_000, 0, 16.0)
    assert "[00:04," in JobProgress("vocab", shown.staging, NOT_MEASURED)._line(0, 0, 4.0)


def test_bytes_of_an_earlier_attempt_took_no_time_of_this_one(tmp_path: Path) -> None:
    shown = JobProgress("shard", Staging(str(tmp_path), "job"), Work("split-", 8, 100_000_000))
    assert "[00:10<00:10, 500kB/s]" in shown._line(95_000_000, 90_000_000, 10.0)
