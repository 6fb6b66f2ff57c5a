"""`clozeline worker`: the Python side of an engine's workers, on machines with Clozeline.

    --environment_type PROCESS      the engine starts `clozeline-worker --id ... --provision_endpoint ...`
    a container's entry point       the same
    --environment_type EXTERNAL     a pool waits for the engine: `clozeline worker --pool --port 50000`

A worker does what the boot program of Beam's containers does. The engine gives it an id and the address of its
provision service, which supplies the rest: the control and logging addresses, and the job's options. Packages that come
with a job (--setup_file, --extra_package) are not installed.

A pool imports Beam and the pipeline once and forks a worker in a few milliseconds, whereas a PROCESS worker takes
seconds to start. It has three kinds of processes: the pool, which speaks gRPC with the engine; the fork server of
multiprocessing, which has imported everything and has no threads, so that forking it is safe; and the workers, forked
from the latter. Workers end when their engine has no more work or is gone, and when their pool ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pkgutil
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from queue import SimpleQueue
from typing import Any

from pipeline.beam import internals
from pipeline.beam.stop_signals import SIGNALS
from pipeline.environment import look_for_cycles_seldom, set_in_environment
from pipeline.processes import end_with_parent
from schemas.command_line import CommandParser, positive, run, unknown_flags
from schemas.errors import INTERRUPTED, UsageError

DEFAULT_PORT = 50000  # as in the examples of Beam and Flink
PROVISION_SECONDS = 60.0
REQUESTS = 8  # that a pool handles at a time


def main(arguments: list[str] | None = None, prog: str = "clozeline-worker") -> int:
    """Run a worker, or a pool of workers, to its end and return the exit code of the process."""
    words = sys.argv[1:] if arguments is None else arguments
    return run(lambda: _serve_or_work(words, prog))


def _serve_or_work(words: list[str], prog: str) -> int:
    flags = parser(prog)
    parsed, unknown = flags.parse_known_args(words)  # engines may pass flags that are unknown here
    if parsed.pool and unknown:
        raise unknown_flags(unknown, flags.known_flags)

    # C libraries read these variables when a process starts, so start the process again with them.
    if set_in_environment(os.environ):
        os.execv(sys.executable, [sys.executable, "-m", "pipeline.beam.workers", *words])

    look_for_cycles_seldom()
    internals.import_beam()
    if parsed.pool:
        return serve(parsed.host, parsed.port)
    work(Endpoints(parsed.id, parsed.provision_endpoint, parsed.control_endpoint, parsed.logging_endpoint))
    return 0


def parser(prog: str) -> CommandParser:
    flags = CommandParser(
        prog,
        "Run the Python side of an engine's workers, on a machine where Clozeline is installed.",
        [f"{prog} --pool --port 50000", f"{prog} --pool --host 0.0.0.0 --port 50000"],
        "0 done, 2 usage or configuration, 130 interrupted",
    )
    pool = flags.add_argument_group("a pool that waits for engines")
    pool.add_argument("--pool", action="store_true", help="wait for an engine and start a worker for each request")
    what = "for --environment_type EXTERNAL --environment_config HOST:PORT"
    pool.add_argument("--port", type=positive, default=DEFAULT_PORT, metavar="N", help=what)
    what = "address that the pool listens at; whoever reaches it can run code here"
    pool.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help=what)

    worker = flags.add_argument_group("given by the engine that starts a worker")
    worker.add_argument("--id", default="", metavar="NAME")
    for name in ("provision_endpoint", "control_endpoint", "logging_endpoint"):
        worker.add_argument(f"--{name}", default="", metavar="ADDRESS")
    return flags


@dataclass(frozen=True)
class Endpoints:
    """What an engine gives to a worker that it starts: the worker's id and addresses, as HOST:PORT or empty."""

    id: str
    provision: str
    control: str
    logging: str


def work(given: Endpoints) -> None:
    """Work for an engine until it has no more work or is gone, then end the process.

    Raises UsageError if no engine started this process, or if the engine does not answer.
    """
    if not given.provision and not given.control:
        raise UsageError(
            "A worker is started by an engine, which gives --id and --provision_endpoint. To start a pool of workers "
            "that an engine can use, give --pool."
        )
    os.environ.update(_worker_variables(given))
    look_for_cycles_seldom()
    internals.run_worker([])

    # All results have been sent. Tearing down the interpreter would keep the engine waiting for half a second.
    os._exit(0)


def _worker_variables(given: Endpoints) -> dict[str, str]:
    """Return the environment variables that Beam's worker reads. Raises UsageError when the engine does not answer."""
    from google.protobuf import json_format

    variables = {"WORKER_ID": given.id}
    addresses = {"CONTROL": given.control, "LOGGING": given.logging}

    if given.provision:
        info = _provision_info(given)
        addresses["CONTROL"] = info.control_endpoint.url or given.control
        addresses["LOGGING"] = info.logging_endpoint.url or given.logging
        addresses["STATUS"] = info.status_endpoint.url
        variables["PIPELINE_OPTIONS"] = json_format.MessageToJson(info.pipeline_options)
        variables["RUNNER_CAPABILITIES"] = " ".join(info.runner_capabilities)

    # Beam's worker parses the text form of a protobuf ApiServiceDescriptor.
    for name, address in addresses.items():
        if address:
            variables[f"{name}_API_SERVICE_DESCRIPTOR"] = f'url: "{address}"'
    return variables


