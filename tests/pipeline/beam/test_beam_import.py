"""What a job imports of Beam. Each test has its own process, because a process imports Beam once."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def run_python(program: str) -> str:
    """Run a program in a new process and return what it prints."""
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_job_does_not_load_clients_of_services_that_it_never_uses() -> None:
    printed = run_python(
        """
        import sys
        import pipeline.jobs.shard

        heavy = ("boto3", "bson", "pymongo", "google.cloud.storage", "google.cloud.dataflow")
        heavy += ("apache_beam.io.gcp.bigquery", "apache_beam.io.gcp.pubsub")
        print([name for name in heavy if name in sys.modules])

        # What was hidden from Beam is there for everyone else.
        import apache_beam.io.gcp.bigquery
        print(apache_beam.io.gcp.bigquery.ReadFromBigQuery.__name__)
        """
    )
    assert printed.splitlines() == ["[]", "ReadFromBigQuery"]


def test_a_program_that_imports_beam_first_has_all_of_it() -> None:
    printed = run_python(
        """
        import apache_beam
        import pipeline.jobs.shard

        print(apache_beam.io.ReadFromBigQuery.__name__)
        """
    )
    assert printed == "ReadFromBigQuery"
