"""Imports Beam without the client libraries of services that the pipeline never uses.

Beam imports these modules if they are installed and works without them if they are not. They take a third of Beam's
import time, in the launcher and in every worker: 0.1 s of CPU for BigQuery, up to 0.8 s for the others.

If your own program also reads BigQuery, Pub/Sub or MongoDB, import `apache_beam` before the pipeline; Beam is then
imported in full.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile

UNUSED = (
    "boto3",
    "apache_beam.io.gcp.gcsio",
    "apache_beam.io.gcp.bigquery",
    "google.cloud.dataflow",
    "pymongo",
    "bson",
)
"""Modules that are hidden during the import: the clients of Beam's own S3 and gs:// file systems (we use fsspec's), of
Dataflow, and of MongoDB. Without BigQuery, Beam also skips every other Google Cloud client. The Dataflow runner later
imports what it needs."""


def import_beam() -> None:
    """Import Beam unless this process already has. Its warnings about missing packages are not shown."""
    hidden = [name for name in UNUSED if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # documented: a None entry makes importing the name fail

    # One of Beam's packages asks for the temporary folder, and Python finds it by writing a test file to each
    # candidate. A dry run must write nothing, so name the folder first.
    folder = tempfile.tempdir
    tempfile.tempdir = folder or os.environ.get("TMPDIR", "/tmp")

    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        import apache_beam  # noqa: F401
    finally:
        logging.disable(previous)
        tempfile.tempdir = folder
        for name in hidden:
            sys.modules.pop(name, None)
