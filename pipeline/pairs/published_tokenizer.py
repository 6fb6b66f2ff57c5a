"""Checks a published tokenizer, and turns off its dropout, before pairs are made with it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
from tokenizers import Tokenizer

from pipeline.pairs.added_tokens import AddedTokens
from pipeline.pairs.encoding import Encoder
from pipeline.pairs.encoding_cache import EncodedStrings
from pipeline.words.rules import literal_tokenizer
from schemas.errors import DataError
from schemas.vocabulary import TOKENIZER_FILE, Vocabulary

_PLAIN_PROBES = [
    "It's a caf\u00e9, isn't it?",
    "\u4e2d\u6587 x 3.14",
    "soft\u00adhyphen zero\u200bwidth",
    "\U0002b820a",
]
"""Text that the rules of published tokenizers treat differently: accents, ideographs, invisible characters."""


def without_dropout(tokenizer_json: bytes, path: str) -> tuple[bytes, float]:
    """Return (the tokenizer.json with BPE dropout turned off, the dropout that it had or 0.0).

    With dropout, `tokenizers` cuts words at random in every call, so neither rows nor the inputs of an exported model
    would be reproducible. Dropout regularizes training and is not meant for the text of a finished model.

    Raises DataError, naming `path`, if the dropout is not a number from 0 to 1.
    """
    content = json.loads(tokenizer_json)
    dropout = content["model"].get("dropout")
    if dropout is None or (_is_number(dropout) and dropout == 0):
        return tokenizer_json, 0.0

    if not _is_number(dropout) or not 0 < dropout <= 1:
        raise DataError(
            f"{path} has model.dropout {dropout!r}, where null or a number from 0 to 1 was expected. Copy the "
            "tokenizer again, or set it to null."
        )

    content["model"]["dropout"] = None
    return (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode(), dropout


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_encoding(tokenizer_json: bytes, vocabulary: Vocabulary, path: str) -> None:
    """Raise DataError, naming the difference, if the encoder and the tokenizer itself disagree on a probe."""
    tokenizer = literal_tokenizer(tokenizer_json)
    encoder = Encoder(tokenizer_json, vocabulary.model)
    reference = AddedTokens(tokenizer_json, vocabulary.model, None)  # passes every sentence to the tokenizer itself

    probes = list(_probes(vocabulary))
    texts = pa.array([text for text, _ in probes], pa.string())
    encoded = encoder.encode(texts)
    expected = reference.encode(texts)

    for i, (text, description) in enumerate(probes):
        ours = _ids_of_string(encoded, i)
        theirs = _ids_of_string(expected, i)
        if ours != theirs:
            raise DataError(
                f"{path}: {TOKENIZER_FILE} encodes {description} in a way that pairs cannot follow: "
                f"{text!r} becomes {_tokens(tokenizer, theirs)}, "
                f"but here {_tokens(tokenizer, ours)}. Remove it from the tokenizer, or "
                "make a vocabulary with `clozeline vocab`."
            )


def _probes(vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    """Yield (text to encode, its description in an error).

    They are plain texts, and every added token alone and next to spaces, letters and punctuation.
    """
    for text in _PLAIN_PROBES:
        yield text, repr(text)

    for token_id in sorted(vocabulary.added):
        token = vocabulary.tokens[token_id]
        in_context = [token, f"a {token} b", f"a{token}b", f"({token}).", f"{token}{token}"]
        for text in [*in_context, token.upper(), token.lower()]:
            yield text, f"its added token {token!r}"


def _ids_of_string(encoded: EncodedStrings, i: int) -> list[int]:
    start = encoded.offsets_N1[i]
    end = encoded.offsets_N1[i + 1]
    return encoded.ids_T[start:end].tolist()


def _tokens(tokenizer: Tokenizer, ids: list[int]) -> list[str | None]:
    return [tokenizer.id_to_token(i) for i in ids]
