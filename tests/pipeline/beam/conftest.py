"""A pool of workers that jobs on an engine can use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pipeline.beam.servers import Pool, running_pool


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A running pool, which tests share."""
    with running_pool(tmp_path_factory.mktemp("pool")) as made:
        yield made
