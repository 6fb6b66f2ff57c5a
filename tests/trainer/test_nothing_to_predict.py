"""Rows of unknown words alone: no mask can be drawn, so there is no loss, and the run says so."""

import json
from pathlib import Path

import pytest

from tests.conftest import made, rows


@pytest.fixture(scope="module")
def unknown_words(command, vocab: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs whose every word is [UNK] in a vocabulary of English."""
    folder = tmp_path_factory.mktemp("unknown")
    sentences = ["\u0436" * n for n in range(1, 7)]
    lines = [json.dumps({"text": "\n".join(f"{word} {i}\u0444" for word in sentences)}) for i in range(60)]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    splitting = ("--sentence_splitter", "newline", "--num_shards", 1)
    text = made(command, folder / "text", "shard", "--input", folder / "corpus.jsonl", *splitting)
    return rows(command, "pairs", text, vocab, "nsp", 16)


def test_a_step_without_masks_is_an_error_that_names_it(training, unknown_words: Path, tmp_path: Path) -> None:
    done = training.warm(2, tmp_path / "run", data__pairs=unknown_words, run__stop_at=1)
    assert done.returncode == 3 and done.stderr.count("clozeline:") == 1 and "Traceback" not in done.stderr, done.stderr
    assert "The batch of step 1 has no masked token" in done.stderr


def test_an_evaluation_without_masks_is_an_error(training, unknown_words: Path, tmp_path: Path) -> None:
    evaluated = {"evaluation__pairs": unknown_words, "evaluation__every": 1}
    done = training.warm(2, tmp_path / "run", run__stop_at=1, checkpoint__every=1, **evaluated)
    assert done.returncode == 3 and done.stderr.count("clozeline:") == 1 and "Traceback" not in done.stderr, done.stderr
    assert "has no token that masks of kind token can be drawn on" in done.stderr
