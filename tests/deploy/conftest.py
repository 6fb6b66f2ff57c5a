"""Engines, as in the tests of the pipeline."""

from tests.pipeline.conftest import beam_job_service
from tests.pipeline.engines.conftest import engines, pool

__all__ = ["beam_job_service", "engines", "pool"]