def _provision_info(given: Endpoints) -> Any:
    import grpc
    from apache_beam.portability.api import beam_provision_api_pb2, beam_provision_api_pb2_grpc

    with grpc.insecure_channel(given.provision) as channel:
        service = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel)
        request = beam_provision_api_pb2.GetProvisionInfoRequest()
        metadata = [("worker_id", given.id)]
        try:
            answer = service.GetProvisionInfo(
                request, metadata=metadata, timeout=PROVISION_SECONDS, wait_for_ready=True
            )
        except grpc.RpcError as error:
            raise UsageError(
                f"The engine does not answer at --provision_endpoint {given.provision} ({error.code().name}). "
                "Check that this machine reaches it."
            ) from error
    return answer.info


def serve(host: str, port: int) -> int:
    """Start workers on request at the address until a signal ends the pool. Returns the exit code.

    Raises UsageError when the address cannot be used.
    """
    # Not an Event: a signal that arrives during `wait` may find the Event's lock taken, and its handler would wait
    # forever.
    signals: SimpleQueue[int] = SimpleQueue()
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` starts a command with SIGHUP ignored
            signal.signal(number, lambda number, _: signals.put(number))

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(preloaded())
    server = _listen(host, port, WorkerPool(context))

    first = context.Process(target=_do_nothing)  # has the fork server import everything now
    first.start()
    first.join()

    address = f"{host}:{port}"
    print(
        f"clozeline: workers wait at {address}. Use them with --environment_type EXTERNAL --environment_config "
        f"{address}",
        file=sys.stderr,
        flush=True,
    )
    received = signals.get()
    server.stop(0)
    return INTERRUPTED if received == signal.SIGINT else 0  # multiprocessing ends the workers, which are daemons


def preloaded() -> list[str]:
    """Return the modules that workers need and a pool imports once: Beam, and all jobs with their graphs."""
    from pipeline import jobs

    graphs = [module.name for module in pkgutil.iter_modules(jobs.__path__, "pipeline.jobs.")]
    return [internals.WORKER_MODULE, *graphs]


def _listen(host: str, port: int, pool: WorkerPool) -> Any:
    import grpc
    from apache_beam.portability.api import beam_fn_api_pb2_grpc

    # Without the first option two pools could share a port, and each would get some of the requests.
    options = [("grpc.so_reuseport", 0), ("grpc.http2.max_pings_without_data", 0), ("grpc.http2.max_ping_strikes", 0)]
    server = grpc.server(ThreadPoolExecutor(REQUESTS), options=options)
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(pool, server)
    try:
        # gRPC prints its own messages when it cannot listen, so a plain socket tries first.
        family, *_, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        socket.create_server(address[:2], family=family).close()
        server.add_insecure_port(f"{host}:{port}")
    except (RuntimeError, OSError, OverflowError) as error:
        raise UsageError(
            f"The pool cannot listen at {host}:{port}: the port is in use, or the address is not this machine's. Give "
            "another --port or --host."
        ) from error
    server.start()
    return server


@dataclass(frozen=True)
class WorkerPool:
    """The service that engines call: a BeamFnExternalWorkerPoolServicer. Requests arrive in several threads."""

    context: ForkServerContext

    def StartWorker(self, request: Any, context: object) -> Any:
        """Start a worker. A failure is reported in the response."""
        from apache_beam.portability.api import beam_fn_api_pb2

        endpoints = Endpoints(
            request.worker_id,
            request.provision_endpoint.url,
            request.control_endpoint.url,
            request.logging_endpoint.url,
        )
        try:
            self.context.Process(target=_run_worker, args=(endpoints,), name=endpoints.id, daemon=True).start()
        except OSError as error:
            return beam_fn_api_pb2.StartWorkerResponse(error=f"No worker could be started: {error}")
        return beam_fn_api_pb2.StartWorkerResponse()

    def StopWorker(self, request: Any, context: object) -> Any:
        """Stop a worker, unless its id is ambiguous: ids are unique only within a process of an engine.

        Any worker ends by itself once its engine is gone.
        """
        from apache_beam.portability.api import beam_fn_api_pb2

        named = [worker for worker in multiprocessing.active_children() if worker.name == request.worker_id]
        if len(named) == 1:
            named[0].terminate()
        return beam_fn_api_pb2.StopWorkerResponse()


def _do_nothing() -> None:
    pass


def _run_worker(endpoints: Endpoints) -> None:
    """Run a worker in the forked process, and end when the pool does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the pool, which ends its workers
    end_with_parent()
    with contextlib.suppress(UsageError):  # the engine was gone before it could be asked for the job
        work(endpoints)


if __name__ == "__main__":
    sys.exit(main())
