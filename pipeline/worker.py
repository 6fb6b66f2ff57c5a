"""`python -m pipeline.worker`: the Python side of an engine's workers, on machines with Clozeline.

    --environment_type PROCESS      the engine starts `python -m pipeline.worker --id ... --provision_endpoint ...`
    a container's entry point       the same
    --environment_type EXTERNAL     a pool waits for the engine: `python -m pipeline.worker --pool --port 50000`

A pool imports Beam and the pipeline once and forks a worker in a few milliseconds, whereas a PROCESS worker takes
seconds to start. Workers end when their engine has no more work or is gone, and when their pool ends.
"""

from __future__ import annotations

import os
import sys

from pipeline.flags import positive
from pipeline.runtime.beam_import import import_beam
from pipeline.runtime.worker_environment import look_for_cycles_seldom, set_in_environment
from schemas.errors import ClozelineError
from schemas.terminal import OneLineParser

DEFAULT_PORT = 50000  # as in the examples of Beam and Flink

ENDPOINTS = ("id", "provision_endpoint", "control_endpoint", "logging_endpoint", "artifact_endpoint")
"""Flags that engines give each worker."""


def main(arguments: list[str] | None = None, prog: str = "python -m pipeline.worker") -> int:
    """Run a worker, or a pool of workers, to its end and return the exit code of the process."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        parsed, _ = _parser(prog).parse_known_args(words)  # engines may pass flags that are unknown here

        # C libraries read these variables when a process starts, so start the process again with them.
        if set_in_environment(os.environ):
            os.execv(sys.executable, [sys.executable, "-m", "pipeline.worker", *words])

        look_for_cycles_seldom()
        import_beam()
        if parsed.pool:
            from pipeline.runtime.worker_pool import serve

            return serve(parsed.host, parsed.port)

        from pipeline.runtime.engine_worker import Endpoints, work

        work(Endpoints(**{name: getattr(parsed, name) for name in ENDPOINTS}))
    except ClozelineError as error:
        print(f"clozeline: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser(prog: str) -> OneLineParser:
    parser = OneLineParser(
        prog=prog,
        description="The Python side of an engine's workers, where Clozeline is installed.",
        allow_abbrev=False,
    )
    parser.add_argument("--pool", action="store_true", help="wait for an engine and start a worker for each request")
    parser.add_argument(
        "--port",
        type=positive,
        default=DEFAULT_PORT,
        help="of the pool: for --environment_type EXTERNAL --environment_config HOST:PORT (default: %(default)s)",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address that the pool listens at. Whoever reaches it can run code here (default: %(default)s)",
    )
    for name in ENDPOINTS:
        parser.add_argument(f"--{name}", default="", help="given by the engine that starts the worker")
    return parser


if __name__ == "__main__":
    sys.exit(main())
