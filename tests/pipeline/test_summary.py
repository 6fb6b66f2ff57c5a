"""The ledger has a line for each reason, which stays short however many sources there are."""

from __future__ import annotations

from pipeline.summary import ledger_lines
from schemas.manifest import LedgerEntry, Manifest


def lines_of(*entries: tuple[str, str, int]) -> list[str]:
    ledger = [LedgerEntry(reason=reason, source=source, count=count) for reason, source, count in entries]
    return ledger_lines(Manifest.model_construct(ledger=ledger))  # pyrefly: ignore[missing-argument]


def test_the_largest_sources_of_a_reason_are_listed() -> None:
    sources = [("empty document", f"source {i}", i) for i in range(1, 31)]
    (line,) = lines_of(*sources)
    assert line == "465 x empty document (source 30 30, source 29 29, source 28 28 and 27 further sources)"


def test_each_reason_has_its_own_line_in_the_order_of_the_ledger() -> None:
    lines = lines_of(("cut", "wiki", 1200), ("cut", "news", 3), ("empty", "wiki", 1))
    assert lines == ["1,203 x cut (wiki 1,200, news 3)", "1 x empty (wiki)"]


def test_more_than_five_languages_share_a_line() -> None:
    few = [(f"language {code}", source, 1) for code in ("de", "en", "fr", "it", "ru") for source in ("wiki", "web")]
    assert lines_of(*few)[0] == "2 x language de (web 1, wiki 1)" and len(lines_of(*few)) == 5
    assert lines_of(("empty", "wiki", 1), *few, ("language uncertain", "web", 1200)) == [
        "1 x empty (wiki)",
        "1,210 x document in another language (uncertain 1,200, de 2, en 2 and 3 further languages)",
    ]


def test_a_job_without_a_ledger_says_nothing() -> None:
    assert lines_of() == []
