"""Names of runners, and Beam's options that follow from the runner unless the user gives them."""

from __future__ import annotations

import pytest
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, SetupOptions

from pipeline.beam.causes import explain
from pipeline.beam.engines import JOB_SERVER_TIMEOUT, KEEP_WORKERS_MILLIS
from pipeline.beam.internals import full_name
from schemas.errors import UsageError
from tests.pipeline.beam_flags import options_of

NAMES = {"flink": "FlinkRunner", "FLINKRUNNER": "FlinkRunner", "Spark": "SparkRunner", "prismRunner": "PrismRunner"}
NAMES |= {"dataflow": "DataflowRunner", "fnapi": "FnApiRunner", "some.module.Runner": "some.module.Runner"}


@pytest.mark.parametrize(("written", "expected"), NAMES.items())
def test_a_runner_is_known_by_its_plain_name(written: str, expected: str) -> None:
    assert full_name(written) == expected


def test_an_unknown_runner_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"--runner FlinkRuner is unknown. Did you mean FlinkRunner\?"):
        options_of(["--runner", "FlinkRuner"])


def test_the_value_of_an_unknown_flag_is_not_named_as_well() -> None:
    with pytest.raises(UsageError) as raised:
        options_of(["--runner=flink", "--paralelism", "3"])
    assert str(raised.value) == "Unknown flag --paralelism. Did you mean --parallelism?"


def portable(*flags: str) -> PortableOptions:
    return options_of(list(flags)).view_as(PortableOptions)


HERE = [
    ["--runner=portable", "--job_endpoint=localhost:8099"],
    ["--runner=flink", "--job_endpoint=127.0.0.1:8099"],
    ["--runner=flink", "--flink_master=http://localhost:8081"],
    ["--runner=flink"],
    ["--runner=spark"],
    ["--runner=spark", "--spark_master_url=spark://localhost:7077"],
    ["--runner=prism"],
]


@pytest.mark.parametrize("flags", HERE, ids=" ".join)
def test_an_engine_on_this_machine_gets_workers_in_the_launcher(flags: list[str]) -> None:
    options = portable(*flags)
    assert options.environment_type == "LOOPBACK"
    assert options.environment_cache_millis == KEEP_WORKERS_MILLIS
    assert options.job_server_timeout == JOB_SERVER_TIMEOUT


def test_flags_that_the_user_gives_win() -> None:
    given = ["--environment_cache_millis=5", "--job-server-timeout=7", "--environment_type", "PROCESS"]
    options = portable("--runner=prism", *given, '--environment_config={"command": "x"}')
    assert options.environment_type == "PROCESS"
    assert options.environment_config == '{"command": "x"}'
    assert int(options.environment_cache_millis) == 5
    assert options.job_server_timeout == 7

    options = options_of(["--runner=prism", "--save_main_session"])
    assert options.view_as(SetupOptions).save_main_session is True


def test_local_jobs_keep_beams_options() -> None:
    found = options_of([]).view_as(PortableOptions)
    default = PipelineOptions([]).view_as(PortableOptions)
    assert found.environment_type == default.environment_type
    assert found.job_server_timeout == default.job_server_timeout


@pytest.mark.parametrize("address", ["--job_endpoint=far:8099", "--flink_master=far:8081"])
def test_containers_without_clozeline_are_refused(address: str) -> None:
    with pytest.raises(UsageError, match=r"EXTERNAL.*PROCESS.*DOCKER"):
        portable("--runner=flink", address)
    assert portable("--runner=flink", address, "--environment_config=image").environment_type is None


SAID = {
    "network buffers": (
        "Pipeline job-7 failed in state FAILED: java.io.IOException: Insufficient number of network buffers: required "
        "512, but only 220 available. The total number of network buffers is currently set to 256 of 32768 bytes each.",
        "too few network buffers (required 512, but only 220 available)",
        False,
    ),
    "docker": (
        'java.io.IOException: Cannot run program "docker": error=2, No such file or directory',
        'The engine cannot start its workers (Cannot run program "docker"). DOCKER needs Docker',
        False,
    ),
    "worker command": (
        "Pipeline job-7 failed in state FAILED: java.io.IOException: error=2, No such file or directory",
        "cannot start its workers",
        False,
    ),
    "failing worker": (
        "java.lang.IllegalStateException: Process died with exit code 1",
        "cannot start its workers (Process died with exit code 1)",
        False,
    ),
    "killed worker": ("java.lang.IllegalStateException: Process died with exit code 137", "was lost", True),
    "package": (
        "Traceback (most recent call last):\nModuleNotFoundError: No module named 'pipeline.jobs'",
        "The workers' Python has no pipeline.",
        False,
    ),
    "package of an extra": (
        "Traceback (most recent call last):\nModuleNotFoundError: No module named 'jieba'",
        "`clozeline[chinese]` for jieba",
        False,
    ),
    "canceled": ("Pipeline job-7 failed in state CANCELLED: unknown error", "was canceled on the engine", False),
    "lost worker": (
        "Pipeline job-7 failed in state FAILED: org.apache.beam.vendor.grpc.v1p60p1.io.grpc.StatusRuntimeException: "
        "org.apache.beam.vendor.grpc.v1p60p1.io.grpc.StatusRuntimeException: CANCELLED: call already cancelled",
        "A worker, or the machine that it ran on, was lost (CANCELLED: call already cancelled).",
        True,
    ),
    "lost worker, to its end": ("Multiplexer hanging up", "was lost (Multiplexer hanging up).", True),
    "refused inside the engine": (
        "org.apache.beam.vendor.grpc.v1p60p1.io.grpc.StatusRuntimeException: UNAVAILABLE: io exception\nCaused by: "
        "io.netty.channel.AbstractChannel$AnnotatedConnectException: finishConnect(..) failed: Connection refused: "
        "worker-3/10.0.0.7:50000",
        "A connection inside the engine to worker-3/10.0.0.7:50000 was refused. Workers of LOOPBACK",
        False,
    ),
    "refused to a Python client": (
        "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.7:8099: Failed to connect to remote "
        "host: connect: Connection refused (111)",
        "inside the engine to 10.0.0.7:8099 was refused. Workers",
        False,
    ),
    "refused somewhere": ("UNAVAILABLE: io exception: Connection refused", "to another machine was refused.", False),
    "fault of a step": ("Traceback (most recent call last):\n  x\nKeyError: 'a'", "KeyError: 'a'.", False),
    "something else inside": (
        "java.lang.RuntimeException: java.util.concurrent.ExecutionException: (java.io.IOException: no leader)",
        "ExecutionException: (IOException: no leader).",
        True,
    ),
    "something else": ("java.lang.IllegalStateException: no leader", "IllegalStateException: no leader.", True),
}


@pytest.mark.parametrize(("text", "expected", "may_pass"), SAID.values(), ids=SAID)
def test_what_engines_say_is_explained(text: str, expected: str, may_pass: bool) -> None:
    explained = explain(RuntimeError(text))
    assert expected in explained.text and "\n" not in explained.text
    assert explained.may_pass == may_pass
