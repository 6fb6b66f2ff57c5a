"""The ledger by stages, and ledger.parquet: the whole ledger of a folder as one table that other programs query.

    duckdb -c "SELECT stage, reason, sum(count) FROM 'out/text/ledger.parquet' GROUP BY ALL"

The table has a row for each (stage, reason, source), as the manifest's ledger has, and that of pairs begins with the
rows of their text.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.shard.holdout import HELD_OUT, NOT_HELD_OUT
from pipeline.shard.repeats import ONLY_REPEATED
from pipeline.shard.run_buffer import BEYOND_SHARE
from schemas.manifest import LedgerEntry, Manifest
from schemas.text_facts import MAX_LISTED, LeftOut, cut

LEDGER_SCHEMA = pa.schema(
    [
        ("stage", pa.string()),
        ("reason", pa.string()),
        ("source", pa.string()),
        ("corpus", pa.string()),
        ("language", pa.string()),
        ("count", pa.int64()),
    ]
)
"""corpus: the source if it is a corpus of --inputs, else null. language: of documents that --languages left out."""

READ = "read"
PAIRS = "pairs"

_LANGUAGE = re.compile(r"language (\w+)")
_STAGES = {
    READ: None,
    "language": _LANGUAGE,
    "decontaminate": re.compile(r"\d+ words as in .*", re.DOTALL),
    "filter": re.compile(r"\w+ filter: .*"),
    "clean": re.compile("empty document"),
    "share": re.compile(re.escape(BEYOND_SHARE)),
    "dedup": re.compile("(near-)?duplicate document"),
    "repeats": re.compile(ONLY_REPEATED),
    "holdout": re.compile(f"{HELD_OUT}|{NOT_HELD_OUT}"),
    PAIRS: None,
}
"""The stages that leave something out, in order, with their reasons. Every other reason of a text is of `read`."""

_ORDER = list(_STAGES)


def stage_of(reason: str) -> str:
    """Return the stage of `shard` that leaves something out for this reason."""
    return next((stage for stage, reasons in _STAGES.items() if reasons and reasons.fullmatch(reason)), READ)


def left_out(ledger: Iterable[LedgerEntry]) -> list[LeftOut]:
    """Return what each stage of `shard` left out, in order: all of it, and the largest entries."""
    by_stage: defaultdict[str, list[tuple[str, str, int]]] = defaultdict(list)
    for entry in ledger:
        by_stage[stage_of(entry.reason)].append((entry.reason, entry.source, entry.count))

    stages = []
    for stage in sorted(by_stage, key=_ORDER.index):
        entries = sorted(by_stage[stage], key=lambda entry: (-entry[2], *entry[:2]))
        count = sum(entry[2] for entry in entries)
        largest = [(cut(reason), cut(source), number) for reason, source, number in entries[:MAX_LISTED]]
        stages.append(LeftOut(stage=stage, count=count, largest=largest))
    return stages


def ledger_table(text: Manifest, of_pairs: Iterable[LedgerEntry] = ()) -> bytes:
    """Return ledger.parquet of a text, or of pairs and their text. The same ledgers give the same bytes.

    of_pairs: the ledger of pairs.
    """
    names = {corpus["name"] for corpus in text.options.get("corpora", [])}
    staged = [(stage_of(entry.reason), entry) for entry in text.ledger]
    staged += [(PAIRS, entry) for entry in of_pairs]
    staged.sort(key=lambda row: (_ORDER.index(row[0]), row[1].reason, row[1].source))

    rows = [
        {
            "stage": stage,
            "reason": entry.reason,
            "source": entry.source,
            "corpus": entry.source if entry.source in names else None,
            "language": _language(stage, entry.reason),
            "count": entry.count,
        }
        for stage, entry in staged
    ]

    # Fixed, because defaults may change; without compression, whose bytes depend on its library's version.
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_pylist(rows, LEDGER_SCHEMA),
        sink,
        row_group_size=1 << 20,
        version="2.6",
        compression="none",
        use_dictionary=True,
        write_statistics=True,
        store_schema=False,
    )
    return sink.getvalue().to_pybytes()


def _language(stage: str, reason: str) -> str | None:
    found = _LANGUAGE.fullmatch(reason) if stage == "language" else None
    return None if found is None or found[1] == "uncertain" else found[1]
