"""Damages copies of finished folders, and checks that every reader rejects them.

Rows are replaced and manifests edited so that all earlier checks still pass, or bytes are damaged at random.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from schemas import manifest, shards, storage
from schemas.errors import ClozelineError, DataError
from schemas.manifest import Shard
from trainer.data.folder import PairFolder

Fields = dict[str, Any]


def read_fields(folder: Path) -> Fields:
    return json.loads((folder / "manifest.json").read_text())


def write_fields(folder: Path, fields: Fields) -> None:
    (folder / "manifest.json").write_text(json.dumps(fields))


def table_of_shard(folder: Path, number: int = 0) -> pa.Table:
    """Return the rows of a folder's first shard, or of another one."""
    return pa.ipc.open_file(folder / read_fields(folder)["shards"][number]["path"]).read_all()


def restate(fields: Fields) -> None:
    """Recompute the manifest's fingerprint from its shards."""
    entries = [Shard(**entry) for entry in fields["shards"]]
    identity = fields["options"]["vocabulary"] if fields["kind"] == "pairs" else ""
    fields["fingerprint"] = manifest.fingerprint(fields["kind"], entries, identity)


def replace_rows(folder: Path, change: Callable[[pa.Table], pa.Table], honest: bool = True, number: int = 0) -> str:
    """Replace the rows of the first shard, or of another one, update its entry in the manifest, and return its name.

    The size and hash in the manifest are always those of the new data. honest: whether the fingerprints and the number
    of rows are too; otherwise they stay those of the old rows.
    """
    fields = read_fields(folder)
    entry = fields["shards"][number]
    table = change(table_of_shard(folder, number)).combine_chunks()
    # Write the batches unchanged: the usual way of writing would drop values that are hidden under a null.
    encoder = shards.ShardEncoder(table.schema)
    for batch in table.to_batches():
        encoder.add(batch)
    data, new_entry = encoder.finish(entry["path"])
    (folder / entry["path"]).write_bytes(data)

    entry.update(bytes=len(data), sha256=new_entry["sha256"])
    if honest:
        entry["rows"] = table.num_rows
        entry["fingerprint"] = shards.content_fingerprint(shards.equal_batches(table))
        restate(fields)
    write_fields(folder, fields)
    return entry["path"]


def set_column(table: pa.Table, name: str, column: Any) -> pa.Table:
    """Return the table with one column replaced by an Arrow array or by Python values."""
    index = table.column_names.index(name)
    field = table.schema.field(index)
    array = column if isinstance(column, pa.Array) else pa.array(column, field.type)
    return table.set_column(index, field, array)


def set_value(name: str, row: int, value: Any) -> Callable[[pa.Table], pa.Table]:
    """Return a change of one value in one row."""

    def change(table: pa.Table) -> pa.Table:
        values = table[name].to_pylist()
        values[row] = value
        return set_column(table, name, values)

    return change


def set_item(name: str, row: int, item: int, value: Any) -> Callable[[pa.Table], pa.Table]:
    """Return a change of one item in one row's list."""

    def change(table: pa.Table) -> pa.Table:
        values = table[name].to_pylist()
        values[row][item] = value
        return set_column(table, name, values)

    return change


def hide_row(name: str, row: int) -> Callable[[pa.Table], pa.Table]:
    """Return a change that makes a row's list null but leaves values that are out of range in its buffer."""

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
    """Cut a folder to 40 rows of one shard and update the manifest, but keep the old fingerprint."""
    kept = replace_rows(folder, lambda table: table.slice(0, 40), honest=False)
    fields = read_fields(folder)
    table = table_of_shard(folder)
    lengths = [len(row) for row in table["input_ids"].to_pylist()]

    fields["shards"] = fields["shards"][:1]
    fields["shards"][0].update(rows=40, tokens=sum(lengths))
    fields["totals"] = {"rows": 40, "tokens": sum(lengths)}
    fields["statistics"]["lengths"] = [lengths.count(length) for length in range(33)]
    write_fields(folder, fields)
    for path in folder.glob("*.arrow"):
        if path.name != kept:
            path.unlink()


# Readers


def read_all(folder: Path) -> None:
    """Read every shard of a folder as the trainer does."""
    opened = PairFolder(str(folder))
    try:
        for number in range(len(opened.manifest.shards)):
            opened.block((number,))
    finally:
        opened.close()


def refused_by_both(command, folder: Path, told: str, read: Callable[[Path], None] = read_all) -> None:
    """Check that `verify` exits with code 3, that the trainer's reader raises DataError, and that both say `told`.

    read: reads such a folder as the trainer does.
    """
    done = command("verify", folder)
    assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stderr
    assert told in done.stderr
    with pytest.raises(DataError, match=re.escape(told)):
        read(folder)


# Random damage

TRIES = 60


def damaged(data: bytes, draws: random.Random) -> bytes:
    """Return the data with one bit flipped, its end cut off, or an aligned integer of 4 or 8 bytes overwritten."""
    changed = bytearray(data)
    place = draws.randrange(len(data))
    kind = draws.choice(["flip", "cut", "integer"])
    if kind == "flip":
        changed[place] ^= 1 << draws.randrange(8)
    elif kind == "cut":
        del changed[place:]
    else:
        width = draws.choice([4, 8])
        start = place // width * width
        value = draws.choice([0, -1, 1, 2 ** (8 * width - 1) - 1, -(2 ** (8 * width - 1)), draws.getrandbits(31)])
        changed[start : start + width] = value.to_bytes(width, "little", signed=True)
    return bytes(changed)


def outcome(action: Callable[[], object]) -> int:
    """Return the exit code of a reader's action. Any exception but a ClozelineError fails the test."""
    try:
        action()
        return 0
    except ClozelineError as error:
        return error.exit_code


def check_random_damage(command, folder: Path, number: int, resealed: bool, read: Callable[[Path], None]) -> None:
    """Damage a file of a folder in many ways, and check that `verify` and `read` agree whether it is good.

    number: of the file, and the seed of the damage. resealed: whether the manifest gets the hash of the damaged file.
    Such damage is found by Arrow, the ranges or the rows' fingerprint, or changes nothing that is read.
    """
    draws = random.Random(number)
    fields = read_fields(folder)
    entry = fields["shards"][number]
    whole = (folder / entry["path"]).read_bytes()

    for attempt, data in enumerate([b"", whole[:-1], *(damaged(whole, draws) for _ in range(TRIES))]):
        (folder / entry["path"]).write_bytes(data)
        if resealed:
            entry.update(bytes=len(data), sha256=storage.sha256(data))
            write_fields(folder, fields)

        is_found = not resealed or len(data) < len(whole)
        expected = {0} if data == whole else {3} if is_found else {0, 3}
        code = outcome(lambda: read(folder))
        assert code in expected, attempt
        done = command("verify", folder)
        assert done.returncode == code and "Traceback" not in done.stderr, (attempt, done.stderr)
