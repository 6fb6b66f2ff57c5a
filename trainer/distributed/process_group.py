"""Joins the process group: the environment, threads and device of this rank, and its connection to the others."""

from __future__ import annotations

import atexit
import logging
import os
import warnings
from datetime import timedelta
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

from schemas.errors import UsageError
from trainer.distributed.busy_cores import may_choose, take_free_cores, warn_of_busy_cores
from trainer.distributed.deepspeed_internals import use_no_compiled_operators
from trainer.distributed.meeting import meet
from trainer.distributed.preemption import StopRequest
from trainer.distributed.stop_agreement import gloo_error
from trainer.distributed.torch_internals import set_process_group_timeout


def start_distributed(timeout: float, stop: StopRequest | None = None) -> None:
    """Join the process group. A plain `python -m trainer` is a group of one.

    stop: ends the wait for other ranks.

    Raises UsageError if the ranks cannot connect within twice `timeout` seconds, and PreemptedError if the process was
    asked to stop meanwhile. Later waits have no limit here; the watchdog ends them.
    """
    quiet_libraries()
    set_default_environment()

    accelerator: Any = get_accelerator()
    limit_cpu_threads(accelerator)
    accelerator.set_device(int(os.environ["LOCAL_RANK"]))

    if torch.distributed.is_initialized():
        return

    use_no_compiled_operators()
    connect_ranks(accelerator.communication_backend_name(), timeout, stop)
    remove_collective_timeout()

    # A process that ends while its group still exists may abort, and then its exit code is lost.
    atexit.register(torch.distributed.destroy_process_group)


def quiet_libraries() -> None:
    """Hide DeepSpeed's log below errors, and torch's warnings to it. The trainer logs or raises what matters."""
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")


def set_default_environment() -> None:
    """Set what a launcher would set, for a process that was started without one."""
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("LOCAL_RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")

    # A single rank takes any free port.
    is_alone = os.environ["WORLD_SIZE"] == "1"
    os.environ.setdefault("MASTER_PORT", "0" if is_alone else "29500")

    # NCCL's own handler would end a rank that waits for long; see remove_collective_timeout.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")


def limit_cpu_threads(accelerator: Any) -> None:
    """Give each rank on a CPU its share of the cores. With more threads than cores, ranks slow each other down."""
    if accelerator.device_name() == "cpu" and may_choose():
        torch.set_num_threads(cores_of_rank())


def cores_of_rank() -> int:
    """Return this rank's share of the cores, at least 1."""
    return max(1, available_cores() // ranks_on_this_machine())


def spare_busy_cores(may_change: bool) -> None:
    """On a CPU, leave busy cores to other programs, or only say which they are. A collective call."""
    accelerator: Any = get_accelerator()
    if accelerator.device_name() == "cpu":
        act = take_free_cores if may_change else warn_of_busy_cores
        act(available_cores(), ranks_on_this_machine())


def available_cores() -> int:
    """Return the number of cores that this process may use. Slurm and containers may allow fewer than exist."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def ranks_on_this_machine() -> int:
    """Return the number of ranks here: torchrun's LOCAL_WORLD_SIZE, DeepSpeed's LOCAL_SIZE, or else all ranks."""
    for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "WORLD_SIZE"):
        if name in os.environ:
            return int(os.environ[name])
    return 1


def connect_ranks(backend: str, timeout: float, stop: StopRequest | None) -> None:
    """Initialize the process group. Raises as `start_distributed`."""
    connection_limit = timedelta(seconds=2 * timeout)
    try:
        # Kept until the group exists, because in rank 0 it holds the server.
        store = meet(stop, 2 * timeout) if os.environ["WORLD_SIZE"] != "1" else None
        deepspeed.init_distributed(dist_backend=backend, verbose=False, timeout=connection_limit)
        del store
    except torch.distributed.DistNetworkError as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"The ranks cannot meet at {address} ({reason}). If another run on this machine uses that port, give the "
            "launcher another one: --master_port 29501."
        ) from error
    except RuntimeError as error:
        if "gloo" not in str(error):
            raise
        raise gloo_error(error) from error


def remove_collective_timeout() -> None:
    """Let collective calls wait for a year.

    A rank may have to wait for hours while another one copies or hashes a checkpoint. The watchdog sees whether that
    rank advances, and names a rank that died. A timeout here, or NCCL's handler, would only end the process.
    """
    set_process_group_timeout(timedelta(days=365).total_seconds())


def device_of_rank() -> torch.device:
    """Return the device that this rank computes on: its own GPU, or the CPU."""
    accelerator: Any = get_accelerator()
    return torch.device(accelerator.device_name(int(os.environ["LOCAL_RANK"])))
