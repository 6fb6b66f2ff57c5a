"""Finished folders of pairs: every objective and option, as other libraries read them."""

import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from tokenizers import Tokenizer

from pipeline.jobs import pairs as pairs_job
from pipeline.pairs.segmenters import SEGMENTERS
from schemas import shards
from schemas.manifest import read_manifest
from schemas.vocabulary import read_vocabulary
from tests.conftest import made
from tests.pipeline.text_rows import sentences_of


@pytest.mark.parametrize("objective", ["full_sentences", "doc_sentences"])
@pytest.mark.parametrize("folder", ["vocab", "byte_vocab"])
def test_rows_of_sentences_with_stored_masks(command, request, text, tmp_path, objective, folder) -> None:
    """One segment, no labels, separators between documents; other libraries open the shards as they are."""
    out, vocab = tmp_path / "pairs", request.getfixturevalue(folder)
    flags = ("--objective", objective, "--max_length", 64, "--static_masks", 2, "--masking", "span", "--dupe_factor", 2)
    made(command, out, "pairs", "--text", text, "--vocab", vocab, *flags)
    assert command("verify", out).returncode == 0
    found, vocabulary = read_manifest(str(out), "pairs"), read_vocabulary(str(vocab))
    assert found.statistics["labels"] == [0, 0] and found.statistics["masks"]["chosen"] > 0
    cls, sep = vocabulary.special_id("cls"), vocabulary.special_id("sep")
    frames = polars.concat([polars.read_ipc(out / shard.path) for shard in found.shards])
    opened = pa.concat_tables([pa.ipc.open_file(out / shard.path).read_all() for shard in found.shards]).to_pylist()
    assert frames.to_dicts() == opened and len(opened) == found.totals["rows"]
    across = 0
    for row in opened:
        assert row["pair_label"] is None and row["segment_b_start"] == len(row["input_ids"]) <= 64
        assert row["input_ids"][0] == cls and row["input_ids"][-1] == sep
        assert (row["document_a"] != row["document_b"]) <= (row["input_ids"].count(sep) > 1)
        assert len(row["mask_positions"]) == len(row["mask_tokens"]) == 2
        across += row["input_ids"].count(sep) - 1
    assert (across > 0) == (objective == "full_sentences")
    tokens = sum(len(row["input_ids"]) - 2 for row in opened) - across
    whole = sum(text_tokens(text, vocab))
    assert tokens == 2 * whole  # two passes, each token once a pass


def text_tokens(text: Path, vocab: Path) -> list[int]:
    tokenizer = Tokenizer.from_file(str(vocab / "tokenizer.json"))
    return [len(tokenizer.encode(sentence, add_special_tokens=False).ids) for sentence in sentences_of(text)]


def test_chinese_words_begin_where_jieba_says(command, tmp_path) -> None:
    sentence = "\u6211\u7231\u5317\u4eac\u5929\u5b89\u95e8\u3002"
    (tmp_path / "zh.txt").write_text(f"{sentence}\n{sentence}\n\n{sentence}\n\u5317\u4eac\u5927\u3002\n")
    text, vocab = tmp_path / "text", tmp_path / "vocab"
    for arguments in (
        ("shard", "--input", tmp_path / "zh.txt", "--output", text, "--language", "zh"),
        ("vocab", "--text", text, "--output", vocab, "--model", "wordpiece", "--size", 60),
        *(
            ("pairs", "--text", text, "--vocab", vocab, "--output", tmp_path / name, "--objective", "sop", *flags)
            for name, flags in (
                ("plain", ()),
                ("words", ("--word_segmenter", "jieba")),
                ("auto", ("--word_segmenter", "auto")),
            )
        ),
    ):
        done = command(*arguments)
        assert done.returncode == 0 and done.stderr == "", done.stderr
    vocabulary = read_vocabulary(str(vocab))
    plain, words, auto = (
        shards.decode_table(
            next((tmp_path / name).glob("*.arrow")).read_bytes(), name, shards.pairs_schema(vocabulary.size)
        )
        for name in ("plain", "words", "auto")
    )
    assert auto == words  # the text's language
    assert plain.drop("word_starts") == words.drop("word_starts")  # the segmenter changes no id
    for row in words.to_pylist():
        joined = [
            vocabulary.tokens[i] for i, starts in zip(row["input_ids"], row["word_starts"], strict=True) if not starts
        ]
        assert joined[:1] == ["[CLS]"] and {"\u4eac", "\u5b89", "\u95e8"} >= set(joined) - {"[CLS]", "[SEP]"} != set()


LANGUAGES = {
    "ja": ("日本語の文章です", ["日本", "語", "の", "文章", "です"]),
    "th": ("ฉันรักภาษาไทยเพราะฉันเป็นคนไทย", ["ฉัน", "รัก", "ภาษาไทย", "เพราะ", "ฉัน", "เป็น", "คนไทย"]),
    "zh": ("我爱北京天安门", ["我", "爱", "北京", "天安门"]),
    "de": ("Die Katze sieht den Hund im Garten", ["Die", "Katze", "sieht", "den", "Hund", "im", "Garten"]),
}


