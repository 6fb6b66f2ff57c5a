"""Counts the tokens and seconds of a run over all its resumes."""

from __future__ import annotations

from time import perf_counter


class Meter:
    """Counts the tokens and seconds of a run over all its resumes, and measures rates between two readings.

    tokens: trained on so far, without padding. seconds: spent on training so far.
    """

    def __init__(self, tokens: int, seconds: float):
        """`tokens` and `seconds` are the run's totals when it was resumed."""
        self.tokens = tokens
        self._seconds_before = seconds
        self._started = perf_counter()

        # The last reading, from which rates are measured.
        self._last_tokens = tokens
        self._last_time = self._started
        self._last_stalled = 0.0

    def add(self, tokens: int) -> None:
        """Count the tokens of a step."""
        self.tokens += tokens

    @property
    def seconds(self) -> float:
        """Seconds spent on training so far, over all resumes."""
        return self._seconds_before + perf_counter() - self._started

    def read(self, now: float, stalled: float) -> dict[str, float | None]:
        """Return totals, and rates since the last reading.

        now: the time of the reading by `perf_counter`, when the tokens that were added had been trained on. stalled:
        the seconds that this process had waited for data by then.
        """
        elapsed = now - self._last_time
        readings = {
            "tokens": self.tokens,
            "tokens_per_second": (self.tokens - self._last_tokens) / elapsed,
            "loader_stall_fraction": (stalled - self._last_stalled) / elapsed,
            "seconds": self._seconds_before + now - self._started,
        }

        self._last_tokens = self.tokens
        self._last_time = now
        self._last_stalled = stalled
        return readings

    def skip(self, seconds: float) -> None:
        """Exclude `seconds` that were not spent on training from the next rates. They still count in `seconds`."""
        self._last_time += seconds
