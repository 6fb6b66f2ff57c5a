"""Workers for engines: how they are started by hand, and when a pool and its workers end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc, endpoints_pb2

from pipeline.beam.workers import preloaded
from pipeline.environment import WORKER_ENVIRONMENT
from tests.pipeline.beam.servers import Pool, running_pool
from tests.ports import free_port
from tests.processes import SECONDS, wait_for


def test_a_worker_without_an_engine_says_what_to_do(run) -> None:
    done = run("clozeline", "worker", timeout=SECONDS)
    assert done.returncode == 2
    assert "--pool" in done.stderr and "Traceback" not in done.stderr


def test_a_pool_refuses_a_misspelled_flag(run) -> None:
    done = run("clozeline", "worker", "--pool", "--prot", "50001", timeout=SECONDS)
    assert done.returncode == 2 and "Unknown flag --prot. Did you mean --port?" in done.stderr


def test_a_pool_preloads_the_graph_of_every_job() -> None:
    jobs = {f"pipeline.jobs.{command}" for command in ("shard", "vocab", "counts", "pairs")}
    assert jobs <= set(preloaded())


@pytest.fixture
def control() -> Iterator[str]:
    """The address of an engine that accepts connections and gives no work."""
    from concurrent.futures import ThreadPoolExecutor

    server = grpc.server(ThreadPoolExecutor(4))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0)


def start_worker(address: str, name: str, control: str) -> None:
    endpoint = endpoints_pb2.ApiServiceDescriptor(url=control)
    request = beam_fn_api_pb2.StartWorkerRequest(worker_id=name, provision_endpoint=endpoint)
    with grpc.insecure_channel(address) as channel:
        answer = beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel).StartWorker(request, timeout=SECONDS)
    assert not answer.error


def stop_worker(address: str, name: str) -> None:
    with grpc.insecure_channel(address) as channel:
        stub = beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel)
        stub.StopWorker(beam_fn_api_pb2.StopWorkerRequest(worker_id=name), timeout=SECONDS)


def below(pool: Pool) -> list[psutil.Process]:
    return psutil.Process(pool.process.pid).children(recursive=True)


def test_a_worker_that_no_engine_answers_ends_and_the_pool_goes_on(pool: Pool, control: str) -> None:
    before = set(below(pool))
    start_worker(pool.address, "1-1", control)
    wait_for(lambda: before.issuperset(below(pool)), "the worker did not end")
    stop_worker(pool.address, "1-1")
    assert pool.process.poll() is None


def test_workers_have_the_environment_of_local_ones(pool: Pool) -> None:
    environment = psutil.Process(pool.process.pid).environ()
    assert {name: environment.get(name) for name in WORKER_ENVIRONMENT} == WORKER_ENVIRONMENT


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.thorough), (signal.SIGKILL, -9)],
)
def test_the_processes_of_a_pool_end_with_it(tmp_path: Path, number: signal.Signals, code: int) -> None:
    silent = f"127.0.0.1:{free_port()}"  # an engine that is not there yet; workers wait for it
    with running_pool(tmp_path) as pool:
        for name in ("1-1", "2-1"):
            start_worker(pool.address, name, silent)
        family = below(pool)
        assert len(family) >= 3, pool.log.read_text()

        pool.process.send_signal(number)
        assert pool.process.wait(timeout=SECONDS) == code
        _, alive = psutil.wait_procs(family, timeout=15)
    assert not alive, pool.log.read_text()
    assert "Traceback" not in pool.log.read_text()


def test_two_pools_do_not_share_a_port(pool: Pool, run) -> None:
    port = pool.address.rpartition(":")[2]
    done = run("python", "-m", "pipeline.beam.workers", "--pool", "--port", port, timeout=SECONDS)
    assert done.returncode == 2
    assert "the port is in use" in done.stderr
    assert done.stderr.startswith("clozeline: ") and done.stderr.count("\n") == 1, done.stderr
