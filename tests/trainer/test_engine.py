"""What an engine keeps, waits for and begins with."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from deepspeed.accelerator import get_accelerator
from torch.utils._python_dispatch import TorchDispatchMode

from schemas.errors import UsageError
from schemas.host_limits import ranks_on_this_machine
from trainer.build_model import check_compiler
from trainer.config.schema import EngineSection
from trainer.distributed.zero import set_updates_made, updates_made
from trainer.engine import check_precision, set_up_arithmetic, warn_of_slow_precision
from trainer.optim.optimizers import Lamb


@pytest.fixture(scope="module")
def facts(run, pairs: Path, tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("facts")
    # -B: in a new process, because gc.unfreeze does nothing in a fork, and what it keeps would not be collected.
    done = run("python", "-B", "-m", "tests.trainer.engine_facts", pairs, folder / "run", folder / "facts.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "facts.json").read_text())
    print(found)
    assert found["code"] == 0, done.stderr
    return found


def test_the_former_phase_s_model_is_gone_before_the_next_is_built(facts: dict) -> None:
    assert facts["former models alive"] == [0, 0]


def test_no_micro_batch_waits_for_the_whole_device(facts: dict) -> None:
    """DeepSpeed's timers do, twice each; ZeRO itself only when it is built and at an update."""
    waits = facts["waits for the device"]
    assert "timer.py" not in waits and len(waits) <= facts["micro-batches"] // 4


@pytest.mark.parametrize(
    "case", [f"{stage}-{precision}" for precision in ("fp32", "bf16", "fp16") for stage in range(4)]
)
def test_an_empty_engine_gets_the_weights_that_it_is_sent(facts: dict, case: str) -> None:
    assert facts["sent otherwise"][case] == 0.0


def test_weights_are_drawn_once_and_not_for_a_phase_that_resumes(facts: dict) -> None:
    assert facts["drawn for engines"] == [1]


def test_stage_3_never_has_more_than_a_module_whole(facts: dict) -> None:
    assert 0 < facts["allocated at once"] <= facts["largest module"]


class Reads(TorchDispatchMode):
    """How often a value is read from a tensor, which on a GPU waits for all that was asked of it."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_a_lamb_update_reads_no_value_back_after_a_resume() -> None:
    weights = [torch.nn.Parameter(torch.randn(5, 4)) for _ in range(7)]
    lamb = Lamb([{"params": weights}], 0.01, (0.9, 0.999), 1e-6, {})
    engine = SimpleNamespace(basic_optimizer=lamb)
    for updates in range(3):
        if updates == 2:
            set_updates_made(engine, 41)  # type: ignore[arg-type]
        for weight in weights:
            weight.grad = torch.randn(5, 4)
        with Reads() as reads:
            lamb.step()
        assert reads.count == 0
    assert updates_made(engine) == 42  # type: ignore[arg-type]


@pytest.fixture
def arithmetic():
    precision = torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(deterministic)


def test_arithmetic_is_the_recipe_s_on_a_gpu(arithmetic, monkeypatch) -> None:
    monkeypatch.setattr(type(get_accelerator()), "device_name", lambda self, index=None: "cuda")
    for deterministic in (True, False):
        set_up_arithmetic(EngineSection(deterministic=deterministic))
        assert torch.are_deterministic_algorithms_enabled() == deterministic
    assert torch.get_float32_matmul_precision() == "high"


def test_a_gpu_without_bf16_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(type(get_accelerator()), "device_name", lambda self, index=None: "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla V100-SXM2-16GB")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    with pytest.raises(UsageError, match=r"bf16: Tesla V100-SXM2-16GB does not support it\. Use fp16 or fp32"):
        check_precision("bf16")
    check_precision("fp32")


@pytest.mark.parametrize(("device", "variable"), [("cpu", "CXX"), ("cuda", "CC")])
def test_compiling_without_a_compiler_is_refused(
    device: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_compiler(device)
    monkeypatch.setenv(variable, "no-compiler")
    with pytest.raises(UsageError, match=r"no-compiler is not on PATH.* --set engine\.compile=false"):
        check_compiler(device)

    monkeypatch.delenv(variable)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(UsageError, match=rf"{tmp_path}/Python\.h does not exist.*python3-dev"):
        check_compiler(device)


def test_on_linux_torch_compile_looks_for_no_other_compiler_than_g(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("shutil.which", lambda program: None if program == "g++" else f"/usr/bin/{program}")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UsageError, match=r"g\+\+ is not on PATH"):
        check_compiler("cpu")


@pytest.mark.parametrize(
    ("variables", "ranks"),
    [
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, 8),  # torchrun
        ({"WORLD_SIZE": "16", "LOCAL_SIZE": "4"}, 4),  # DeepSpeed's launcher
        ({"WORLD_SIZE": "2"}, 2),
        ({}, 1),
    ],
    ids=["torchrun", "deepspeed", "plain", "alone"],
)
def test_ranks_of_other_machines_take_no_cores_here(variables: dict[str, str], ranks: int, monkeypatch) -> None:
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ranks_on_this_machine() == ranks


def test_cores_are_those_that_the_process_may_use() -> None:
    """As Slurm and containers restrict it: here, to one core."""
    restriction = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    question = "from schemas.host_limits import usable_cores; print(usable_cores())"
    done = subprocess.run(
        [sys.executable, "-c", f"{restriction}; {question}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[-1] == "1"


@pytest.mark.parametrize(
    ("device", "precision", "is_told"), [("cpu", "bf16", True), ("cpu", "fp32", False), ("cuda", "bf16", False)]
)
def test_bf16_on_a_cpu_may_be_slow_and_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys, device: str, precision: str, is_told: bool
) -> None:
    monkeypatch.setattr("trainer.engine.device_kind", lambda: device)
    warn_of_slow_precision(precision)
    told = capsys.readouterr().out
    assert ("--set engine.precision=fp32" in told) == is_told and told.count("\n") == is_told
