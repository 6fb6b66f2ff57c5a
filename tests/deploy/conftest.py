"""Engines, as in the tests of the pipeline, and trainings, as in those of the trainer."""

from tests.pipeline.conftest import beam_job_service
from tests.pipeline.engines.conftest import engines, pool
from tests.trainer.conftest import training

__all__ = ["beam_job_service", "engines", "pool", "training"]
