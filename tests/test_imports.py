"""Which folder may import which: schemas is all that the halves share, and each runs without the other's weight."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

FORBIDDEN = {
    "schemas": {"pipeline", "trainer", "apache_beam", "torch", "deepspeed", "transformers"},
    "pipeline": {"trainer", "torch", "deepspeed", "transformers"},
    "trainer": {"pipeline", "apache_beam", "transformers"},
}
EXCEPT = {Path("trainer/export/verify.py"): {"transformers"}}  # a check of what was exported, where it is installed


def imported(path: Path) -> set[str]:
    """Top-level names of everything that a file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_imports_go_one_way(folder: str) -> None:
    files = list(Path(folder).rglob("*.py"))
    assert files
    for path in files:
        assert not (imported(path) - EXCEPT.get(path, set())) & FORBIDDEN[folder], path


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import pipeline.cli; pipeline.cli.parser().format_help()", ["torch", "apache_beam"]),
        ("import pipeline.jobs.shard, pipeline.jobs.vocab, pipeline.jobs.pairs", ["torch", "transformers"]),
        ("import trainer, trainer.train, trainer.export.convert", ["apache_beam", "transformers"]),
        ("import schemas.masking, schemas.manifest, schemas.shards", ["torch", "apache_beam", "tokenizers"]),
    ],
)
def test_nothing_heavy_comes_along(statement: str, absent: list[str]) -> None:
    code = f"import sys\n{statement}\nprint([name for name in {absent} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"
