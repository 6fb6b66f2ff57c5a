"""How many documents are from which host, of records with URLs: exact counts, of which the largest are kept.

A run counts the documents that it gets, by host. In an exchange (pipeline/jobs/domains.py) equal hosts meet in a
bucket, where their counts are added up. Counts are of documents as they were read and kept, before copies are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from pipeline.commit.reports import Report
from pipeline.exchange.runs import Keys
from pipeline.words.arrow import hashes_of
from schemas.text_facts import MAX_LISTED, cut

HOST_SCHEMA = pa.schema([("host", pa.string()), ("count", pa.int64())])

HOST_BUCKETS = 64
"""Buckets of run files, and the maximum of the exchange. A crawl of 3 billion pages has 40 million hosts."""

_LARGEST_FIRST = [("count", "descending"), ("host", "ascending")]


def host_rows(counts: Mapping[str, int]) -> pa.RecordBatch:
    """Return counts by host as rows of HOST_SCHEMA, sorted by host."""
    hosts = sorted(counts)
    return pa.record_batch([pa.array(hosts, pa.string()), [counts[host] for host in hosts]], schema=HOST_SCHEMA)


def host_keys(rows: pa.RecordBatch) -> Keys:
    """Return (rows,) uint64: a hash of each host."""
    return hashes_of(rows["host"])


def sum_hosts(rows: pa.Table) -> pa.Table:
    """Return one row (HOST_SCHEMA) for each host, sorted by host."""
    groups = rows.group_by("host", use_threads=False).aggregate([("count", "sum")])
    return groups.rename_columns(HOST_SCHEMA.names).sort_by("host").cast(HOST_SCHEMA)


def add_hosts(pieces: Iterable[pa.Table]) -> Report:
    """Add up the rows of a bucket, in any order. Returns its hosts and documents, and its MAX_LISTED largest hosts."""
    total = HOST_SCHEMA.empty_table()
    pending: list[pa.Table] = []
    for piece in pieces:
        pending.append(piece)
        # Only once there are more rows than hosts, so that each row is added up about twice.
        if sum(table.num_rows for table in pending) > total.num_rows:
            total = sum_hosts(pa.concat_tables([total, *pending]))
            pending = []
    total = sum_hosts(pa.concat_tables([total, *pending]))

    largest = total.sort_by(_LARGEST_FIRST).slice(0, MAX_LISTED)
    return {
        "hosts": total.num_rows,
        "documents": sum(total["count"].to_pylist()),
        "largest": [[row["host"], row["count"]] for row in largest.to_pylist()],
    }


def add_domains(buckets: Iterable[Report]) -> Report | None:
    """Add up the results of `add_hosts` for all buckets, in any order; None if there is no host."""
    reports = list(buckets)
    ranked = sorted(
        (entry for report in reports for entry in report["largest"]), key=lambda entry: (-entry[1], entry[0])
    )
    domains = {
        "hosts": sum(report["hosts"] for report in reports),
        "documents": sum(report["documents"] for report in reports),
        "largest": [[cut(host), count] for host, count in ranked[:MAX_LISTED]],
    }
    return domains if ranked else None
