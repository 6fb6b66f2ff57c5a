"""Free ports for the servers of tests."""

from __future__ import annotations

import contextlib
import secrets
import socket

FIRST = 20_000
LAST = 28_999
"""Linux gives outgoing connections ports from 32768 up. One of those could be taken after a test chose it and before
its server listens, which takes a JVM seconds."""


def free_port(count: int = 1) -> int:
    """Return the first of `count` consecutive ports that nothing uses. Drawn at random, since tests run in parallel."""
    while True:
        first = FIRST + secrets.randbelow(LAST - FIRST - count + 2)
        if all(is_free(port) for port in range(first, first + count)):
            return first


def is_free(port: int) -> bool:
    """Return whether a server may listen at a port of this machine."""
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False
