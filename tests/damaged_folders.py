"""Damaged copies of finished folders: rows replaced and manifests edited, with the checks before them satisfied."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from schemas import manifest, shards, storage
from schemas.manifest import Shard

Fields = dict[str, Any]


def read_fields(folder: Path) -> Fields:
    return json.loads((folder / "manifest.json").read_text())


def write_fields(folder: Path, fields: Fields) -> None:
    (folder / "manifest.json").write_text(json.dumps(fields))


def first_table(folder: Path) -> pa.Table:
    """The rows of a folder's first shard."""
    return pa.ipc.open_file(folder / read_fields(folder)["shards"][0]["path"]).read_all()


def restate(fields: Fields) -> None:
    """Make the manifest's fingerprint follow from its shards."""
    entries = [Shard(**entry) for entry in fields["shards"]]
    identity = fields["options"].get("vocabulary", "")
    fields["fingerprint"] = manifest.fingerprint(fields["kind"], entries, identity)


def replace_rows(folder: Path, change: Callable[[pa.Table], pa.Table], honest: bool = True) -> str:
    """Replace the first shard's rows and reseal it; return its name.

    Size, hash and counts in the manifest are those of the new rows. With `honest` so are the fingerprints; otherwise
    they stay those of the old rows.
    """
    fields = read_fields(folder)
    entry = fields["shards"][0]
    table = change(first_table(folder)).combine_chunks()
    # One batch as it is: the usual way of writing would drop values that hide under a null.
    batches = table.to_batches()
    data = shards.encode_batches(batches, table.schema)
    (folder / entry["path"]).write_bytes(data)

    entry.update(bytes=len(data), sha256=storage.sha256(data))
    if honest:
        entry["fingerprint"] = shards.content_fingerprint(shards.equal_batches(table))
        restate(fields)
    write_fields(folder, fields)
    return entry["path"]


def set_column(table: pa.Table, name: str, column: Any) -> pa.Table:
    """The table with one column replaced by an Arrow array or by Python values."""
    index = table.column_names.index(name)
    field = table.schema.field(index)
    array = column if isinstance(column, pa.Array) else pa.array(column, field.type)
    return table.set_column(index, field, array)


def set_value(name: str, row: int, value: Any) -> Callable[[pa.Table], pa.Table]:
    """A change of one value of one row."""

    def change(table: pa.Table) -> pa.Table:
        values = table[name].to_pylist()
        values[row] = value
        return set_column(table, name, values)

    return change


def set_item(name: str, row: int, item: int, value: Any) -> Callable[[pa.Table], pa.Table]:
    """A change of one item of one row's list."""

    def change(table: pa.Table) -> pa.Table:
        values = table[name].to_pylist()
        values[row][item] = value
        return set_column(table, name, values)

    return change


def hide_row(name: str, row: int) -> Callable[[pa.Table], pa.Table]:
    """A change that makes a row's list null and leaves its values, out of range, in the buffer below."""

    def change(table: pa.Table) -> pa.Table:
        column = table[name].combine_chunks()
        offsets = column.offsets.to_numpy()
        values = column.values.to_numpy(zero_copy_only=False).copy()
        if values.dtype != bool:
            values[offsets[row] : offsets[row + 1]] = 65535
        hidden = pa.array([i == row for i in range(len(column))])
        items = pa.array(values, column.type.value_type)
        return set_column(table, name, pa.ListArray.from_arrays(column.offsets, items, mask=hidden))

    return change


def keep_40_rows(folder: Path) -> None:
    """Cut a folder to 40 rows of one shard, as its manifest then says, under the old fingerprint."""
    kept = replace_rows(folder, lambda table: table.slice(0, 40), honest=False)
    fields = read_fields(folder)
    table = first_table(folder)
    lengths = [len(row) for row in table["input_ids"].to_pylist()]

    fields["shards"] = fields["shards"][:1]
    fields["shards"][0].update(rows=40, tokens=sum(lengths))
    fields["totals"] = {"rows": 40, "tokens": sum(lengths)}
    fields["statistics"]["lengths"] = [lengths.count(length) for length in range(33)]
    write_fields(folder, fields)
    for path in folder.glob("*.arrow"):
        if path.name != kept:
            path.unlink()
