from dataclasses import replace

import pyarrow as pa
import pytest

from schemas import shards
from schemas.errors import DataError
from schemas.row_checks import PairLimits, check_pairs

LIMITS = PairLimits(vocabulary_size=100, max_length=128)


def pair_table(**changes) -> pa.Table:
    columns = {
        "input_ids": [[2, 7, 3, 8, 3]],
        "segment_b_start": [3],
        "pair_label": [1],
        "word_starts": [[False, True, False, True, False]],
        "document_a": [1],
        "document_b": [2],
    } | changes
    return pa.table(columns, schema=shards.pairs_schema(100))


def test_same_rows_same_bytes_however_they_are_chunked() -> None:
    rows = pa.table({"word": [f"w{i}" for i in range(3000)], "count": range(3000)}, schema=shards.COUNTS_SCHEMA)
    cut = pa.concat_tables([rows.slice(0, 7), rows.slice(7, 2000), rows.slice(2007)])
    assert shards.encode_shard("x", rows)[0] == shards.encode_shard("x", cut)[0]
    reader = pa.ipc.open_file(shards.encode_shard("x", rows)[0])
    assert [reader.get_batch(i).num_rows for i in range(3)] == [1024, 1024, 952]
    assert reader.schema.metadata is None


def test_every_difference_of_a_schema_is_named() -> None:
    found = pa.schema([("document", pa.int64()), ("sentences", pa.list_(pa.string())), ("title", pa.string())])
    assert shards.schema_differences(found, shards.TEXT_SCHEMA) == [
        "column source (string) is missing",
        "column title is unknown",
        "column document is int64, expected uint64",
    ]


@pytest.mark.parametrize("cut", [0, 1, 100, -8, -1])
def test_a_cut_file_is_an_error_that_names_it(cut: int) -> None:
    data = shards.encode_shard("x", pair_table())[0][:cut]
    with pytest.raises(DataError, match=r"x\.arrow"):
        shards.decode_table(data, "x.arrow", shards.pairs_schema(100))


def test_good_rows_pass() -> None:
    check_pairs(pair_table(), "x.arrow", replace(LIMITS, labeled=True))
    check_pairs(pair_table(pair_label=[None]), "x.arrow", LIMITS)
    check_pairs(pair_table().slice(1), "x.arrow", LIMITS)


def test_ids_are_16_bits_up_to_65536_tokens() -> None:
    assert shards.token_type(1 << 16) == pa.uint16()
    assert shards.token_type((1 << 16) + 1) == pa.uint32()


def test_content_fingerprint_sees_rows_only() -> None:
    table = pair_table()
    batches = shards.equal_batches(table)
    copy = shards.decode_table(shards.encode_shard("x", table)[0], "x", table.schema)
    assert shards.content_fingerprint(batches) == shards.content_fingerprint(shards.equal_batches(copy))
    other = pair_table(pair_label=[0])
    assert shards.content_fingerprint(batches) != shards.content_fingerprint(shards.equal_batches(other))
