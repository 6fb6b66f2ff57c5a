"""Importing Beam without the clients of services that the pipeline never uses.

Beam imports these modules wherever they are installed, and does without them where they are not. They take a third of
the time of the import, in the launcher and in each worker: 0.1 s of CPU for BigQuery, up to 0.8 s for the others.

A program of your own that reads BigQuery, Pub/Sub or MongoDB as well imports `apache_beam` before the pipeline. Beam is
then imported whole.
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
"""The clients of S3 and gs:// in Beam's own file systems (ours are fsspec's), of Dataflow, and of MongoDB; and with
BigQuery, Beam leaves out all other clients of Google Cloud. Dataflow's runner imports what it needs."""


def import_beam() -> None:
    """Import Beam, unless this process has done so. What it logs about packages that it does not find is not shown."""
    hidden = [name for name in UNUSED if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # documented: importing the name fails

    # A package of Beam's asks for the folder of temporary files, which Python would try out by writing a file there:
    # not in a dry run.
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
