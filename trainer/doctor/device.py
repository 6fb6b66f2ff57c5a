"""Checks what training would compute with: devices, number formats, the attention kernel, and CPU cores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.errors import UsageError
from schemas.host_limits import allowed_cores, core_quota, usable_cores
from trainer.doctor.finding import Finding, failed
from trainer.doctor.plan import Plan

if TYPE_CHECKING:
    import torch

PRECISIONS = ("fp32", "bf16", "fp16")

HEAD_SIZE = 64
"""The size of an attention head if no recipe is given, which is that of all published BERTs."""

"""The number of heads in the check of flash attention, which does not affect its result."""


def check_device(plan: Plan) -> list[Finding]:
    """Check what DeepSpeed will compute on, and how."""
    findings = gpu_findings() if device_kind() == "cuda" else [cpu_finding()]
    findings += [check_cores(), check_precisions(plan), check_attention(plan)]
    return findings


# Devices


def device_kind() -> str:
    """Return the kind of device that DeepSpeed will use, such as "cpu" or "cuda"."""
    from deepspeed.accelerator import get_accelerator

    accelerator: Any = get_accelerator()
    return accelerator.device_name()


def gpu_findings() -> list[Finding]:
    """Return a finding for each GPU, with its memory and compute capability."""
    import torch

    findings = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        capability = (properties.major, properties.minor)
        facts = {
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "compute_capability": f"{properties.major}.{properties.minor}",
        }
        memory = f"{properties.total_memory / 1e9:.1f} GB"
        value = f"{properties.name}, {memory}, compute capability {facts['compute_capability']}"
        name = f"device cuda:{index}"

        if has_kernels_for(capability, torch.cuda.get_arch_list()):
            findings.append(Finding(name, "ok", value, facts=facts))
        else:
            advice = f"torch {torch.__version__} has no kernels for it: install a build of torch that has."
            findings.append(failed(name, value, advice, facts))
    return findings


def has_kernels_for(capability: tuple[int, int], architectures: list[str]) -> bool:
    """Return whether a build of torch runs on a GPU with this compute capability.

    architectures: as torch.cuda.get_arch_list returns them. Code for sm_XY also runs on later minor versions of X, and
    compute_XY can be compiled for every later version.
    """
    if not architectures or not all(name.startswith(("sm_", "compute_")) for name in architectures):
        return True  # another vendor's names

    for name in architectures:
        kind, _, digits = name.partition("_")
        number = "".join(digit for digit in digits if digit.isdigit())
        built_for = (int(number[:-1]), int(number[-1]))
        is_same_major = built_for[0] == capability[0]
        if built_for <= capability and (kind == "compute" or is_same_major):
            return True
    return False


def cpu_finding() -> Finding:
    """Return a finding for the CPU, with a warning if the machine has a GPU that torch does not use."""
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    facts = {"name": cpu_model(), "memory_bytes": memory, "device": "cpu"}
    value = f"CPU, {facts['name']}, {memory / 1e9:.1f} GB"

    if Path("/dev/nvidia0").exists():
        advice = "There is an NVIDIA GPU. Install a CUDA build of torch, and check the driver with nvidia-smi."
        return Finding("device", "warning", f"{value}; torch {torch.__version__} finds no GPU", advice, facts)
    return Finding("device", "ok", value, facts=facts)


def cpu_model() -> str:
    """Return the CPU's name, or its architecture if the system does not report a name."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return os.uname().machine


