import pytest


def test_help_answers_at_once_and_without_beam(run) -> None:
    done = run("python", "-X", "importtime", "-m", "pipeline", "--help")
    assert done.returncode == 0 and "shard" in done.stdout
    assert "apache_beam" not in done.stderr and "torch" not in done.stderr


@pytest.mark.parametrize("job", ["shard", "vocab", "pairs", "inspect", "verify"])
def test_each_command_explains_itself(run, job: str) -> None:
    done = run("python", "-m", "pipeline", job, "--help")
    assert done.returncode == 0 and done.stderr == ""


def test_inspect_shows_text_vocabulary_and_pairs(command, text, vocab, pairs) -> None:
    shown = {folder.name: command("inspect", folder, "--rows", 2).stdout for folder in (text, vocab, pairs)}
    assert "documents" in shown["text"] and shown["text"].count(" sentences\n") == 2
    assert "distinct_words" in shown["vocab"]
    assert shown["pairs"].count("\n  A  [CLS]") == 2 and shown["pairs"].count("\n  B ") == 2
    counts = command("inspect", vocab / "word_counts.arrow", "--rows", 1).stdout
    assert "the" in counts
