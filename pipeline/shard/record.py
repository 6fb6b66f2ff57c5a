"""What reading a file yields: documents as they stood there, and records without one."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.shard.limits import Limits

SHOWN = 500  # characters of a rejected record that are kept to look at


@dataclass(frozen=True)
class Undecodable:
    """What in a record is not in the encoding of its file: in how many places, and the first one's offset in bytes."""

    count: int
    place: int


@dataclass(frozen=True)
class Record:
    """One document as it stood in the input. `source` names its kind of origin, never a path: paths change.

    `place` is the offset in bytes at which it begins; `size` counts its bytes and `lines` its lines of plain text.
    """

    text: str
    source: str
    undecodable: Undecodable | None = None
    place: int = field(default=0, compare=False)
    size: int = field(default=0, compare=False)
    lines: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Rejected:
    """A record without a document in it: why, where it begins, and how it looks.

    `place` is the offset in bytes, in Parquet the row of the file. `count` is above 1 for blank lines in a row.
    """

    reason: str
    source: str
    place: int
    shown: str = ""
    count: int = 1
    undecodable: Undecodable | None = field(default=None, compare=False)
    size: int = field(default=0, compare=False)


def too_long(limits: Limits) -> str:
    """Return the reason that the ledger gives for records above --max_document_bytes."""
    megabytes, rest = divmod(limits.document_bytes, 1 << 20)
    return f"record above {limits.document_bytes:,} bytes" if rest else f"record above {megabytes} MB"


TOO_LONG = too_long(Limits())


def decoded(data: bytes, place: int) -> tuple[str, Undecodable | None]:
    """Return UTF-8 bytes, which begin at `place` of their file, as text, and what in them is not UTF-8.

    That reads as U+FFFD, which `cleaning` counts and removes.
    """
    text_start = len(data) - len(data.removeprefix(b"\xef\xbb\xbf"))
    try:
        return data[text_start:].decode(), None
    except UnicodeDecodeError as error:
        text = data[text_start:].decode(errors="replace")
        stood_there = data.count("\ufffd".encode())
        return text, Undecodable(text.count("\ufffd") - stood_there, place + text_start + error.start)


def shown(line: bytes) -> str:
    """Return the beginning of a record, for a person to look at."""
    return line[: 4 * SHOWN].decode(errors="replace")[:SHOWN].rstrip("\n")
