"""Sums the time of a GPU by category, from a trace that the trainer's --profile wrote: where a step goes.

Kernels are assigned to categories by their names alone (RULES). Those that no rule knows are listed by name, so that
rules can be added. Kernels that torch.compile makes are named after the operations they fuse, such as
triton_red_fused_native_layer_norm_backward_7, and belong to the first rule that fits one of these.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

OTHER = "other"

RULES = (
    ("communication", r"nccl"),
    ("attention backward", r"flash_?bwd|FlashAttnBwd|(sdpa|fmha|flash).*bprop|fmha.*(cutlassB|backward)|attention_bwd"),
    ("attention backward", r"(flex|flash|packed|scaled_dot_product|efficient)_?attention\w*_backward"),
    ("attention forward", r"flash_?fwd|FlashAttnFwd|sdpa|fmha|attention_fwd|flash::"),
    ("attention forward", r"(flex|flash|packed|scaled_dot_product|efficient)_?attention"),
    ("matrix products", r"nvjet|gemm|gemv|cublas|cutlass|xmma|splitK|wgmma|triton_tem_fused_\w*mm"),
    ("additions to gradients", r"BinaryOpListAlpha|CUDAFunctor\w*_add|AddFunctor"),
    ("optimizer", r"multi_tensor|adam|\blamb_|lpnorm|vector_norm|_foreach|NormOps|NormTwoOps"),
    ("loss over the vocabulary", r"softmax|cross_entropy|nll_loss|logsumexp|argmax"),
    ("embedding", r"embedding|index_put|indexing_backward|radix"),
    ("norms, dropout and residuals", r"layer_?norm|rms_?norm|GammaBeta|rsqrt|dropout|bitwise_xor"),
    ("norms, dropout and residuals", r"triton_poi_fused_(_to_copy_)?add_(add_|view_|_to_copy_)*\d+$"),
    ("activations", r"gelu|silu|swiglu|geglu|relu|sigmoid|tanh|_erf|erf_|_exp2_"),
    ("bias gradients and other sums", r"triton_\w*sum|reduce_kernel|sum_functor"),
    ("rotations of queries and keys", r"(cat_)?mul_(neg_slice|slice|split_split_with_sizes|split_sub|sub_view)"),
    (
        "joining and copying",
        r"cat|copy|memcpy|memset|clone|fill|_pad_|transpose|zero|index_?select|index_add|indexFunc",
    ),
)
"""(category, pattern): the first pattern found in a kernel's name, ignoring case, decides."""

CATEGORIES = tuple(dict.fromkeys([category for category, _ in RULES] + [OTHER]))

GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
"""Kinds of a trace's events: what a GPU did, and what the host asked of it."""

WAITING_MICROSECONDS = 200
"""A call that takes longer waits for the GPU: for a copy, or for room in its queue. Others take 5 to 20."""

MOST_KERNELS = 25
MOST_OTHERS = 10


@dataclass(frozen=True)
class Kernel:
    """One kernel. count: per step. us: microseconds per step. share: of the GPU's working time."""

    name: str
    category: str
    count: float
    us: float
    share: float


@dataclass(frozen=True)
class Profile:
    """Where the time of `steps` steps went.

    step_ms: milliseconds of a step. busy: the share of them in which the GPU worked, None without a GPU. host_ms: of a
    step, without waiting for the GPU. shares: of the GPU's working time, by category. kernels: the longest. others: the
    longest of the category OTHER.
    """

    steps: int
    step_ms: float
    busy: float | None
    host_ms: float
    shares: dict[str, float]
    kernels: list[Kernel]
    others: list[Kernel]


def category_of(name: str) -> str:
    """Return the category of a kernel."""
    for category, pattern in RULES:
        if re.search(pattern, name, re.IGNORECASE):
            return category
    return OTHER


def summarize(trace: Path, title: str, output: Path) -> Profile:
    """Write OUTPUT.json and OUTPUT.md from a trace (.json.gz), and return the profile. Raises ValueError."""
    profile = profile_of(json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"])
    output.with_name(f"{output.name}.json").write_text(json.dumps(asdict(profile), indent=1) + "\n")
    output.with_name(f"{output.name}.md").write_text(shown(profile, title))
    return profile


def profile_of(events: list[dict[str, Any]]) -> Profile:
    """Return the profile of a trace's events. Raises ValueError if the trace has no steps."""
    timed = [event for event in events if event.get("ph") == "X"]
    steps = [
        event for event in timed if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#")
    ]
    if not steps:
        raise ValueError("the trace has no steps")

    work = [event for event in timed if event.get("cat") in GPU_WORK]
    kernels = kernels_of(work, len(steps))
    shares = dict.fromkeys(CATEGORIES, 0.0)
    for kernel in kernels:
        shares[kernel.category] += kernel.share

    began = min(event["ts"] for event in work or steps)
    ended = max(event["ts"] + event["dur"] for event in work or steps)
    return Profile(
        steps=len(steps),
        step_ms=(ended - began) / len(steps) / 1000,
        busy=covered(map(span, work)) / (ended - began) if work else None,
        host_ms=host_microseconds(steps, timed) / len(steps) / 1000,
        shares=shares,
        kernels=kernels[:MOST_KERNELS],
        others=[kernel for kernel in kernels if kernel.category == OTHER][:MOST_OTHERS],
    )


def kernels_of(work: list[dict[str, Any]], steps: int) -> list[Kernel]:
    """Return all kernels, those with the longest time first."""
    counts: dict[str, int] = defaultdict(int)
    microseconds: dict[str, float] = defaultdict(float)
    for event in work:
        counts[event["name"]] += 1
        microseconds[event["name"]] += event["dur"]

    total = sum(microseconds.values())
    longest = sorted(microseconds, key=lambda name: -microseconds[name])
    return [
        Kernel(name, category_of(name), counts[name] / steps, microseconds[name] / steps, microseconds[name] / total)
        for name in longest
    ]


def host_microseconds(steps: list[dict[str, Any]], timed: list[dict[str, Any]]) -> float:
    """Return the microseconds of all steps in which the host did not wait for the GPU.

    A backward pass runs in a thread of autograd, for which the step's thread waits; so the waits of both are left out.
    """
    threads = {event["tid"] for event in timed if event["name"].startswith("autograd::engine")}
    threads |= {step["tid"] for step in steps}
    waits = [
        span(event)
        for event in timed
        if event.get("cat") in CALLS
        and event["tid"] in threads
        and ("Synchronize" in event["name"] or event["dur"] > WAITING_MICROSECONDS)
    ]

    of_steps = [span(step) for step in steps]
    inside = [(max(begin, first), min(end, last)) for first, last in of_steps for begin, end in waits]
    return covered(of_steps) - covered((begin, end) for begin, end in inside if begin < end)


def span(event: dict[str, Any]) -> tuple[float, float]:
    return event["ts"], event["ts"] + event["dur"]


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return how much time spans cover together. Streams overlap."""
    total = 0.0
    reached = float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def shown(profile: Profile, title: str) -> str:
    """Return a profile as Markdown, without single kernels."""
    busy = "no GPU" if profile.busy is None else f"the GPU is busy {profile.busy:.1%}"
    lines = [
        f"# {title}",
        "",
        f"{profile.steps} steps of {profile.step_ms:.1f} ms; {busy}; the host works {profile.host_ms:.1f} ms a step.",
        "",
        "| | share of GPU time |",
        "|---|---|",
        *(f"| {name} | {share:.1%} |" for name, share in sorted(profile.shares.items(), key=lambda item: -item[1])),
    ]
    return "\n".join(lines) + "\n"
