"""Each check against a machine, a folder or a store that is well, and one that is not."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas import host_limits
from schemas.errors import UsageError
from tests.object_store import ObjectStore
from trainer.checkpoint.snapshot import SMALLEST_BLOCK, Group, block_sizes, needed_elements
from trainer.config.load import load_recipe
from trainer.doctor import device, memory, micro_batch, network, packages, storage
from trainer.doctor.device import has_kernels_for
from trainer.doctor.memory import check_host_memory, check_memory
from trainer.doctor.packages import Requirement, is_within
from trainer.doctor.plan import Plan
from trainer.doctor.shape import shape_of
from trainer.doctor.speed import Slice, check_speed, random_batch
from trainer.memory import activation_bytes, saved_bytes
from trainer.models.pretraining import PretrainingModel


def recipe(*changes: str) -> Any:
    return load_recipe("tiny", ["data.pairs=/none", *changes])


# Packages


@pytest.mark.parametrize(
    ("version", "versions", "within"),
    [
        ("2.13.0+cpu", ">=2.10,<2.15", True),
        ("2.15.0", ">=2.10,<2.15", False),
        ("2.9.1", ">=2.10,<2.15", False),
        ("2.10", ">=2.10,<2.15", True),
        ("23.0.1", ">=23.0.1", True),
        ("23.0", ">=23.0.1", False),
        ("5", "", True),
        ("0.20", "<=0.20", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, versions: str, within: bool) -> None:
    assert is_within(version, versions) == within


def test_the_ranges_are_those_of_the_project() -> None:
    ranges = {(one.package, one.extra): one.versions for one in packages.all_requirements()}
    assert ranges["torch", "trainer"] == ">=2.10,<2.15" and ranges["apache-beam", "pipeline"] == ">=2.77,<3"
    assert ranges["pyarrow", ""].startswith(">=") and packages.python_versions() == ">=3.11"


def test_the_ranges_of_a_wheel_are_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A wheel has metadata in the place of pyproject.toml, and bounds in another order."""
    of_clone = {one._replace(versions="") for one in packages.all_requirements()}
    monkeypatch.setattr(packages, "ROOT", tmp_path)
    of_metadata = packages.all_requirements()
    assert {one._replace(versions="") for one in of_metadata} == of_clone
    (torch_of_trainer,) = [one for one in of_metadata if (one.package, one.extra) == ("torch", "trainer")]
    assert is_within("2.14.9", torch_of_trainer.versions) and not is_within("2.15", torch_of_trainer.versions)


def test_a_version_outside_of_its_range_is_a_warning() -> None:
    finding = packages.check_package(Requirement("torch", ">=99", "trainer"))
    assert finding.state == "warning" and finding.value.endswith(" is outside of >=99")
    assert packages.check_package(Requirement("no-such-package", ">=1", "trainer")).state == "failed"


# Devices


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((9, 0), ["sm_80", "sm_90"], True),
        ((8, 9), ["sm_80", "sm_90"], True),
        ((7, 0), ["sm_75", "sm_80"], False),
        ((10, 0), ["sm_80", "sm_90"], False),
        ((12, 0), ["sm_80", "compute_90"], True),
        ((9, 0), ["sm_90a"], True),
        ((9, 4), ["gfx942"], True),
        ((9, 0), [], True),
    ],
)
def test_builds_of_torch_run_on_what_they_were_built_for(
    capability: tuple[int, int], architectures: list[str], runs: bool
) -> None:
    assert has_kernels_for(capability, architectures) == runs


def test_limits_of_a_container_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_limits, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    (tmp_path / "cpu.max").write_text("150000 100000\n")

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    finding = device.check_cores()
    assert finding.state == "ok" and "limited to the time of 1.5; each rank uses" in finding.value
    assert (finding.facts["usable"], finding.facts["quota"]) == (1, 1.5)

    monkeypatch.setenv("OMP_NUM_THREADS", "4096")
    finding = device.check_cores()
    assert finding.state == "warning" and "OMP_NUM_THREADS is 4096" in finding.value


