"""What came in, on the cards of a text and of its pairs: files, corpora, what each stage left out, languages, lengths.

This module computes the contents; templates/came_in.html renders them on both pages, and templates/text_card.html is
the page of a text. Like all cards they hold no paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.ledger import left_out
from pipeline.readers.corpora import FACTS
from schemas.charts import Bar, bars
from schemas.manifest import Input, Manifest
from schemas.pages import render
from schemas.terminal import counted, megabytes
from schemas.text_facts import CorpusFacts, TextFacts, domains_of, largest_first, with_others

STAGES = {
    "read": "Reading",
    "language": "Languages (--languages, --min_language_confidence)",
    "decontaminate": "Evaluation sets (--decontaminate)",
    "filter": "Filters (--filters)",
    "clean": "Cleaning",
    "share": "Shares of corpora",
    "dedup": "Copies (--dedup)",
    "repeats": "Repeated sentences (--drop_repeats)",
    "holdout": "Held out, or the other side of it (--holdout)",
}
"""Heading of each stage of the ledger."""

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
        domains=domains_of(statistics),
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
            (STAGES.get(stage.stage, stage.stage), stage.count, bars(_entries(stage.largest, stage.count), whole))
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
