"""What came in, on the cards of a text and of its pairs: files, corpora, what each stage left out, languages, lengths.

This module computes the contents; templates/came_in.html renders them on both pages, and templates/text_card.html is
the page of a text. Like all cards they hold no paths.

It also makes ledger.parquet, the whole ledger of a folder as one table that other programs query:

    duckdb -c "SELECT stage, reason, sum(count) FROM 'out/text/ledger.parquet' GROUP BY ALL"

The table has a row for each (stage, reason, source), as the manifest's ledger has, and that of pairs begins with the
rows of their text.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.readers.corpora import FACTS
from pipeline.shard.holdout import HELD_OUT, NOT_HELD_OUT
from pipeline.shard.repeats import ONLY_REPEATED
from pipeline.shard.run_buffer import BEYOND_SHARE
from schemas.charts import Bar, bars
from schemas.manifest import Input, LedgerEntry, Manifest
from schemas.pages import render
from schemas.terminal import counted, megabytes
from schemas.text_facts import (
    MAX_LISTED,
    CorpusFacts,
    LeftOut,
    TextFacts,
    cut,
    largest_first,
    with_others,
)

READ = "read"
PAIRS = "pairs"

_LANGUAGE = re.compile(r"language (\w+)")
STAGES = {
    READ: ("Reading", None),
    "language": ("Languages (--languages, --min_language_confidence)", _LANGUAGE),
    "decontaminate": ("Evaluation sets (--decontaminate)", re.compile(r"\d+ words as in .*", re.DOTALL)),
    "filter": ("Filters (--filters)", re.compile(r"\w+ filter: .*")),
    "clean": ("Cleaning", re.compile("empty document")),
    "share": ("Shares of corpora", re.compile(re.escape(BEYOND_SHARE))),
    "dedup": ("Copies (--dedup)", re.compile("(near-)?duplicate document")),
    "repeats": ("Repeated sentences (--drop_repeats)", re.compile(ONLY_REPEATED)),
    "holdout": ("Held out, or the other side of it (--holdout)", re.compile(f"{HELD_OUT}|{NOT_HELD_OUT}")),
    PAIRS: ("Pairs", None),
}
"""The stages that leave something out, in order: heading, and reasons. Every other reason of a text is of `read`."""

_ORDER = list(STAGES)

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

CORPUS_COLUMNS = ("corpus", "license, origin, date", "documents")


def text_facts(manifest: Manifest, inputs: list[Input]) -> TextFacts:
    """Return the facts of a text folder. inputs: all of them, which the manifest lacks if they are in parts."""
    statistics = manifest.statistics
    return TextFacts(
        fingerprint=manifest.fingerprint,
        files=len(inputs),
        bytes=sum(entry.bytes or 0 for entry in inputs),
        documents=manifest.totals.get("documents", 0),
        sentences=manifest.totals.get("sentences", 0),
        text_bytes=manifest.totals["text_bytes"],
        sources=largest_first(statistics["documents_by_source"].items()),
        language=statistics.get("language", ""),
        languages=largest_first(statistics.get("documents_by_language", {}).items()),
        corpora=_corpora(manifest),
        left_out=left_out(manifest.ledger),
        cleaning=largest_first(statistics.get("cleaning", {}).items()),
        domains=statistics.get("domains"),
        sentences_per_document=statistics.get("log2_sentences_per_document", []),
        characters_per_sentence=statistics.get("log2_characters_per_sentence", []),
    )


def _corpora(manifest: Manifest) -> list[CorpusFacts]:
    """Return the corpora of --inputs, or the only one of --input if it was given a name."""
    options = manifest.options
    if "corpus_name" in options:
        said = {key: options.get(f"corpus_{key}", "") for key in ("name", "license", "url")}
        return [CorpusFacts(documents=manifest.totals.get("documents", 0), **said)]
    sources = manifest.statistics["documents_by_source"]
    return [
        CorpusFacts(documents=sources.get(corpus["name"], 0), **{key: corpus[key] for key in FACTS if key in corpus})
        for corpus in options.get("corpora", [])
    ]


def text_card(manifest: Manifest, facts: TextFacts) -> str:
    """Return card.html of a text folder."""
    return render(
        "pipeline",
        "text_card.html",
        title=f"Text of {counted(facts.documents, 'document')}",
        fingerprint=manifest.fingerprint,
        came_in=came_in(facts),
        options={
            name.replace("_", " "): _shown(value)
            for name, value in {"seed": manifest.seed, **manifest.options}.items()
            if name != "corpora"
        },
    )


def came_in(facts: TextFacts) -> dict[str, Any]:
    """Return what templates/came_in.html shows."""
    whole = facts.documents + sum(stage.count for stage in facts.left_out)
    return {
        "figures": {
            "files": f"{facts.files:,}",
            "as stored": megabytes(facts.bytes),
            "documents": f"{facts.documents:,}",
            "sentences": f"{facts.sentences:,}",
            "text": megabytes(facts.text_bytes),
            "left out": f"{whole - facts.documents:,}",
        },
        "corpus_columns": CORPUS_COLUMNS,
        "corpora": [_corpus_row(corpus, facts.documents) for corpus in facts.corpora],
        "sources": bars(facts.other_sources, facts.documents),
        "stages": [
            (STAGES.get(stage.stage, (stage.stage,))[0], stage.count, bars(_entries(stage.largest, stage.count), whole))
            for stage in facts.left_out
        ],
        "cleaning": bars(facts.cleaning, sum(count for _, count in facts.cleaning)),
        "domains": facts.domains,
        "domain_bars": bars(with_others(facts.domains), facts.domains.documents) if facts.domains else [],
        "language": facts.language,
        "languages": bars(facts.languages, facts.documents),
        "sentences": _log2_bars(facts.sentences_per_document),
        "characters": _log2_bars(facts.characters_per_sentence),
    }


def _corpus_row(corpus: CorpusFacts, documents: int) -> tuple[str, ...]:
    taken = f"a share of {corpus.share:g} of its documents" if corpus.share < 1 else ""
    said = ", ".join(filter(None, [corpus.license or "license not stated", corpus.url, corpus.date, taken]))
    return (corpus.name, said, f"{corpus.documents:,} ({corpus.documents / max(documents, 1):.1%})")


def _entries(largest: Sequence[tuple[str, str, int]], whole: int) -> list[tuple[str, int]]:
    listed = [(f"{reason}, {source}", count) for reason, source, count in largest]
    others = whole - sum(count for _, count in listed)
    return [*listed, ("others", others)] if others > 0 else listed


def _log2_bars(counts: Sequence[int]) -> list[Bar]:
    """Return a bar for each power of two. Example: `[1, 0, 3]` -> bars of "1", "2 to 3", "4 to 7"."""
    names = ["1" if i == 0 else f"{2**i:,} to {2 ** (i + 1) - 1:,}" for i in range(len(counts))]
    return bars(list(zip(names, counts, strict=True)), sum(counts))


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return f"{len(value)} rules"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "none" if value is None else str(value)


# ---- The ledger ----


def stage_of(reason: str) -> str:
    """Return the stage of `shard` that leaves something out for this reason."""
    return next((stage for stage, (_, reasons) in STAGES.items() if reasons and reasons.fullmatch(reason)), READ)


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
