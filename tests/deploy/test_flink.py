"""The Flink cluster of deploy/flink, started here as far as it can be: its configuration, its job server's flags, its
launcher's command, and workers from a pool. Not proven: the operator, pods, and Flink 1.20 (the cluster here is 1.16).
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.manifest import read_manifest
from tests.deploy.manifests import Manifest, find, load, load_all
from tests.pipeline.beam.servers import Pool
from tests.pipeline.engines.conftest import JARS, started_flink
from tests.processes import ran

NOT_HEAP = ["network.max", "managed.size", "framework.heap.size", "framework.off-heap.size", "task.off-heap.size"]
NOT_HEAP += ["jvm-metaspace.size", "jvm-overhead.max"]
"""The parts of a TaskManager's memory that the manifest sets. Flink gives what is left to the heap of tasks."""


def cluster() -> Manifest:
    return load("flink/cluster.yaml")["spec"]


def job_server_flags() -> list[str]:
    deployment = find(load_all("flink/job_server.yaml"), "Deployment", "clozeline-job-server")
    return deployment["spec"]["template"]["spec"]["containers"][0]["args"]


def launcher_arguments() -> list[str]:
    return load("flink/shard.yaml")["spec"]["template"]["spec"]["containers"][0]["args"]


def megabytes(text: str) -> int:
    return int(text.removesuffix("m"))


def task_heap() -> int:
    """The heap of a TaskManager's tasks in megabytes."""
    configuration = cluster()["flinkConfiguration"]
    return megabytes(cluster()["taskManager"]["resource"]["memory"]) - sum(
        megabytes(configuration[f"taskmanager.memory.{name}"]) for name in NOT_HEAP
    )


def test_a_slot_has_a_worker_process_and_a_cpu() -> None:
    slots = cluster()["flinkConfiguration"]["taskmanager.numberOfTaskSlots"]
    (sidecar,) = cluster()["taskManager"]["podTemplate"]["spec"]["initContainers"]
    assert sidecar["resources"]["requests"]["cpu"] == slots
    assert f"--sdk_worker_parallelism={slots}" in launcher_arguments()
    assert "--environment_config=localhost:50000" in launcher_arguments()
    assert sidecar["command"][-1] == "--port=50000" and "50000" in sidecar["startupProbe"]["exec"]["command"][-1]


def test_memory_is_left_for_the_heap_of_tasks() -> None:
    configuration = cluster()["flinkConfiguration"]
    assert {f"taskmanager.memory.{name}" for name in NOT_HEAP} <= set(configuration)
    assert task_heap() >= 384  # that of the real cluster in the tests


def test_the_configuration_has_only_keys_of_the_real_cluster(engines: Path) -> None:
    script = (engines / "flink.sh").read_text()
    real = set(re.findall(r"^([a-z][\w.-]+): ", script, re.MULTILINE))
    assert "taskmanager.memory.network.min" in real
    assert set(cluster()["flinkConfiguration"]) <= real

    flags = {flag.partition("=")[0] for flag in job_server_flags()}
    assert all(flag in script for flag in flags)


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_real_cluster_takes_this_configuration_and_the_launchers_flags(
    engines: Path, pool: Pool, corpus: Path, tmp_path: Path
) -> None:
    """Near-duplicates at parallelism 4: the job that needs the most network memory."""
    with real_cluster(engines, tmp_path / "cluster") as port:
        mine = {
            "--input": str(corpus),
            "--output": str(tmp_path / "text"),
            "--job_endpoint": f"localhost:{port}",
            "--artifact_endpoint": f"localhost:{port + 1}",
            "--parallelism": "4",
            "--environment_config": pool.address,
        }
        arguments = [flag.split("=", 1) for flag in launcher_arguments()]
        flags = [f"{name}={mine.get(name, value)}" for name, value in arguments]
        shard(*flags)

    shard(f"--input={corpus}", f"--output={tmp_path / 'local'}", "--dedup=minhash")
    fingerprints = {read_manifest(str(tmp_path / name), "text").fingerprint for name in ("text", "local")}
    assert len(fingerprints) == 1


def shard(*flags: str) -> None:
    done = ran([sys.executable, "-m", "pipeline", "shard", *flags])
    assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def real_cluster(engines: Path, folder: Path) -> Iterator[int]:
    """Start Flink and a job server with the manifest's configuration, and return the job server's port."""
    folder.mkdir()
    for name in JARS:
        (folder / name).symlink_to(engines / name)

    script = (engines / "flink.sh").read_text()
    values = cluster()["flinkConfiguration"] | {"taskmanager.memory.task.heap.size": f"{task_heap()}m"}
    for key, value in values.items():
        script, changed = re.subn(rf"^{re.escape(key)}: .*$", f"{key}: {value}", script, flags=re.MULTILINE)
        assert changed == 1, key
    (folder / "flink.sh").write_text(script)

    slots = cluster()["flinkConfiguration"]["taskmanager.numberOfTaskSlots"]
    with started_flink(folder / "flink.sh", folder / "run", {"TASK_MANAGERS": "2", "SLOTS": slots}) as job_port:
        yield job_port
