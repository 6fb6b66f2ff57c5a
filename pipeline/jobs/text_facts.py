"""The facts of a text folder (schemas/text_facts.py), from its manifest."""

from __future__ import annotations

from pipeline.ledger import left_out
from pipeline.readers.corpora import FACTS
from schemas.manifest import Input, Manifest
from schemas.text_facts import CorpusFacts, TextFacts, domains_of, largest_first


def text_facts(manifest: Manifest, inputs: list[Input]) -> TextFacts:
    """Return the facts of a text folder. inputs: all of them, which the manifest lacks if they are in parts."""
    statistics = manifest.statistics
    sources = statistics["documents_by_source"]
    corpora = [
        CorpusFacts(documents=sources.get(corpus["name"], 0), **{key: corpus[key] for key in FACTS if key in corpus})
        for corpus in manifest.options.get("corpora", [])
    ]
    return TextFacts(
        fingerprint=manifest.fingerprint,
        files=len(inputs),
        bytes=sum(entry.bytes or 0 for entry in inputs),
        documents=manifest.totals.get("documents", 0),
        sentences=manifest.totals.get("sentences", 0),
        text_bytes=manifest.totals["text_bytes"],
        sources=largest_first(sources.items()),
        language=statistics.get("language", ""),
        languages=largest_first(statistics.get("documents_by_language", {}).items()),
        corpora=corpora,
        left_out=left_out(manifest.ledger),
        cleaning=largest_first(statistics.get("cleaning", {}).items()),
        domains=domains_of(statistics),
        sentences_per_document=statistics.get("log2_sentences_per_document", []),
        characters_per_sentence=statistics.get("log2_characters_per_sentence", []),
    )
