"""Checks the compiler, ninja and Python's headers, with which torch builds C++, and DeepSpeed's CPU kernels.

CPU ranks cannot start without DeepSpeed's communication kernels. Building them takes minutes and leaves files, so here
only a file of two lines is compiled, in a temporary folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from trainer.doctor.device import device_kind
from trainer.doctor.finding import Finding, failed
from trainer.doctor.plan import Plan

INSTALL_COMPILER = "Install a C++ compiler and Python's headers: on Debian and Ubuntu, apt-get install g++ python3-dev."

PROGRAM = "#include <Python.h>\nint main() { return 0; }\n"

COMPILE_SECONDS = 60.0


def check_build_tools(plan: Plan) -> list[Finding]:
    """Check the tools that build C++ at the first start, and whether the CPU kernels are already built."""
    needs_build = device_kind() == "cpu"
    built = kernels_folder() if needs_build else None
    is_built = built is not None and any(built.glob("*.so"))

    findings = [
        compiler_finding(is_needed=needs_build and not is_built),
        ninja_finding(is_needed=needs_build),
    ]
    if built is not None:
        findings.append(kernels_finding(built, is_built))
    return findings


def compiler_finding(is_needed: bool) -> Finding:
    """Check that the compiler works by compiling a small file. is_needed: whether training fails without it."""
    compiler = os.environ.get("CXX", "c++")
    path = shutil.which(compiler)
    facts = {"compiler": path}
    if path is None:
        return missing("compiler", f"there is no {compiler} on PATH", INSTALL_COMPILER, is_needed)

    error = compile_error(path)
    if error:
        return missing("compiler", f"{path} cannot compile with Python's headers: {error}", INSTALL_COMPILER, is_needed)
    return Finding("compiler", "ok", f"{path}, and Python's headers", facts=facts)


def ninja_finding(is_needed: bool) -> Finding:
    """Look for ninja next to this Python, which the trainer prefers, and then on PATH."""
    own = Path(sys.executable).parent / "ninja"
    path = str(own) if own.exists() else shutil.which("ninja")
    if path is None:
        return missing("ninja", "there is no ninja on PATH", "Install it: pip install ninja.", is_needed)
    return Finding("ninja", "ok", path, facts={"ninja": path})


def missing(name: str, value: str, advice: str, is_needed: bool) -> Finding:
    """Return a finding for a missing tool. CPU ranks do not start without it, and GPUs cannot compile or offload."""
    if is_needed:
        return failed(name, value, advice)
    for_what = "Needed for engine.compile, engine.offload and the first start on CPUs."
    return Finding(name, "note", value, f"{for_what} {advice}")


def compile_error(compiler: str) -> str:
    """Return the compiler's first error for a file that includes Python.h, empty if there is none."""
    headers = sysconfig.get_path("include")
    with tempfile.TemporaryDirectory(prefix="clozeline-doctor-") as folder:
        source = Path(folder, "program.cpp")
        source.write_text(PROGRAM)
        command = [compiler, "-fsyntax-only", f"-I{headers}", str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)

    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line), f"exit code {done.returncode}")


def kernels_folder() -> Path | None:
    """Return the folder of DeepSpeed's CPU kernels, without creating it; None if DeepSpeed does not use them."""
    from trainer.distributed import kernels
    from trainer.distributed.deepspeed_internals import communication_kernels_name

    name = communication_kernels_name()
    if name is None:
        return None

    kernels._use_own_build_folder()
    return Path(os.environ["TORCH_EXTENSIONS_DIR"], name)


def kernels_finding(folder: Path, is_built: bool) -> Finding:
    """Return a finding that says whether the first start has to build the kernels."""
    facts = {"folder": str(folder), "is_built": is_built}
    if is_built:
        return Finding("CPU kernels", "ok", f"built in {folder}", facts=facts)
    return Finding("CPU kernels", "note", f"not built yet; the first start builds them in {folder}", "", facts)
