"""Runs one engine worker in this process, as the boot program of Beam's containers does.

The engine gives the worker an id and the address of its provision service, which supplies the rest: the control and
logging addresses, and the job's options. Packages that come with a job (--setup_file, --extra_package) are not
installed.
"""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass

import grpc
from apache_beam.portability.api import beam_provision_api_pb2, beam_provision_api_pb2_grpc
from google.protobuf import json_format

from pipeline.runtime import beam_internals
from schemas.errors import UsageError

PROVISION_SECONDS = 60.0


@dataclass(frozen=True)
class Endpoints:
    """What an engine gives to a worker that it starts: the worker's id and addresses, as HOST:PORT or empty."""

    id: str
    provision_endpoint: str
    control_endpoint: str
    logging_endpoint: str
    artifact_endpoint: str


def work(given: Endpoints) -> None:
    """Work for an engine until it has no more work or is gone, then end the process.

    Raises UsageError if no engine started this process, or if the engine does not answer.
    """
    if not given.provision_endpoint and not given.control_endpoint:
        raise UsageError(
            "A worker is started by an engine, which gives --id and --provision_endpoint. To start a pool of workers "
            "that an engine can use, give --pool."
        )
    os.environ.update(worker_variables(given))

    # A run holds millions of strings and no reference cycles; looking for cycles more often costs 5% of the time.
    gc.set_threshold(100_000, 50, 50)
    beam_internals.run_worker([])

    # All results have been sent. Tearing down the interpreter would keep the engine waiting for half a second.
    os._exit(0)


def worker_variables(given: Endpoints) -> dict[str, str]:
    """Return the environment variables that Beam's worker reads. Raises UsageError when the engine does not answer."""
    variables = {"WORKER_ID": given.id}
    control = given.control_endpoint
    logging = given.logging_endpoint

    if given.provision_endpoint:
        info = _provision_info(given)
        control = info.control_endpoint.url or control
        logging = info.logging_endpoint.url or logging
        variables["PIPELINE_OPTIONS"] = json_format.MessageToJson(info.pipeline_options)
        variables["RUNNER_CAPABILITIES"] = " ".join(info.runner_capabilities)
        if info.status_endpoint.url:
            variables["STATUS_API_SERVICE_DESCRIPTOR"] = _descriptor(info.status_endpoint.url)

    variables["CONTROL_API_SERVICE_DESCRIPTOR"] = _descriptor(control)
    if logging:
        variables["LOGGING_API_SERVICE_DESCRIPTOR"] = _descriptor(logging)
    return variables


def _provision_info(given: Endpoints) -> beam_provision_api_pb2.ProvisionInfo:
    with grpc.insecure_channel(given.provision_endpoint) as channel:
        service = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel)
        request = beam_provision_api_pb2.GetProvisionInfoRequest()
        try:
            answer = service.GetProvisionInfo(
                request,
                metadata=[("worker_id", given.id)],
                timeout=PROVISION_SECONDS,
                wait_for_ready=True,
            )
        except grpc.RpcError as error:
            raise UsageError(
                f"The engine does not answer at --provision_endpoint {given.provision_endpoint} ({error.code().name}). "
                "Check that this machine reaches it."
            ) from error
    return answer.info


def _descriptor(address: str) -> str:
    """Return an address as the text form of a protobuf ApiServiceDescriptor, which Beam's worker parses."""
    return f'url: "{address}"'
