"""Clozeline's way from raw text to sentence pairs, as Apache Beam jobs, and `statistics` without Beam.

    shard        corpora -> text shards
    vocab        text shards -> vocabulary
    pairs        text shards + vocabulary -> pair shards
    statistics   pair shards -> counts of tokens and co-occurrences

docs/architecture.md has a map of the folders. Those of the algorithms import no Beam: readers, filters, shard,
near_duplicates, words, vocab and pairs.
"""
