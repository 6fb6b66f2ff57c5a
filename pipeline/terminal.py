"""Asks the user questions, on stderr."""

from __future__ import annotations

import sys


def can_ask() -> bool:
    """Whether there is a user who can see questions and answer them."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str) -> str:
    """Ask on stderr, where everything but results goes, and return the answer. Raises EOFError if there is none."""
    print(f"\n{question}", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:
        raise EOFError
    return answer
