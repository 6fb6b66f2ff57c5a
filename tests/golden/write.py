"""The golden folders of the current format: `python -m tests.golden.write`, from the root of the repository.

Run it once, in the commit that raises FORMAT_VERSION or decides to change what the commands make.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from schemas import FORMAT_VERSION

GOLDEN = Path(__file__).parent
CORPUS = GOLDEN / "corpus.jsonl"
NEWEST = GOLDEN / f"v{FORMAT_VERSION}"


def commands(folder: Path) -> list[list[str]]:
    """The arguments of the three jobs, whose folders text, vocab and pairs lie in `folder`."""
    text = str(folder / "text")
    vocab = str(folder / "vocab")
    pairs = str(folder / "pairs")
    making_vocab = ["--model", "wordpiece", "--size", "90", "--min_frequency", "1"]
    making_pairs = ["--objective", "nsp", "--max_length", "24"]
    return [
        ["shard", "--input", str(CORPUS), "--output", text],
        ["vocab", "--text", text, "--output", vocab, *making_vocab],
        ["pairs", "--text", text, "--vocab", vocab, "--output", pairs, *making_pairs],
    ]


def main() -> None:
    """Make the folders again. The card is left out: it shows what the manifest holds."""
    root = GOLDEN.parents[1]
    for name in ("text", "vocab", "pairs"):
        shutil.rmtree(NEWEST / name, ignore_errors=True)
    for arguments in commands(NEWEST.relative_to(root)):
        arguments = [argument.replace(str(root) + "/", "") for argument in arguments]
        subprocess.run([sys.executable, "-m", "pipeline", *arguments], cwd=root, check=True)
    (NEWEST / "pairs" / "card.html").unlink()


if __name__ == "__main__":
    main()