def check_cores() -> Finding:
    """Check how many cores training will use."""
    from trainer.distributed.busy_cores import busy_cores, threads_beside

    allowed, quota, usable = allowed_cores(), core_quota(), usable_cores()
    threads = os.environ.get("OMP_NUM_THREADS", "")
    facts = {"usable": usable, "present": os.cpu_count(), "quota": quota, "omp_num_threads": threads or None}
    value = f"{allowed} of {os.cpu_count()} usable"
    if usable < allowed:
        value += f", limited to the time of {quota:g}"

    if threads.isdigit() and int(threads) > usable:
        advice = f"Set it to {usable} divided by the ranks of this machine, or unset it."
        return Finding("cores", "warning", f"{value}, but OMP_NUM_THREADS is {threads}", advice, facts)
    if threads:
        return Finding("cores", "ok", f"{value}; each rank uses OMP_NUM_THREADS = {threads}", facts=facts)

    busy = busy_cores() if device_kind() == "cpu" else 0.0
    better = threads_beside(busy, allowed, ranks=1)
    if better < usable:
        advice = (
            f"A run that starts now takes a thread for each free core, as with OMP_NUM_THREADS={better}. For more, end "
            "the other programs."
        )
        return Finding("cores", "warning", f"{value}, but other programs keep {busy:.1f} busy", advice, facts)
    return Finding("cores", "ok", f"{value}; the ranks of this machine share them", facts=facts)


# Number formats and kernels


def check_precisions(plan: Plan) -> Finding:
    """Multiply two small matrices in each number format that the trainer would accept here."""
    refused: dict[str, str] = {}
    for precision in PRECISIONS:
        reason = refusal_of(precision)
        if reason:
            refused[precision] = reason

    works = [precision for precision in PRECISIONS if precision not in refused]
    facts = {"works": works, "refused": refused}
    wanted = plan.recipe.engine.precision if plan.recipe is not None else None
    if wanted in refused:
        return failed("precision", refused[wanted], f"Use --set engine.precision={works[-1]}.", facts)

    value = f"{', '.join(works)} work"
    if refused:
        value += f"; not {', '.join(refused)}"
    return Finding("precision", "ok", value, facts=facts)


def refusal_of(precision: str) -> str:
    """Return why training in a number format would not work here, empty if it would."""
    import torch

    from trainer.engine import check_precision

    try:
        check_precision(precision)
        values = torch.ones(16, 16, dtype=dtype_of(precision), device=device_kind(), requires_grad=True)
        (values @ values).sum().backward()
    except (UsageError, RuntimeError) as error:
        return str(error).splitlines()[0]
    return ""


def dtype_of(precision: str) -> torch.dtype:
    """Return torch's dtype for a value of engine.precision."""
    import torch

    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def check_attention(plan: Plan) -> Finding:
    """Say which attention kernel training will use, and why."""
    import torch

    from trainer.models.attention import capability_of, choose_flash, kernel_for

    recipe = plan.recipe
    precision = recipe.engine.precision if recipe is not None else "bf16"
    head_size = recipe.model.hidden_size // recipe.model.num_attention_heads if recipe is not None else HEAD_SIZE
    device = torch.device(device_kind(), 0) if device_kind() == "cuda" else torch.device(device_kind())

    kernel = kernel_for(device.type, dtype_of(precision), head_size, capability_of(device))
    case = f"{precision}, heads of {head_size}"
    facts: dict[str, Any] = {"kernel": kernel, "precision": precision, "head_size": head_size}
    if kernel == "packed":
        dropout = recipe.model.attention_probs_dropout_prob if recipe is not None else 0.0
        facts["implementation"] = choose_flash(dropout)
        return Finding("attention", "ok", f"{facts['implementation']}, on packed rows ({case})", facts=facts)
    if kernel == "padded" and device.type == "cuda":
        advice = "Flash attention needs bf16 or fp16, compute capability 8.0 and heads of a multiple of 8 up to 192."
        return Finding("attention", "warning", f"padded rows, which is slower ({case})", advice, facts)
    return Finding("attention", "ok", f"{kernel}: flash attention is for GPUs ({case})", facts=facts)


def count_devices() -> int:
    """Return how many ranks would train on this machine: one for each GPU, or a single one on CPUs."""
    import torch

    return torch.cuda.device_count() if device_kind() == "cuda" else 1


def device_memory() -> int:
    """Return the memory of the first GPU in bytes, or without GPUs that of the machine."""
    import torch

    if device_kind() == "cuda":
        return torch.cuda.get_device_properties(0).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
