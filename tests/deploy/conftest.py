"""Beam's job service, as in the tests of the pipeline."""

from tests.pipeline.conftest import beam_job_service

__all__ = ["beam_job_service"]
