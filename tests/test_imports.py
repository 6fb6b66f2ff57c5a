"""Checks which package imports which.

    clozeline -> pipeline, trainer -> schemas

The two halves share only schemas, and each half runs without the other's heavy dependencies. No modules import each
other in a circle, not even inside of functions.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

HEAVY = {"apache_beam", "torch", "deepspeed", "transformers"}
FORBIDDEN = {
    "schemas": HEAVY | {"clozeline", "pipeline", "trainer"},
    "pipeline": {"clozeline", "trainer", "torch", "deepspeed", "transformers"},
    "trainer": {"clozeline", "pipeline", "apache_beam", "transformers"},
    "clozeline": HEAVY,
}
EXCEPTIONS = {
    Path("trainer/export/verify.py"): {"transformers"},  # compares an export with transformers, if that is installed
    Path("clozeline/start/blanks.py"): {"torch", "transformers"},  # a program that shows what an export knows
    # Entry points explain a missing extra before they import anything else.
    Path("pipeline/__main__.py"): {"clozeline"},
    Path("trainer/__main__.py"): {"clozeline"},
    Path("trainer/export/__main__.py"): {"clozeline"},
    Path("trainer/doctor.py"): {"clozeline"},
    Path("trainer/report.py"): {"clozeline"},
    Path("trainer/finetune/__main__.py"): {"clozeline"},
    Path("trainer/suite/__main__.py"): {"clozeline"},
    Path("trainer/suite/child.py"): {"clozeline"},
}


USERS_OF_TRANSFORMERS = {("trainer", "finetune"), ("trainer", "suite")}
"""Packages that may import transformers: they take encoders of any origin, and have their own extra."""


def imported_names(path: Path) -> set[str]:
    """Return the top-level packages that a file imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_imports_go_one_way(folder: str) -> None:
    files = list(Path(folder).rglob("*.py"))
    assert files
    for path in files:
        names = imported_names(path) - EXCEPTIONS.get(path, set())
        if path.parts[:2] in USERS_OF_TRANSFORMERS:
            names.discard("transformers")
        assert not names & FORBIDDEN[folder], path


def module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imports_in(node: ast.AST) -> Iterator[str]:
    """Names of modules, and of what is imported from them. Imports for type checkers alone are left out."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.Import):
            yield from (name.name for name in inner.names)
        elif isinstance(inner, ast.ImportFrom) and inner.module:
            yield from (inner.module, *(f"{inner.module}.{name.name}" for name in inner.names))
        is_for_types = isinstance(inner, ast.If) and "TYPE_CHECKING" in ast.unparse(inner.test)
        if not is_for_types:
            yield from imports_in(inner)


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Neither at the top nor inside of functions."""
    paths = {module_of(path): path for folder in FORBIDDEN for path in Path(folder).rglob("*.py")}
    assert len(paths) > 100
    graph = {}
    for module, path in paths.items():
        names = set(imports_in(ast.parse(path.read_text())))
        graph[module] = names & paths.keys() - {module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_installation_imports_the_standard_library_alone() -> None:
    """This module explains why other imports fail, so it must not fail itself."""
    names = imported_names(Path("clozeline/installation.py"))
    # `schemas` only inside of functions, once no other project's module of that name was found.
    assert names - {"schemas"} <= set(sys.stdlib_module_names)


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import pipeline.cli; pipeline.cli.parser().format_help()", ["torch", "apache_beam", "pydantic"]),
        ("import pipeline.jobs.shard, pipeline.jobs.vocab, pipeline.jobs.pairs", ["torch", "transformers"]),
        ("import trainer.models.hf_config", ["torch", "transformers", "safetensors"]),  # the doctor runs without them
        ("import pipeline.statistics", ["torch", "apache_beam", "boto3"]),
        ("import trainer, trainer.train, trainer.export.convert", ["apache_beam", "transformers"]),
        ("import trainer.export.convert", ["deepspeed"]),
        ("import trainer.export.request, trainer.export.cli", ["torch", "transformers", "deepspeed"]),
        ("import schemas.masking, schemas.manifest, schemas.shards", ["torch", "apache_beam", "tokenizers"]),
        (
            "import clozeline.cli; clozeline.cli.usage_parser().format_help()",
            ["numpy", "pydantic", "pipeline", "trainer"],
        ),
        ("import clozeline.cli; clozeline.cli.main(['recipes'])", ["torch", "deepspeed", "transformers", "pyarrow"]),
    ],
)
def test_nothing_heavy_comes_along(statement: str, absent: list[str]) -> None:
    code = f"import sys\n{statement}\nprint([name for name in {absent} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"
