"""The encoders of one worker process: one for all text, or one for each language that has a segmenter; and their pool.

Shape suffixes: D documents, N sentences, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.pairs.encoding import CHUNK_BYTES, Encoder
from pipeline.pairs.encoding_cache import EncodedStrings, concatenate
from pipeline.pairs.segmenters import ALL, word_marker
from pipeline.pairs.word_segmentation import KEPT
from pipeline.words.arrow import Ints, slices_of
from schemas.vocabulary_kinds import Model


class EncoderByLanguage:
    """Encoders of one tokenizer that cut words by different languages. Not thread-safe."""

    def __init__(self, encoders: dict[str, Encoder], other: Encoder):
        """Take the encoder of each language, and that of all other languages. One at least marks words."""
        self._encoders = [*encoders.values(), other]
        self._languages = pa.array(list(encoders), pa.string())

    def encode_text(self, text: pa.Table) -> Iterator[EncodedStrings]:
        """Yield the ids of the sentences of a text shard with the column `language`, a chunk of text at a time."""
        for batch in text.select(["sentences", "language"]).to_batches():
            sentences, languages = batch["sentences"], batch["language"]
            number_D = pc.index_in(languages, self._languages).fill_null(len(self._languages))  # type: ignore[attr-defined]
            lengths_D = pc.list_value_length(sentences).to_numpy()  # type: ignore[attr-defined]
            number_N = np.repeat(number_D.to_numpy(), lengths_D).astype(np.int64)

            flat = sentences.flatten()
            for start, end in slices_of(flat, CHUNK_BYTES):
                yield self._encode_chunk(flat.slice(start, end - start), number_N[start:end])

    def _encode_chunk(self, sentences: pa.Array, number_N: Ints) -> EncodedStrings:
        """Encode sentences, each by the encoder with its number."""
        parts = []
        for number, encoder in enumerate(self._encoders):
            part = encoder.encode(sentences.filter(pa.array(number_N == number)))
            marks_T = np.full(len(part.ids_T), KEPT, np.int8) if part.marks_T is None else part.marks_T
            parts.append(part._replace(marks_T=marks_T))

        in_order = np.argsort(np.argsort(number_N, kind="stable"))
        return concatenate(parts, with_marks=True).take(in_order)


TextEncoder = Encoder | EncoderByLanguage


def new_encoder(tokenizer_json: bytes, model: Model, segmenters: tuple[tuple[str, str], ...]) -> TextEncoder:
    """Return an encoder that marks words by the segmenter of each language: pairs of `chosen_segmenters`."""
    by_language = {language: Encoder(tokenizer_json, model, word_marker(name)) for language, name in segmenters}
    if ALL in by_language:
        return by_language[ALL]
    other = Encoder(tokenizer_json, model)
    return EncoderByLanguage(by_language, other) if by_language else other


class EncoderPool:
    """The encoders of one worker process, each lent to one thread at a time.

    Beam runs several bundles in one process, each in a thread, and an encoder changes its caches while it encodes. A
    pool grows to the largest number of shards that were ever built at the same time. Thread-local encoders would be
    safe too, but Beam ends idle threads, and their caches would be lost.
    """

    def __init__(self, make: Callable[[], TextEncoder]):
        """Start without encoders; `make` is called when all are lent."""
        self._make = make
        self._idle: list[TextEncoder] = []

    @contextmanager
    def lend(self) -> Iterator[TextEncoder]:
        """Lend an encoder for the duration of a `with` block."""
        try:
            encoder = self._idle.pop()  # atomic, as `append` is
        except IndexError:
            encoder = self._make()

        yield encoder

        # Not reached after an exception: the caches of an encoder that was interrupted may be incomplete.
        self._idle.append(encoder)
