"""What is checked and changed in a published tokenizer before pairs are made with it."""

from __future__ import annotations

import json

import pyarrow as pa
from tokenizers import Tokenizer

from pipeline.pairs.added_tokens import AddedTokens, literal_tokenizer
from pipeline.pairs.encoding import Encoder
from schemas.errors import DataError
from schemas.vocabulary import FILE, Vocabulary

_PLAIN_PROBES = [
    "It's a caf\u00e9, isn't it?",
    "\u4e2d\u6587 x 3.14",
    "soft\u00adhyphen zero\u200bwidth",
    "\U0002b820a",
]
"""Text whose rules differ among published tokenizers: accents, ideographs, invisible characters."""


def without_dropout(tokenizer_json: bytes, path: str) -> tuple[bytes, float]:
    """Return (the tokenizer.json with BPE dropout turned off, the dropout that it had; 0.0 if none).

    With dropout, `tokenizers` cuts words at random at every call, which makes neither rows nor an exported model's
    inputs reproducible. It regularizes training and is never meant for a finished model's text.

    Raises DataError, naming `path`, when the dropout is not a share.
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
    """Raise DataError if the encoder and the tokenizer itself disagree on probes, naming what they disagree on.

    The probes are plain text, and every added token alone and next to spaces, letters and punctuation.
    """
    tokenizer = literal_tokenizer(tokenizer_json)
    encoder = Encoder(tokenizer_json, vocabulary.model)
    reference = AddedTokens(tokenizer_json, vocabulary.model, None)  # the tokenizer itself, on any sentence

    probes = [(text, repr(text)) for text in _PLAIN_PROBES]
    for token_id in sorted(vocabulary.added):
        probes += [(text, f"its added token {vocabulary.tokens[token_id]!r}") for text in _around(vocabulary, token_id)]
    texts = pa.array([text for text, _ in probes], pa.string())

    found, expected = encoder.encode(texts), reference.encode(texts)
    for i, (text, what) in enumerate(probes):
        ours = found.ids_T[found.offsets_N1[i] : found.offsets_N1[i + 1]].tolist()
        theirs = expected.ids_T[expected.offsets_N1[i] : expected.offsets_N1[i + 1]].tolist()
        if ours != theirs:
            raise DataError(
                f"{path}: {FILE} encodes {what} in a way that pairs cannot follow: {text!r} becomes "
                f"{_tokens(tokenizer, theirs)}, and here {_tokens(tokenizer, ours)}. Remove it from the tokenizer, or "
                "make a vocabulary with `python -m pipeline vocab`."
            )


def _around(vocabulary: Vocabulary, token_id: int) -> list[str]:
    token = vocabulary.tokens[token_id]
    return [token, f"a {token} b", f"a{token}b", f"({token}).", f"{token}{token}", token.upper(), token.lower()]


def _tokens(tokenizer: Tokenizer, ids: list[int]) -> list[str | None]:
    return [tokenizer.id_to_token(i) for i in ids]
