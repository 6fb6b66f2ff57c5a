"""For what only displays a run (report, model card, TensorBoard): keeps the run going if it fails; formats values."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

from trainer.config.sections import BERT_REPLACEMENT, HELD_OUT_PROB
from trainer.logs import logger
from trainer.models.families import FAMILIES


@contextlib.contextmanager
def keep_running(what: str, errors: type[Exception] | tuple[type[Exception], ...] = Exception) -> Iterator[None]:
    """Log one line instead of raising one of `errors` if the block fails to write `what`.

    Nothing is lost: metrics.jsonl and the checkpoints hold everything that is displayed elsewhere, and a line that
    metrics.jsonl lacks is written with a later one once there is room again.
    """
    try:
        yield
    except errors as error:
        logger.info(
            "%s could not be written (%s: %s). Nothing else is affected.",
            what,
            type(error).__name__,
            error,
        )


def shown_path(path: str) -> str:
    """Return a path as a page shows it, since pages are shared: the last two parts, or a URL without credentials."""
    if "://" in path:
        url = urlsplit(path)
        return url._replace(netloc=url.netloc.rpartition("@")[2], query="", fragment="").geturl()
    return "/".join(PurePath(path).parts[1:][-2:]) if PurePath(path).is_absolute() else path


def shown_name(path: str) -> str:
    """Return the name of a folder or URL with that of its parent, since many runs lie in a folder called run."""
    absolute = path if "://" in path else os.path.abspath(path)
    return "/".join(PurePath(shown_path(absolute)).parts[-2:])


def masks_note(recipe: dict[str, Any]) -> str:
    """Return a sentence if a run hides other tokens than its evaluations do; empty for one that masks none."""
    model, masking = recipe.get("model", {}), recipe.get("masking", {})
    family = FAMILIES.get(model.get("family", ""))
    is_masked = recipe.get("objective", {}).get("kind", "mlm") == "mlm" and not (family and family.two_streams)
    shares = [masking[key] for key in ("prob", "final_prob") if masking.get(key) is not None] or [HELD_OUT_PROB]
    replacement = masking.get("replacement", BERT_REPLACEMENT)
    if not is_masked or (set(shares), replacement) == ({HELD_OUT_PROB}, BERT_REPLACEMENT):
        return ""
    return (
        f"Held-out rows hide {HELD_OUT_PROB:.0%} of the tokens (80% behind [MASK], 10% behind another token, 10% as "
        f"they are), training hides {' to '.join(f'{share:.0%}' for share in shares)} ({replacement}): the figures of "
        "the two do not compare."
    )


def three_digits(number: float) -> str:
    """Return a number with three significant digits. Example: `three_digits(11779.5)` -> `"11,800"`."""
    return f"{float(f'{number:.3g}'):,g}"


def duration(seconds: float) -> str:
    """Return seconds as text in at most two units. Example: `duration(3725)` -> `"1 h 2 min"`."""
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    if hours > 0:
        return f"{hours:,} h {minutes_left} min"
    if minutes > 0:
        return f"{minutes} min {seconds_left} s"
    return f"{seconds_left} s"


def or_dash(value: float | None, text_of: Callable[[float], str]) -> str:
    """Return a number as `text_of` formats it, or "-" if it is missing or not finite."""
    if value is None or not isfinite(value):
        return "-"
    return text_of(value)
