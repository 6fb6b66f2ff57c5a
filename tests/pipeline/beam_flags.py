"""Beam's options as a job makes them from its flags."""

from __future__ import annotations

from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.runtime.launch import parse_flags
from pipeline.runtime.runner import beam_options


def options_of(flags: list[str]) -> PipelineOptions:
    """Return the options of a job with an empty input."""
    return beam_options(parse_flags(flags), flags, 0)
