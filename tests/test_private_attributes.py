"""Checks that private parts of DeepSpeed, torch and Beam are used only in one adapter file each, to localize upgrades.

These count as private: attributes with one leading underscore on anything but `self` or our own modules, known internal
names of DeepSpeed's optimizers and parameters, and modules that are documented as internal, also as strings.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = ("schemas", "pipeline", "trainer", "clozeline", "deploy", "benchmarks")

ADAPTERS = {
    Path("trainer/distributed/deepspeed_internals.py"),
    Path("trainer/distributed/torch_internals.py"),
    Path("pipeline/beam/internals.py"),
}

INTERNAL_MODULES = ("deepspeed.runtime", "deepspeed.comm.torch", "apache_beam.runners")

DEEPSPEED_NAMES = {"__compatible_ops__", "basic_optimizer", "build_shm_op", "cur_scale", "ds_id", "ds_numel"}
DEEPSPEED_NAMES |= {"ds_persist", "ds_shape", "ds_status", "ds_tensor", "fp16_partitioned_groups_flat"}
DEEPSPEED_NAMES |= {"fp32_partitioned_groups_flat", "get_param_id", "grad_position", "hp_fragment_address"}
DEEPSPEED_NAMES |= {"loss_scaler", "lp_fragment_address", "param_group_index", "persistent_parameters"}

ACCEPTED = {
    "_ArgumentGroup": "the type of argparse's groups, which has no public name",
    "_actions": "argparse has no public list of a parser's flags",
    "_asdict": "a documented method of named tuples",
    "_fields": "a documented attribute of named tuples",
    "_exit": "os._exit is documented",
    "_group_actions": "what a group of argparse holds; its formatters have no public way to ask",
    "_run_exitfuncs": "atexit has no public way to run the handlers early",
    "_flash_attention_forward": "an operator of ATen; torch's public function for it has no dropout",
    "_n_gpu": "Trainer has no public way to use one GPU of those that a process sees; it sets this itself",
    "_replace": "a documented method of named tuples",
}
"""Private-looking names that may be used anywhere, with the reason."""

LOOK_UPS = ("getattr", "hasattr", "setattr", "delattr")


def source_files() -> list[Path]:
    files = [path for package in PACKAGES for path in sorted(Path(package).rglob("*.py"))]
    return [path for path in files if path not in ADAPTERS]


def is_private(name: str) -> bool:
    is_dunder = name.startswith("__")
    return name.startswith("_") and not is_dunder and name not in ACCEPTED


def own_modules(tree: ast.Module) -> set[str]:
    """Return the names that a file imports from our own packages."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES:
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def own_attributes(tree: ast.Module) -> set[str]:
    """Return the attributes that a file defines itself, and may therefore use on any object of its classes."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)  # a field of a dataclass
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own_object(node.value):
            names.add(node.attr)
    return names


def is_own_object(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def imported_modules(node: ast.AST) -> list[str]:
    """Return the full names that an import statement, or a call of import_module with a literal, imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        return [text_of(argument) for argument in node.args]
    return []


def text_of(node: ast.expr) -> str:
    """Return the value of a literal string, or an empty string for any other expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ""


def violations(path: Path) -> Iterator[str]:
    """Yield one line for each use of something private in a file."""
    tree = ast.parse(path.read_text())
    modules = own_modules(tree)
    attributes = own_attributes(tree)

    for node in ast.walk(tree):
        place = f"{path}:{getattr(node, 'lineno', 0)}"

        for module in imported_modules(node):
            is_internal = any(f"{module}.".startswith(f"{internal}.") for internal in INTERNAL_MODULES)
            is_ours = module.split(".")[0] in PACKAGES
            has_private_part = any(is_private(part) for part in module.split("."))
            if is_internal or (has_private_part and not is_ours):
                yield f"{place}: imports {module}"

        if isinstance(node, ast.Attribute):
            on_own_module = isinstance(node.value, ast.Name) and node.value.id in modules
            is_known = is_own_object(node.value) or on_own_module or node.attr in attributes
            if node.attr in DEEPSPEED_NAMES or (is_private(node.attr) and not is_known):
                yield f"{place}: {ast.unparse(node)}"

        if isinstance(node, ast.Constant) and text_of(node).startswith("apache_beam.runners"):
            yield f"{place}: {text_of(node)}"

        if isinstance(node, ast.Call) and ast.unparse(node.func) in LOOK_UPS and len(node.args) > 1:
            name = text_of(node.args[1])
            if name in DEEPSPEED_NAMES or is_private(name):
                yield f"{place}: {ast.unparse(node)}"


@pytest.mark.parametrize("package", PACKAGES)
def test_private_attributes_are_used_in_adapters_only(package: str) -> None:
    files = [path for path in source_files() if path.parts[0] == package]
    found = [line for path in files for line in violations(path)]
    assert not found, "\n" + "\n".join(found)


EXAMPLES = {
    "an-attribute": "x = engine.optimizer._global_grad_norm",
    "a-look-up": 'x = hasattr(parameter, "_hp_mapping")',
    "a-name-of-deepspeed": "x = parameter.ds_shape",
    "a-name-that-is-looked-up": 'x = getattr(parameter, "ds_shape", None)',
    "an-internal-module": "from deepspeed.runtime.base_optimizer import ZeROOptimizer",
    "an-internal-package": "from apache_beam import runners",
    "by-import-module": 'import_module("deepspeed.comm.torch")',
    "the-name-of-an-internal-module": 'x = "apache_beam.runners.worker"',
    "a-private-name": "from torch.distributed.distributed_c10d import _set_pg_timeout",
}

HARMLESS = {
    "its-own": "class A:\n    def f(self, other):\n        self._x = other._x",
    "our-module": "from trainer.distributed import kernels\nkernels._build_folder()",
    "documented": "os._exit(1)",
    "public": "from deepspeed.accelerator import get_accelerator",
    "dunder": "x = torch.__version__",
}


@pytest.mark.parametrize("name", [*EXAMPLES, *HARMLESS])
def test_private_things_are_found_and_no_others(tmp_path: Path, name: str) -> None:
    path = tmp_path / "example.py"
    path.write_text(EXAMPLES.get(name) or HARMLESS[name])
    assert len(list(violations(path))) == (name in EXAMPLES)
