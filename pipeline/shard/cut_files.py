"""Reads one piece of a large compressed file: the frames that belong to it, and the end of its last record.

The piece's text begins with its first frame. As in plain files, a line belongs to the piece in which it begins, with
one difference: if a line begins exactly with a frame, the reader of that frame cannot know it, because the line feed
before it is in a frame that it does not read. So a line belongs to the piece that contains the byte before it. In other
words: a reader skips the text up to the first line feed, and reads lines until one begins after its end.
"""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator
from typing import IO, Any

from pipeline.shard.cut_points import (
    FRAME_FORMATS,
    check_next_cut_point,
    first_cut_point,
    is_cut_point,
    is_one_frame,
)
from pipeline.shard.decompression import PlainBytes
from pipeline.shard.frames import CompressedBytes, Frames
from pipeline.shard.inputs import NO_END, Piece
from pipeline.shard.ranges import NOTHING_KNOWN, open_range

_BUFFER_BYTES = 1 << 16


class CutFile(PlainBytes):
    """The plain bytes from the first frame of a piece to the end of the file; none if no frame belongs to the piece.

    end: the plain offset at which the frames of the next piece begin, counted from this piece's first frame. None until
    it is reached. It is set before any byte after it is returned.
    """

    def __init__(self, piece: Piece, max_ratio: int):
        assert piece.compression is not None
        self._piece = piece
        self._compression: str = piece.compression
        self._source: CompressedBytes | None = None
        self._first_frame = 0
        self.end: int | None = None
        super().__init__(piece.display_path, max_ratio)

    def chunks(self) -> Generator[bytes, None, None]:
        piece = self._piece
        one_frame = is_one_frame(piece.file, self._compression)
        if one_frame and piece.start > 0:
            return

        known = NOTHING_KNOWN
        if piece.start > 0:
            cut_point = first_cut_point(piece.file, self._compression, piece.start, piece.end)
            if cut_point is None:
                return
            self._first_frame, known = cut_point

        expected_end = piece.size if one_frame else piece.end
        with open_range(piece.file, self._first_frame, expected_end, known) as file:
            self._source = CompressedBytes(self._path, file, self._first_frame)
            frames = FRAME_FORMATS[self._compression].read(self._source)
            yield from self._noting_end(frames, one_frame)

    def compressed_bytes(self) -> int:
        return self._source.offset - self._first_frame if self._source else 0

    def _noting_end(self, frames: Frames, one_frame: bool) -> Iterator[bytes]:
        """Yield the bytes of frames, and set `end` at the first frame of the next piece."""
        piece = self._piece
        plain_bytes = 0

        for frame_start, data in frames:
            is_next = frame_start >= piece.end and not one_frame and is_cut_point(frame_start)
            if self.end is None and is_next:
                check_next_cut_point(piece.file, self._path, self._compression, piece.end, frame_start)
                self.end = plain_bytes

            plain_bytes += len(data)
            if data:
                yield data

        if self.end is None and not one_frame:
            check_next_cut_point(piece.file, self._path, self._compression, piece.end, None)


def open_cut(piece: Piece, max_ratio: int) -> io.BufferedReader:
    """Open a piece of a large compressed file to read its plain bytes. The returned file's `raw` is a CutFile.

    Reading raises DataError for a decompression bomb or damage, and the exceptions in DECOMPRESSION_ERRORS.
    """
    return io.BufferedReader(CutFile(piece, max_ratio), _BUFFER_BYTES)


def first_line(file: IO[bytes], piece: Piece) -> int:
    """Move to the first line of a piece and return its offset in the piece's text. Lines are not kept in memory."""
    offset = 0
    if piece.start == 0:
        return offset

    while part := file.readline(_BUFFER_BYTES):
        offset += len(part)
        if part.endswith(b"\n"):
            break
    return offset


def bytes_to_end(file: Any, offset: int) -> int:
    """Return how many bytes after plain offset `offset` the piece's lines may begin in; NO_END while unknown."""
    end = file.raw.end
    return NO_END if end is None else end + 1 - offset


def is_later_line(file: Any, offset: int) -> bool:
    """Return whether a line that was just read and begins at `offset` belongs to a later piece."""
    end = file.raw.end
    return end is not None and offset > end