def test_a_precision_that_does_not_work_is_refused_only_if_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_precision(precision: str) -> None:
        if precision == "fp16":
            raise UsageError("engine.precision fp16: this cpu does not support it. Use bf16 or fp32.")

    monkeypatch.setattr("trainer.engine.check_precision", check_precision)
    assert device.check_precisions(Plan()).value == "fp32, bf16 work; not fp16"
    assert device.check_precisions(Plan(recipe())).state == "ok"
    refused = device.check_precisions(Plan(recipe("engine.precision=fp16")))
    assert (refused.state, refused.exit_code) == ("failed", 2) and "engine.precision=bf16" in refused.advice


def test_the_kernel_is_the_one_that_training_takes() -> None:
    finding = device.check_attention(Plan(recipe()))
    assert finding.facts == {"kernel": "one by one", "precision": "fp32", "head_size": 32}


def test_a_model_that_does_not_fit_is_a_warning() -> None:
    assert [finding.state for finding in check_memory(Plan(recipe()))] == ["ok", "ok"]
    large = Plan(recipe("model.hidden_size=16384", "model.num_hidden_layers=96", "model.intermediate_size=65536"))
    for finding in check_memory(large):
        assert finding.state == "warning" and finding.facts["needed_bytes"] > finding.facts["available_bytes"]


def test_copies_are_counted_only_where_saves_are_made_in_the_background() -> None:
    (device_memory,) = check_memory(Plan(recipe("checkpoint.background=false")))
    assert device_memory.name == "memory"

    parameters = 1_000_000
    assert saved_bytes(parameters) == 3 * 4 * 1_000_000
    slices = [Group(750_000, 3), Group(250_000, 3)]
    taken = 4 * sum(block_sizes(needed_elements(slices)))
    assert saved_bytes(parameters) <= taken <= check_host_memory(parameters).facts["needed_bytes"] + 4 * SMALLEST_BLOCK


def test_a_machine_s_ranks_share_what_zero_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a rank is that of one of as many ranks as there are devices."""
    sharded = recipe("engine.zero_stage=1", "engine.precision=bf16")
    needed = {}
    for devices in (1, 4):
        for module in (memory, micro_batch):
            monkeypatch.setattr(module, "count_devices", lambda devices=devices: devices)
        finding = check_memory(Plan(sharded))[0]
        needed[devices] = finding.facts
        assert finding.facts["ranks"] == devices

    parameters = needed[1]["parameters"]
    bytes_per_token = activation_bytes(shape_of(sharded)[0], sharded)
    saved_tokens = needed[1]["micro_batch_tokens"] - needed[4]["micro_batch_tokens"]
    saved = needed[1]["needed_bytes"] - needed[4]["needed_bytes"]
    assert saved >= 12 * parameters * 3 // 4 + saved_tokens * bytes_per_token - 1 > 0


# Network


def test_a_port_in_use_is_named_with_a_free_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        finding = network.check_port()
    assert finding.state == "warning" and f"--master_port {finding.facts['free_port']}" in finding.advice
    assert network.check_port().state == "ok", "the same port, free again"


@pytest.mark.parametrize(
    ("address", "state", "value"),
    [
        ("127.0.1.1", "note", "which other machines cannot reach"),
        ("203.0.113.7", "warning", "which is not this machine's"),
        (None, "warning", "does not resolve"),
    ],
)
def test_a_host_name_that_leads_elsewhere(
    monkeypatch: pytest.MonkeyPatch, address: str | None, state: str, value: str
) -> None:
    """203.0.113.0/24 is reserved for documentation."""

    def resolve(*arguments: object, **options: object) -> list:
        if address is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]

    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    finding = network.check_host_name()
    assert finding.state == state and value in finding.value and "GLOO_SOCKET_IFNAME" in finding.advice


# Storage


def test_a_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    finding = storage.check_disk(Plan(folder=str(tmp_path / "run")))
    assert finding.facts["folder"] == str(tmp_path) and finding.facts["read_bytes_per_second"] > 0
    assert finding.state in ("ok", "warning") and list(tmp_path.iterdir()) == []


def test_a_disk_is_synced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last byte, as a file of a checkpoint."""
    sizes = []
    sync = os.fsync

    def count(file: int) -> None:
        sizes.append(os.fstat(file).st_size)
        sync(file)

    monkeypatch.setattr(os, "fsync", count)
    assert storage.written_per_second(tmp_path / "file", 3 * storage.BLOCK_BYTES) > 0
    assert sizes == [3 * storage.BLOCK_BYTES]


