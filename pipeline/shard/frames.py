"""What gzip, zstd and bzip2 files have in common: parts that can be read without the parts before them.

Here all such parts are called frames: the members of gzip, the frames of zstd, the blocks of bzip2. A reader of one
format (gzip_members.py, zstd_frames.py, bzip2_blocks.py) is a generator of (offset of the frame in the compressed file,
plain bytes) pairs. Each frame begins with a pair without bytes, so empty frames are seen too. The bytes of one pair are
few, so a decompression bomb can be refused before it fills memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO

from schemas.errors import DataError

CHUNK_BYTES = 1 << 17
"""Maximum plain bytes of one pair. For bzip2, a pair is one block, which may have 46 MB."""

READ_BYTES = 1 << 16

Frames = Iterator[tuple[int, bytes]]


class CompressedBytes:
    """The bytes of a compressed file in order. `offset` is the position in the file of the next byte.

    path: the file's name in errors.
    file: positioned at `offset`.
    """

    def __init__(self, path: str, file: IO[bytes], offset: int = 0):
        self.path = path
        self.offset = offset
        self._file = file
        self._held = b""  # read from the file, but not taken yet

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes; fewer only at the end of the file."""
        data = self.peek(size)
        self._held = self._held[len(data) :]
        self.offset += len(data)
        return data

    def take_some(self) -> bytes:
        """Return the next bytes: those already held, or the result of one read; empty only at the end of the file."""
        data = self._held or self._file.read(READ_BYTES)
        self._held = b""
        self.offset += len(data)
        return data

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes without taking them; fewer only at the end of the file."""
        while len(self._held) < size:
            data = self._file.read(max(READ_BYTES, size - len(self._held)))
            if not data:
                break
            self._held += data
        return self._held[:size]

    def give_back(self, data: bytes) -> None:
        """Undo the taking of `data`, the last bytes that were taken."""
        self._held = data + self._held
        self.offset -= len(data)


FrameReader = Callable[[CompressedBytes], Frames]


def damaged(source: CompressedBytes, frame: str, start: int, cause: object) -> DataError:
    """Return the error for an unreadable frame: `frame` names its kind, `start` is its compressed offset."""
    return DataError(
        f"{source.path} is damaged: the {frame} that begins at byte {start:,} of the compressed file cannot be read "
        f"({cause}). Copy the file again, or leave it out."
    )


def check_magic(source: CompressedBytes, frame: str, magic: bytes, frames_before: int) -> None:
    """Raise DataError unless the next bytes, as far as the file has any, begin a frame.

    frames_before: the number of frames read before it. If there are some, the message says that they are whole.
    """
    head = source.peek(len(magic))
    if magic.startswith(head):
        return

    start = source.offset
    if start == 0:
        raise misnamed(source.path, frame.partition(" ")[0])
    if not frames_before:
        raise damaged(source, frame, start, "there is none")
    raise DataError(
        f"{source.path} is damaged: the {frame} that begins at byte {start:,} of the compressed file cannot be read "
        f"(there is none), and what comes before is whole. If something was appended there, cut it off with `head -c "
        f"{start}`; otherwise copy the file again, or leave it out."
    )


def misnamed(path: str, compression: str) -> DataError:
    """Return the error for a file that is not compressed in the way that its suffix says."""
    return DataError(
        f"{path} is not {compression}, although its name says so. Rename it after what it is, or compress it."
    )


def no_end(frame: str, start: int) -> EOFError:
    """Return the error for a frame that the end of the file cuts off."""
    return EOFError(f"the {frame} that begins at byte {start:,} of the compressed file has no end")
