"""Held-out documents: a fixed share of the corpus goes to a separate text folder, TEXT_heldout, for evaluation.

A document's id and the seed alone decide its side. The id is a hash of the document's text, so copies are always on one
side, a document stays on its side when the corpus grows, and a larger share holds out the same documents and more.
Duplicates are dropped before the corpus is divided (write_shard.py). So with --dedup minhash, the one document of a
group of near-duplicates that is kept decides, and the others are in neither folder. If the corpus grows by a near-copy,
that one may be kept instead and be on the other side: then only the two folders of one job fit together.

    write_shard      divides the documents of each shard, and writes the held-out ones as a run file
    plan_held_out    chooses the number of held-out shards from the size of their text
    write_shard      an exchange brings the documents of each held-out shard together
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.commit.reports import Report
from pipeline.commit.staging import Staging
from pipeline.exchange.blocks import Stream
from pipeline.exchange.runs import encode_run, one_batch
from pipeline.shard.survey import MAX_READS, shards_for
from pipeline.shard.write_runs import RUN_BUCKETS, documents_stream, placements_of
from schemas import storage
from schemas.errors import DataError, UsageError
from schemas.randomness import key, mix
from schemas.shards import shard_place

SUFFIX = "_heldout"
"""What the name of the held-out folder adds to that of --output."""

SIDE = {"side": "held_out"}
"""The option that distinguishes the manifest of a held-out folder from that of the text folder next to it."""

HELD_OUT = "held out"
"""Reason in the text folder's ledger: the document is in the held-out folder."""

NOT_HELD_OUT = "not held out"
"""Reason in the held-out folder's ledger: the document is in the text folder."""


def held_out_folder(output: str) -> str:
    """Return the held-out folder that belongs to an output folder. Raises UsageError if that has no name."""
    path = storage.filesystem(output)[1].rstrip("/")
    is_local = storage.is_local(output)
    named = output.rstrip("/")
    if is_local and posixpath.basename(named) in ("", ".", ".."):
        named = os.path.realpath(path or "/").rstrip("/")

    is_bucket = not is_local and "/" not in path
    if named == "" or path == "" or is_bucket:
        raise UsageError(
            f"--holdout writes a second folder, which is named for --output, and {output} has no name of its own. Give "
            f"a folder in it, such as {storage.join(output, 'text')}."
        )
    return named + SUFFIX


def is_held_out(documents: NDArray[np.uint64], share: float, seed: int) -> NDArray[np.bool_]:
    """Return (documents,) bool: which of these ids are held out, a random `share` (0 to 1) of all ids."""
    draws = mix(documents ^ np.uint64(key("holdout", seed)))
    return draws < np.uint64(int(share * 2.0**64))


def held_out_stream(seed: int, has_languages: bool) -> Stream:
    """Return the stream that brings held-out documents from the text shards to their held-out shards."""
    return replace(documents_stream("none", seed, has_languages), name="heldout")


def write_held_out(shard: str, documents: pa.Table, seed: int, staging: Staging) -> Report:
    """Write the held-out documents of a text shard as a run file. Return their part of its report."""
    name = f"heldout-{shard}.run"
    rows = one_batch(documents)
    data, index = encode_run(rows, placements_of(rows, seed), RUN_BUCKETS, name)
    staging.put(name, data)
    return {"index": index.to_row(), "documents": rows.num_rows}


def numbered_runs(report: Report) -> Iterator[tuple[int, list[Any]]]:
    """Yield (shard, index of its run), the form in which exchanges take existing runs, if it has held-out documents."""
    if report["held_out"]["documents"]:
        index, _ = shard_place(report["shard"]["path"])
        yield index, report["held_out"]["index"]


def held_out_counts(report: Report) -> Report:
    return {
        "shards": 1,
        "documents": report["shard"]["rows"],
        "held_out": report["held_out"]["documents"],
        "text_bytes": report["held_out"]["text_bytes"],
    }


def plan_held_out(added: Report, share: float, shard_bytes: int) -> tuple[int, bool]:
    """Choose the number of held-out shards from the sums over all text shards, as `shards_for` does from their text.

    Also returns whether their runs are merged first. Raises DataError if one of the two folders would be empty.
    """
    documents = added["documents"] + added["held_out"]
    if 0 in (added["documents"], added["held_out"]):
        which = "none" if added["held_out"] == 0 else "all"
        advice = "larger" if added["held_out"] == 0 else "smaller"
        raise DataError(
            f"--holdout {share} holds out {which} of {documents:,} documents, and both folders need some. Nothing was "
            f"published. Give a {advice} share, or another --seed."
        )

    num_shards = shards_for(added["text_bytes"], shard_bytes)
    too_fine = num_shards > RUN_BUCKETS
    too_many_reads = added["shards"] * num_shards > MAX_READS
    return num_shards, too_fine or too_many_reads