def read_words(folder: Path, of_name: str) -> dict[str, list[str]]:
    """Return the words of each document, as `word_starts` has them, and check that ids are those of another folder."""
    vocabulary = read_vocabulary(str(folder / "vocabulary"))
    tables = [
        shards.decode_table(next(path.glob("*.arrow")).read_bytes(), path.name, shards.pairs_schema(vocabulary.size))
        for path in (folder, folder.parent / of_name)
    ]
    assert tables[0].drop("word_starts") == tables[1].drop("word_starts")  # a segmenter changes no id
    words: dict[str, list[str]] = {}
    for row in tables[0].to_pylist():
        of_document = words.setdefault(row["document_a"], [])
        for token_id, starts in zip(row["input_ids"], row["word_starts"], strict=True):
            token = vocabulary.tokens[token_id].removeprefix("##")
            if starts:
                of_document.append(token)
            elif token_id not in vocabulary.special_ids:
                of_document[-1] += token
    return {"".join(found): found for found in words.values()}


@pytest.mark.parametrize("segmenter", ["auto", "sudachi", "nlpo3"])
def test_each_language_has_the_words_of_its_segmenter(command, tmp_path, segmenter: str) -> None:
    """In one folder, without labels. A segmenter that was named decides about all documents."""
    documents = [json.dumps({"text": text}, ensure_ascii=False) for text, _ in LANGUAGES.values()]
    (tmp_path / "in.jsonl").write_text("\n".join(documents))
    text, vocab, out = tmp_path / "text", tmp_path / "vocab", tmp_path / "words"
    pairs = ("pairs", "--text", text, "--vocab", vocab, "--objective", "doc_sentences", "--output")
    for arguments in (
        ("shard", "--input", tmp_path / "in.jsonl", "--output", text, "--language", "auto", "--num_shards", 1),
        ("vocab", "--text", text, "--output", vocab, "--model", "wordpiece", "--size", 400, "--min_frequency", 99),
        (*pairs, tmp_path / "plain"),
        (*pairs, out, "--word_segmenter", segmenter),
    ):
        done = command(*arguments)
        assert done.returncode == 0, done.stderr

    found = read_words(out, "plain")
    for code, (sentence, words) in LANGUAGES.items():
        is_cut = segmenter == "auto" or code == "de" or SEGMENTERS[segmenter].language == code
        if code != "zh" or segmenter != "sudachi":  # which cuts Chinese too, in its way
            assert (found[sentence.replace(" ", "")] == words) == is_cut, code

    used = [SEGMENTERS[name] for name in (SEGMENTERS if segmenter == "auto" else [segmenter])]
    versions = {package: version(package) for one in used if one.is_recorded for package in one.packages}
    assert read_manifest(str(out), "pairs").options["segmenter_versions"] == versions


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_document_without_a_token_is_left_out(command, vocab, tmp_path, place: int) -> None:
    """Combining accents alone: BERT's rules strip them. Such a document once lent its neighbour's text as another's."""
    documents = ["The cat sees the dog. The dog sees the cat. As always."] * 2
    documents[1] = "The river crosses the garden. The teacher opens a window."
    documents.insert(place, "\u0301 \u0301")
    (tmp_path / "in.txt").write_text("\n".join(documents))
    text, out = tmp_path / "text", tmp_path / "pairs"
    shard = ("shard", "--input", tmp_path / "in.txt", "--output", text, "--text_layout", "line", "--num_shards", 1)
    assert command(*shard).returncode == 0
    flags = ("--objective", "nsp", "--dupe_factor", 20, "--max_length", 16)
    made(command, out, "pairs", "--text", text, "--vocab", vocab, *flags)
    found = read_manifest(str(out), "pairs")
    assert {entry.reason: entry.count for entry in found.ledger}["document without a token of the vocabulary"] == 20


def test_a_vocabulary_that_changes_during_the_job_is_an_error(
    command, text: Path, vocab: Path, byte_vocab: Path, tmp_path: Path, monkeypatch
) -> None:
    used = shutil.copytree(vocab, tmp_path / "vocab")

    def replace_vocabulary(*arguments: Any) -> Any:
        shutil.copy(byte_vocab / "tokenizer.json", used)
        return card(*arguments)

    card = pairs_job.data_card
    monkeypatch.setattr(pairs_job, "data_card", replace_vocabulary)
    words = ("pairs", "--text", text, "--vocab", used, "--output", tmp_path / "pairs", "--objective", "sop")
    done = command(*words, "--max_length", 32, "--direct_num_workers=1")
    assert done.returncode == 3 and f"{used} changed while the job ran" in done.stderr

    monkeypatch.undo()
    shutil.copy(vocab / "tokenizer.json", used)
    assert command(*words, "--max_length", 32).returncode == 0
