"""Training for tries that need a run."""

from tests.trainer.conftest import training

__all__ = ["training"]
