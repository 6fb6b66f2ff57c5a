"""Masks of private data: what is found, what only looks like it, and time linear in the text."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from pipeline.shard.cleaning import EMAIL, IP_V4, IP_V6, PHONE, mask_private

MASKED = [
    ("Write to ada.lovelace+math@analytical-engine.co.uk.", f"Write to {EMAIL}."),
    ("<jörg@müller.de>, a@b.io", f"<{EMAIL}>, {EMAIL}"),
    ("Servers 8.8.8.8 and 1.1.1.1:53 answer.", f"Servers {IP_V4} and {IP_V4}:53 answer."),
    ("DNS is 2001:4860:4860::8888.", f"DNS is {IP_V6}."),
    ("Call +44 20 7946 0958 or +49 (30) 901820, now", f"Call {PHONE} or {PHONE}, now"),
    ("Tel. (212) 736-5000; 212-736-5000; 212.736.5000.", f"Tel. {PHONE}; {PHONE}; {PHONE}."),
    ("电话:+86 10 6552 9988。", f"电话:{PHONE}。"),
]

KEPT = [
    "Private: 192.168.0.1, 127.0.0.1, 10.0.0.7, fe80::1, ::1.",
    "Not addresses: 1.2.3, 1.2.3.4.5, 999.1.1.1, 12:30:45, std::vector, a@b, @handle, x@y.z1.",
    "Dates and sums: 2024-01-15, 15.01.2024, 1,000,000, 3.14159, ISBN 978-3-16-148410-0, +5 %, 1 + 234 567.",
    "Scores 100-200-3000000, ids 123-456-78901, paths /555-123-4567/, versions 10.4-20.3.",
]


@pytest.mark.parametrize(("text", "expected"), MASKED)
def test_private_data_is_replaced_by_what_belongs_to_no_person(text: str, expected: str) -> None:
    counts: Counter[str] = Counter()
    assert mask_private(text, counts) == expected
    assert counts.total() == sum(expected.count(mask) for mask in (EMAIL, PHONE, IP_V4, IP_V6))
    assert mask_private(expected, Counter()) == expected, "masks stay as they are"


@pytest.mark.parametrize("text", KEPT)
def test_what_only_looks_like_it_stays(text: str) -> None:
    counts: Counter[str] = Counter()
    assert mask_private(text, counts) == text
    assert not counts


@pytest.mark.parametrize(
    "unit", ["a", "a.", "a@", "1", "1.", "1-", "+1", "1 ", ":", "::", "f:", "(1", "a@b.", "-", "+1 2"]
)
def test_time_is_linear_in_the_text(unit: str) -> None:
    """A text that is made to be slow takes about as long for each of its characters as a short one."""

    def seconds(length: int) -> float:
        text = (unit * length)[:length] + "!"
        started = time.process_time()
        mask_private(text, Counter())
        return time.process_time() - started

    seconds(1000)
    assert seconds(400_000) < 2
