"""Joins the process group: the environment, threads and device of this rank, and its connection to the others.

torch waits for the ranks in one call, which logs nothing and which no signal ends. So before it, each rank writes a key
to the store through which they connect and looks for those of the others (`meet`). It can log which ranks are missing,
and end when it is asked to stop. torch's own wait then ends at once.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import warnings
from datetime import timedelta
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch.distributed import TCPStore

from schemas.errors import ClozelineError, PreemptedError, UsageError
from trainer.distributed.collectives import named, run_on_all_ranks
from trainer.distributed.deepspeed_internals import use_no_compiled_operators
from trainer.distributed.threads import take_share_of_cores
from trainer.distributed.torch_internals import set_process_group_timeout
from trainer.distributed.watchdog import address
from trainer.logs import EVERY_RANK, logger

if TYPE_CHECKING:
    from trainer.distributed.stop import StopRequest

SAY_EVERY = 30.0
"""Seconds between two messages about the ranks that are missing."""

LOOK_EVERY = 0.1
KEEP_STORE_SECONDS = 1.0
"""How long rank 0 keeps the store once it has ended its wait. The others look for that every LOOK_EVERY seconds."""
CONNECT_SECONDS = 5.0
"""How long one try to reach the store may take. A signal ends the wait between two of them."""
HOST_GROUP_SECONDS = 120.0
"""How long ranks may take to open a further group, which all of them begin at the same time."""


def start_distributed(timeout: float, stop: StopRequest | None = None) -> None:
    """Join the process group. A plain `python -m trainer` is a group of one.

    stop: ends the wait for other ranks.

    Raises UsageError if the ranks cannot connect within twice `timeout` seconds, and PreemptedError if the process was
    asked to stop meanwhile. Later waits have no limit here; the watchdog ends them.
    """
    quiet_libraries()
    set_default_environment()

    accelerator: Any = get_accelerator()
    take_share_of_cores()
    check_devices(accelerator)
    accelerator.set_device(int(os.environ["LOCAL_RANK"]))

    if torch.distributed.is_initialized():
        return

    use_no_compiled_operators()
    connect_ranks(accelerator.communication_backend_name(), timeout, stop)

    # Collective calls may wait for a year: a rank may have to wait for hours while another one copies or hashes a
    # checkpoint. The watchdog sees whether that rank advances, and names a rank that died. A timeout here, or NCCL's
    # handler, would only end the process.
    set_process_group_timeout(timedelta(days=365).total_seconds())

    # A process that ends while its group still exists may abort, and then its exit code is lost.
    atexit.register(torch.distributed.destroy_process_group)


def check_devices(accelerator: Any) -> None:
    """Raise UsageError if a launcher started more ranks on this machine than it has GPUs."""
    local_rank = int(os.environ["LOCAL_RANK"])
    if accelerator.device_name() == "cpu" or local_rank < accelerator.device_count():
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    raise UsageError(
        f"LOCAL_RANK is {local_rank}, and this process sees GPUs for {accelerator.device_count()} ranks"
        f"{'' if visible is None else f', those of CUDA_VISIBLE_DEVICES={visible}'}. Start fewer (--num_gpus of "
        "deepspeed, --nproc_per_node of torchrun), or let each process see all GPUs of its machine."
    )


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
    os.environ.setdefault("MASTER_PORT", "29500")

    # NCCL's own handler would end a rank that waits for long.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")


def connect_ranks(backend: str, timeout: float, stop: StopRequest | None) -> None:
    """Initialize the process group. Raises as `start_distributed`."""
    connection_limit = timedelta(seconds=2 * timeout)
    try:
        if os.environ["WORLD_SIZE"] == "1":
            # It meets nobody, so MASTER_ADDR and MASTER_PORT that another run needs do not matter.
            store = torch.distributed.HashStore()
            torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1, timeout=connection_limit)
        else:
            store = meet(stop, 2 * timeout)  # kept until the group exists, because in rank 0 it holds the server
        deepspeed.init_distributed(dist_backend=backend, verbose=False, timeout=connection_limit)
        del store
    except torch.distributed.DistNetworkError as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"The ranks cannot meet at {address()} ({reason}). If another run on this machine uses that port, give the "
            "launcher another one: --master_port 29501."
        ) from error
    except RuntimeError as error:
        if "gloo" not in str(error):
            raise
        raise gloo_error(error) from error


def gloo_error(error: RuntimeError) -> UsageError:
    """Return the error for ranks that cannot connect to each other over gloo."""
    host = socket.gethostname()
    rank = os.environ.get("RANK", "0")
    reason = str(error).splitlines()[0].rstrip(".")
    return UsageError(
        f"The ranks cannot connect over gloo: rank {rank} on {host} reports: {reason}. Gloo listens at the address "
        f"that {host} resolves to, and other machines cannot reach 127.0.1.1. On each node, set GLOO_SOCKET_IFNAME to "
        "the network interface that connects the nodes, as in GLOO_SOCKET_IFNAME=eth0."
    )


def open_host_group(timeout: float) -> Any:
    """Open a gloo group of all ranks in addition to the default one, for calls of one kind or thread. Collective.

    timeout: seconds after which a rank that does not answer is an error, once the ranks are connected.
    Raises UsageError on every rank if one of them cannot connect.
    """
    connection_limit = timedelta(seconds=min(timeout, HOST_GROUP_SECONDS))
    groups: list[Any] = []

    def connect() -> None:
        try:
            groups.append(torch.distributed.new_group(backend="gloo", timeout=connection_limit))
        except RuntimeError as error:
            raise gloo_error(error) from error

    run_on_all_ranks(connect)
    set_process_group_timeout(timeout, groups[0])
    return groups[0]


def device_of_rank() -> torch.device:
    """Return the device that this rank computes on: its own GPU, or the CPU."""
    accelerator: Any = get_accelerator()
    return torch.device(accelerator.device_name(int(os.environ["LOCAL_RANK"])))


# ---- Waiting for the other ranks ----


def meet(stop: StopRequest | None, timeout: float) -> Any:
    """Wait until all ranks are there, and return the store, which must be kept until the process group exists.

    stop: ends the wait. timeout: in seconds.

    Raises PreemptedError if the process was asked to stop, UsageError if ranks are missing after `timeout`, and
    DistNetworkError if the store cannot be opened.
    """
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store: Any = None
    missing = set(range(ranks)) - {rank}
    has_ended = False
    began = said_at = monotonic()

    while missing:
        check_not_asked(stop)
        if store is None:
            store = open_store(rank, ranks)
        if store is not None:
            missing, has_ended = look(store, missing)

        # Without the store, only rank 0, which holds it, is known to be missing. With it, one rank speaks for all.
        names = named(sorted(missing) if store is not None else [0])
        speaks = store is None or rank == min(set(range(ranks)) - missing)
        now = monotonic()
        if missing and (has_ended or now - began > timeout):
            if holds_store(rank):
                end_for_all(store)
            waited = round(min(now - began, timeout), 1)
            raise of_this_rank(
                UsageError,
                f"Rank {rank} waited {waited:g} s at {address()} for {names}. Start all {ranks} ranks, with the same "
                "MASTER_ADDR and MASTER_PORT, where they reach that address.",
            )
        if missing and speaks and now - said_at >= SAY_EVERY:
            said_at = now
            logger.info("Waiting at %s for %s, as rank %d of %d.", address(), names, rank, ranks, extra=EVERY_RANK)
        sleep(LOOK_EVERY)

    return store


def look(store: Any, missing: set[int]) -> tuple[set[int], bool]:
    """Return the ranks that are still missing, and whether rank 0 has ended its wait for them."""
    try:
        missing = {other for other in missing if not store.check([_key(other)])}
        return missing, store.check([ENDED])
    except torch.distributed.DistNetworkError:
        # The store has answered before, so rank 0 was there and has died.
        return missing, True


def end_for_all(store: Any) -> None:
    """Let the other ranks end their wait, too, and keep the store until they have seen it."""
    store.set(ENDED, "")
    sleep(KEEP_STORE_SECONDS)


def check_not_asked(stop: StopRequest | None) -> None:
    """Raise PreemptedError if the process was asked to stop."""
    if stop is not None and stop.asked:
        raise of_this_rank(
            PreemptedError,
            f"asked to stop while rank {os.environ['RANK']} waited at {address()} for other ranks. There is nothing to "
            "save. The same command starts again.",
        )


def of_this_rank(kind: type[ClozelineError], message: str) -> ClozelineError:
    """Return an error that other ranks need not have, so that this one prints it."""
    error = kind(message)
    error.everywhere = False
    return error


def holds_store(rank: int) -> bool:
    """Return whether the store is in this process, and ends with it. Under torchrun, the agent may hold it."""
    return rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def open_store(rank: int, ranks: int) -> Any:
    """Return the store through which the ranks connect, with this rank's key, or None while no rank serves it.

    Waits for at most some seconds. Raises DistNetworkError if the address is in use by something else.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    is_holder = holds_store(rank)

    # torch's own tries print a stack trace each, so it only connects once something listens there.
    if not is_holder:
        try:
            socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
        except OSError:
            return None

    # Several stores of one process share a server, so torch's own will be this one.
    limit = timedelta(seconds=CONNECT_SECONDS)
    store = TCPStore(host, port, ranks, is_master=is_holder, timeout=limit, wait_for_workers=False, multi_tenant=True)
    store.set(_key(rank), "")
    return store


ENDED = "clozeline/ended"
"""The key that rank 0 sets when it ends its wait."""


def _key(rank: int) -> str:
    return f"clozeline/met/{rank}"
