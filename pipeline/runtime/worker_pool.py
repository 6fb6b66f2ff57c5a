"""A pool of workers for engines (EXTERNAL): it listens at an address and forks a worker for each request.

Three kinds of processes: the pool, which speaks gRPC with the engine; the fork server of multiprocessing, which has
imported Beam and the pipeline and has no threads, so that forking it is safe; and the workers, forked from the latter.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import pkgutil
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from queue import SimpleQueue

import grpc
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc

from pipeline import jobs
from pipeline.runtime.engine_worker import Endpoints, work
from schemas.errors import UsageError

PRELOADED = [
    "pipeline.jobs",  # which imports Beam
    "apache_beam.runners.worker.sdk_worker_main",
    "pipeline.runtime.engine_worker",
    *(module.name for module in pkgutil.iter_modules(jobs.__path__, "pipeline.jobs.")),
]
"""What workers need, imported once: Beam, and all jobs. A worker imports the rest when it needs it."""

STOP_SECONDS = 10.0  # for a worker to end by itself
REQUESTS = 8  # handled at a time
INTERRUPTED = 130
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve(host: str, port: int) -> int:
    """Start workers on request at the address until a signal ends the pool. Returns the exit code.

    Raises UsageError when the address cannot be used.
    """
    # Not an Event: a signal that arrives during `wait` may find the Event's lock taken, and its handler would wait
    # forever.
    signals: SimpleQueue[int] = SimpleQueue()

    def stop(number: int, frame: object) -> None:
        signals.put(number)

    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` starts a command with SIGHUP ignored
            signal.signal(number, stop)

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    pool = WorkerPool(context)
    server = _listen(host, port, pool)

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
    pool.stop_all()
    return INTERRUPTED if received == signal.SIGINT else 0


def _listen(host: str, port: int, pool: WorkerPool) -> grpc.Server:
    # Without this option two pools could share a port, and each would get some of the requests.
    options = [("grpc.so_reuseport", 0), ("grpc.http2.max_pings_without_data", 0), ("grpc.http2.max_ping_strikes", 0)]
    server = grpc.server(ThreadPoolExecutor(REQUESTS), options=options)
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(pool, server)
    try:
        _try_address(host, port)  # before gRPC does, which prints its own messages when it fails
        server.add_insecure_port(f"{host}:{port}")
    except (RuntimeError, OSError, OverflowError) as error:
        raise UsageError(
            f"The pool cannot listen at {host}:{port}: the port is in use, or the address is not this machine's. Give "
            "another --port or --host."
        ) from error
    server.start()
    return server


def _try_address(host: str, port: int) -> None:
    """Raise OSError if no socket can listen at an address, or if another program already does.

    A name may stand for several addresses, of which some do not exist on this machine.
    """
    refused = []
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                # Like gRPC: remaining connections of a pool that has just ended do not block the address.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
            refused.append(error)
    if len(refused) == len(found):
        raise refused[0]


@dataclass
class WorkerPool(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):
    """The service that engines call. Requests arrive in several threads.

    workers: by id. Ids are unique only within an engine process, so two TaskManagers may use the same id.
    """

    context: ForkServerContext
    workers: dict[str, list[BaseProcess]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def StartWorker(
        self, request: beam_fn_api_pb2.StartWorkerRequest, context: object
    ) -> beam_fn_api_pb2.StartWorkerResponse:
        """Start a worker. A failure is reported in the response."""
        endpoints = Endpoints(
            id=request.worker_id,
            provision_endpoint=request.provision_endpoint.url,
            control_endpoint=request.control_endpoint.url,
            logging_endpoint=request.logging_endpoint.url,
            artifact_endpoint=request.artifact_endpoint.url,
        )
        try:
            worker = self.context.Process(target=_run_worker, args=(endpoints,), name=f"worker {endpoints.id}")
            worker.start()
        except OSError as error:
            return beam_fn_api_pb2.StartWorkerResponse(error=f"No worker could be started: {error}")

        with self.lock:
            self.workers.setdefault(endpoints.id, []).append(worker)
        return beam_fn_api_pb2.StartWorkerResponse()

    def StopWorker(
        self, request: beam_fn_api_pb2.StopWorkerRequest, context: object
    ) -> beam_fn_api_pb2.StopWorkerResponse:
        """Stop a worker, unless its id is ambiguous. Any worker ends by itself once its engine is gone."""
        with self.lock:
            named = self.workers.pop(request.worker_id, [])
            # Several live workers may have this id: forget one that has ended, and stop none.
            if len(named) > 1:
                ended = [worker for worker in named if not worker.is_alive()]
                for worker in ended[:1]:
                    named.remove(worker)
                self.workers[request.worker_id] = named
                named = []

        _stop(named)
        return beam_fn_api_pb2.StopWorkerResponse()

    def stop_all(self) -> None:
        """Stop every worker."""
        with self.lock:
            workers = [worker for named in self.workers.values() for worker in named]
            self.workers.clear()
        _stop(workers)


def _stop(workers: list[BaseProcess]) -> None:
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join(STOP_SECONDS)
        if worker.is_alive():
            worker.kill()


def _do_nothing() -> None:
    pass


def _run_worker(endpoints: Endpoints) -> None:
    """Run a worker in the forked process, and end when the pool does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the pool, which stops its workers
    threading.Thread(target=_end_with_pool, name="pool watch", daemon=True).start()
    with contextlib.suppress(UsageError):  # the engine was gone before it could be asked for the job
        work(endpoints)


def _end_with_pool() -> None:
    # The fork server, which forked this process, lives as long as any of its children. `parent_process` is the pool.
    pool = multiprocessing.parent_process()
    if pool is not None:
        pool.join()
        os._exit(1)
