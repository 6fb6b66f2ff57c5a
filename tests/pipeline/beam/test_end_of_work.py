"""A worker whose launcher ends the connection says nothing of the work that fails for it, and ends."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc

from pipeline.beam import local
from pipeline.environment import WORKER_ENVIRONMENT
from tests.forked import Command

SECONDS = 120


class Launcher(beam_fn_api_pb2_grpc.BeamFnControlServicer):
    """Gives out one bundle. Its descriptor is refused once `refuses` is set; the work ends when `ends` is set."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.refuses = threading.Event()
        self.ends = threading.Event()
        self.answers: queue.Queue[beam_fn_api_pb2.InstructionResponse] = queue.Queue()

    def Control(self, request_iterator, context) -> Any:
        threading.Thread(target=self._read, args=(request_iterator,), daemon=True).start()
        bundle = beam_fn_api_pb2.ProcessBundleRequest(process_bundle_descriptor_id="unknown")
        yield beam_fn_api_pb2.InstructionRequest(instruction_id="bundle_1", process_bundle=bundle)
        self.ends.wait(SECONDS)

    def GetProcessBundleDescriptor(self, request, context) -> Any:
        self.asked.set()
        self.refuses.wait(SECONDS)
        context.abort(grpc.StatusCode.NOT_FOUND, "there is no such descriptor")

    def _read(self, answers) -> None:
        try:
            for answer in answers:
                self.answers.put(answer)
        except grpc.RpcError:
            pass  # the worker is gone


@pytest.fixture
def launcher() -> Iterator[tuple[Launcher, str]]:
    """A launcher and its address."""
    service = Launcher()
    server = grpc.server(ThreadPoolExecutor(8))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    beam_fn_api_pb2_grpc.add_BeamFnControlServicer_to_server(service, server)
    server.start()
    try:
        yield service, address
    finally:
        service.refuses.set()
        service.ends.set()
        server.stop(0)


LOCAL_WORKER = f"""
import os
from pipeline.beam import local
os.environ["{local.LAUNCHER}"] = str(os.getppid())
local.main()
"""


def start_worker(address: str) -> Command:
    """A worker of the local runner. One of an engine is the same once it knows the address."""
    words = ["python", "-m", "tests.run_code", LOCAL_WORKER]
    variables = {"CONTROL_API_SERVICE_DESCRIPTOR": f'url: "{address}"', "WORKER_ID": "1", local.ATTEMPT: os.devnull}
    return Command(words, os.environ | WORKER_ENVIRONMENT | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_work_that_fails_after_its_end_is_not_told(launcher: tuple[Launcher, str]) -> None:
    service, address = launcher
    worker = start_worker(address)
    assert service.asked.wait(SECONDS)

    service.ends.set()
    service.refuses.set()
    told, _ = worker.communicate(timeout=SECONDS)
    assert "Traceback" not in told


def test_work_that_fails_before_its_end_is_told(launcher: tuple[Launcher, str]) -> None:
    service, address = launcher
    worker = start_worker(address)
    assert service.asked.wait(SECONDS)

    service.refuses.set()
    answer = service.answers.get(timeout=SECONDS)
    assert "there is no such descriptor" in answer.error
    service.ends.set()
    told, _ = worker.communicate(timeout=SECONDS)
    assert "there is no such descriptor" in told
