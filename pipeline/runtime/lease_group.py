"""The leases of a job that publishes several folders: they are taken, kept, left and ended together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.runtime import leases
from pipeline.runtime.leases import Lease
from pipeline.runtime.staging import Staging


@dataclass(frozen=True)
class LeaseGroup:
    """The leases that one job holds.

    last: the lease of the folder that is published last: once it is marked as published, all folders are.
    """

    all: tuple[Lease, ...]

    @property
    def last(self) -> Lease:
        return self.all[-1]

    def keep(self, keep: bool) -> None:
        """Set whether the leases outlive the process."""
        for lease in self.all:
            lease.keep = keep

    def keep_if_killed(self) -> None:
        """Do what `Lease.keep_if_killed` does for each folder."""
        for lease in self.all:
            lease.keep_if_killed()

    def leave(self) -> None:
        """Do what `Lease.leave` does for each folder."""
        for lease in self.all:
            lease.leave()


@contextlib.contextmanager
def all_held(stagings: Sequence[Staging]) -> Iterator[LeaseGroup]:
    """Hold the output folders of all stagings while the block runs. If `leases.held` raises, none stays held.

    stagings: in the order of publication. The last folder is taken first: two jobs that want the same folders meet at
    the one that the user named.
    """
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(leases.held(staging.output, staging.token)) for staging in reversed(stagings)]
        yield LeaseGroup(tuple(reversed(taken)))
