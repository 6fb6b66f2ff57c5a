"""Flags that several jobs have, as fields of their options (see flags.py)."""

from __future__ import annotations

from typing import Any

from pipeline.flags import OneOf, folder, option, switch


def output_flag() -> Any:
    """Return the field of --output."""
    return option(help="folder to write, local or a URL (s3://, gs://)", check=folder, recorded=False)


def text_flag() -> Any:
    """Return the field of --text."""
    return option(help="folder written by shard", check=folder, recorded=False)


def shuffle_flag(what: str) -> Any:
    """Return the field of --shuffle. `what` is brought together."""
    return option(
        "auto",
        check=OneOf(("auto", "files", "merged", "service")),
        help=f"how {what}: in files, in files that are merged first, or by the engine's own shuffle; auto decides by "
        "the runner",
        recorded=False,
    )


def overwrite_flag() -> Any:
    """Return the field of --overwrite."""
    return switch(
        help="replace a finished result, which is kept until the new one is ready",
        recorded=False,
    )
