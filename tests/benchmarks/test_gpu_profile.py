"""Where a step goes: categories of kernels by their names, and sums over a trace."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_profile import OTHER, category_of, profile_of, shown

NAMES = {
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT": "matrix products",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_32x6_tn_align8>": "matrix products",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>": "matrix products",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>": "attention forward",
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits>": "attention backward",
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<...>>>": "attention forward",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3": "attention forward",
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_3": "attention backward",
    "fmha_cutlassB_bf16_aligned_64x64_k64_dropout_sm80(PyTorchMemEffAttention)": "attention backward",
    "triton_tem_fused_flex_attention_backward_2": "attention backward",
    "triton_per_fused_add_native_dropout_native_layer_norm_1": "norms, dropout and residuals",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16>": (
        "norms, dropout and residuals"
    ),
    "triton_poi_fused_add_12": "norms, dropout and residuals",
    "triton_red_fused_gelu_gelu_backward_sum_view_8": "activations",
    "triton_poi_fused___rshift___add_bitwise_and_bitwise_xor_ge_mul_5": "norms, dropout and residuals",
    "triton_poi_fused__to_copy_add_cat_mul_neg_slice_2": "rotations of queries and keys",
    "triton_per_fused__to_copy_add_embedding_native_dropout_native_layer_norm_0": "embedding",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<...>": "joining and copying",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>": "additions to gradients",
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)"
    "::{lambda()#3}::operator()() const>": "joining and copying",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>": "optimizer",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<BinaryOpListAlphaFunctor>": (
        "additions to gradients"
    ),
    "triton_red_fused__log_softmax_nll_loss_forward_5": "loss over the vocabulary",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL": "communication",
    "some_kernel": OTHER,
}


@pytest.mark.parametrize("name", NAMES)
def test_kernels_have_a_category_by_their_names(name: str) -> None:
    assert category_of(name) == NAMES[name]


def event(name: str, begin: float, microseconds: float, kind: str, thread: int = 1) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": begin, "dur": microseconds, "cat": kind, "tid": thread}


def trace() -> list[dict[str, Any]]:
    """Two steps of a millisecond. The GPU works on two streams; the host waits, launches, and waits in autograd."""
    return [
        event("ProfilerStep#31", 0, 1000, "user_annotation"),
        event("ProfilerStep#32", 1000, 1000, "user_annotation"),
        event("ProfilerStep#32", 1100, 900, "gpu_user_annotation", thread=9),
        event("autograd::engine::evaluate_function: AddmmBackward0", 300, 100, "cpu_op", thread=2),
        event("cudaLaunchKernel", 10, 8, "cuda_runtime"),
        event("cudaEventSynchronize", 100, 150, "cuda_runtime"),
        event("cudaLaunchKernel", 400, 300, "cuda_runtime", thread=2),
        event("cudaStreamSynchronize", 1900, 400, "cuda_runtime"),
        event("cudaEventSynchronize", 0, 2000, "cuda_runtime", thread=3),
        event("nvjet_1", 100, 600, "kernel", thread=7),
        event("nvjet_1", 1100, 600, "kernel", thread=7),
        event("some_kernel", 500, 400, "kernel", thread=8),
        event("Memset (Device)", 2050, 50, "gpu_memset", thread=7),
        {"ph": "i", "name": "an instant", "ts": 5},
    ]


def test_a_trace_is_summed_by_category(tmp_path: Path) -> None:
    profile = profile_of(trace())
    assert (profile.steps, profile.step_ms) == (2, 1.0)
    assert profile.busy == pytest.approx((800 + 600 + 50) / 2000), "overlapping kernels count once"
    assert profile.host_ms == pytest.approx((2000 - 150 - 300 - 100) / 2 / 1000), "not thread 3, and not after the step"
    assert profile.shares["matrix products"] == pytest.approx(1200 / 1650)
    assert sum(profile.shares.values()) == pytest.approx(1)

    assert [(kernel.name, kernel.count, kernel.us) for kernel in profile.kernels] == [
        ("nvjet_1", 1.0, 600.0),
        ("some_kernel", 0.5, 200.0),
        ("Memset (Device)", 0.5, 25.0),
    ]
    assert [kernel.name for kernel in profile.others] == ["some_kernel"]
    assert "| matrix products | 72.7% |" in shown(profile, "a run")


def test_a_trace_of_a_cpu_has_no_share_of_a_gpu() -> None:
    profile = profile_of(trace()[:4])
    assert profile.busy is None and profile.kernels == [] and "no GPU" in shown(profile, "a run")
