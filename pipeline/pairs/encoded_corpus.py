"""The positions of a text shard's sentences and documents in its token array.

Shape suffixes: N sentences, D documents. N1 and D1 have one element more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class EncodedCorpus:
    """The offsets of a shard's sentences and documents.

    Sentence i is tokens sentence_offsets_N1[i] : sentence_offsets_N1[i + 1], and document j is sentences
    document_offsets_D1[j] : document_offsets_D1[j + 1]. Every document has at least one sentence, and every sentence at
    least one token.
    """

    sentence_offsets_N1: NDArray[np.int64]
    document_offsets_D1: NDArray[np.int64]
    document_ids_D: NDArray[np.uint64]

    @classmethod
    def of(cls, sentence_offsets: Any, document_offsets: Any, document_ids: Any) -> EncodedCorpus:
        """Make a corpus from any sequences of integers."""
        return cls(
            np.asarray(sentence_offsets, dtype=np.int64),
            np.asarray(document_offsets, dtype=np.int64),
            np.asarray(document_ids, dtype=np.uint64),
        )

    # Reading one element of a memoryview gives a plain int, and takes a third of the time that a numpy array takes.

    @cached_property
    def sentence_offsets(self) -> Sequence[int]:
        """sentence_offsets_N1 for code that reads one element at a time."""
        return self.sentence_offsets_N1.data

    @cached_property
    def document_offsets(self) -> Sequence[int]:
        """document_offsets_D1 for code that reads one element at a time."""
        return self.document_offsets_D1.data

    @cached_property
    def document_ids(self) -> Sequence[int]:
        """document_ids_D for code that reads one element at a time."""
        return self.document_ids_D.data