def test_checkpoints_that_do_not_fit_are_a_warning(tmp_path: Path) -> None:
    finding = storage.check_disk(Plan(recipe("checkpoint.keep=1000000000"), folder=str(tmp_path)))
    assert finding.state == "warning" and "Lower checkpoint.keep" in finding.advice


@pytest.mark.parametrize(
    ("number", "state"), [(None, "ok"), (errno.ENOSYS, "warning"), (errno.EROFS, "note")], ids=["ok", "none", "ro"]
)
def test_locks_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None, state: str) -> None:
    def flock(file: object, operation: int) -> None:
        raise OSError(number, os.strerror(number or 0))

    if number is not None:
        monkeypatch.setattr(fcntl, "flock", flock)
    assert storage.check_locks(tmp_path).state == state
    assert list(tmp_path.iterdir()) == []


def test_locks_that_keep_nobody_out_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda file, operation: None)
    assert "two processes can hold one lock" in storage.check_locks(tmp_path).value


def test_a_bucket_is_written_read_and_left_empty(s3: ObjectStore) -> None:
    s3.bucket("bucket")
    plan = Plan(recipe("run.output=s3://bucket/run"), urls=("s3://bucket/elsewhere",))
    assert plan.written_urls == ["s3://bucket/elsewhere", "s3://bucket/run"]
    for url in plan.written_urls:
        finding = storage.check_url(url)
        assert finding.state == "ok" and finding.facts["url"] == url, finding

    missing = storage.check_url("s3://no-such-bucket/run")
    assert (missing.state, missing.exit_code) == ("failed", 5)


def test_a_store_that_does_not_answer_is_given_up(store_out_of_reach: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert storage.check_url("s3://bucket/run").exit_code == 5
    monkeypatch.setattr(storage, "URL_SECONDS", 0.0)
    assert "no answer within 0 seconds" in storage.check_url("s3://bucket/run").value


# Speed


def test_the_slice_is_a_part_of_the_recipe_s_model() -> None:
    wanted = recipe("model.num_hidden_layers=6", "model.vocab_size=500")
    shape, longest, mean_length = shape_of(wanted)
    assert (shape.num_hidden_layers, shape.vocab_size, longest, mean_length) == (6, 500, 128, 128)
    two = Slice(wanted, shape, 2, torch.device("cpu"))
    model: PretrainingModel = two._model
    assert len(model.encoder.layers) == model.shape.num_hidden_layers == 2
    assert model.encoder.embeddings.token.num_embeddings == 500


@pytest.mark.parametrize("name", ["albert_base", "roberta_base", "tiny"])
def test_every_family_is_estimated(name: str) -> None:
    small = ["model.hidden_size=48", "model.num_attention_heads=3", "model.intermediate_size=96"]
    of_family = load_recipe(name, ["data.pairs=/none", "engine.precision=fp32", *small, "model.vocab_size=300"])
    (finding,) = check_speed(Plan(of_family))
    assert finding.state == "ok" and finding.facts["tokens_per_second"] > 0
    assert finding.value.startswith("about ")


def test_a_model_too_wide_for_this_machine_is_not_tried() -> None:
    wide = recipe("model.hidden_size=131072", "model.num_attention_heads=8", "model.intermediate_size=524288")
    (finding,) = check_speed(Plan(wide))
    assert finding.state == "note" and "fill this machine's memory" in finding.value


def test_random_rows_are_a_batch() -> None:
    batch = random_batch(1000, 30, 0.15, 61)
    assert batch.tokens == len(batch.ids_T) == 33 * 30 and batch.predicted == 148
    assert batch.positions_T.max() == 29 and len(batch.sequence_starts_S) == 33
    short = random_batch(10, 128, 0.01, 61)
    assert short.tokens == 10 and short.predicted == 1
