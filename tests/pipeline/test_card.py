"""The data card and its facts in a terminal, from manifests and rows made by hand."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pyarrow as pa
import pytest
from markupsafe import escape

from pipeline.card import data_card
from pipeline.inspection import show_manifest, show_pairs
from schemas import FORMAT_VERSION, shards
from schemas.manifest import Input, LedgerEntry, Manifest, Shard
from schemas.vocabulary import Vocabulary

WORDS = ("the", "fox", "jump", "##s", "over", "<i>", "dog")
VOCABULARY = Vocabulary("wordpiece", ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS), "f" * 32)
ID = {token: i for i, token in enumerate(VOCABULARY.tokens)}
NSP = {
    "labels": [600, 400],
    "lengths": [0] * 8 + [100, 200, 0, 300, 0, 0, 0, 0, 400],
    "segment_a_lengths": [0, 500, 300, 200] + [0] * 13,
    "unknown_tokens": 123,
    "tokens_by_source": {"books": 3075, "news": 9225},
    "duplicate_rows": 17,
    "commonest_tokens": [["the", 3], ["fox", 1]],
}
ONE = NSP | {"labels": [0, 0], "segment_a_lengths": []}
MASKS = {"chosen": 3690, "masked": 2952, "kept": 370, "random": 368, "eligible": 18450}


def manifest(statistics: dict[str, Any], objective: str = "nsp", **options: object) -> Manifest:
    return Manifest(
        format_version=FORMAT_VERSION,
        kind="pairs",
        options={"objective": objective, "max_length": 16, "vocabulary": "f" * 32, **options},
        inputs=[Input(path="/home/me/text", fingerprint="e" * 32), Input(path="/home/me/vocab", fingerprint="f" * 32)],
        seed=42,
        fingerprint="0123456789abcdef" * 2,
        shards=[Shard(path="pairs.arrow", rows=1000, tokens=12300, bytes=1, sha256="", fingerprint="")],
        totals={"rows": 1000, "tokens": 12300},
        statistics=statistics,
        ledger=[LedgerEntry(reason="one sentence", source="news", count=1234)],
    )


def ids(text: str) -> list[int]:
    return [ID[token] for token in text.split()]


def rows(text: str, label: int | None = 0, masks: list[dict[int, str]] | None = None, copies: int = 1) -> pa.Table:
    """The same row a few times over; segment B begins after the first [SEP] that is not the last token."""
    row = ids(text)
    inner = [i for i, token in enumerate(row[:-1]) if token == ID["[SEP]"]]
    starts = [token not in VOCABULARY.special_ids and bool(VOCABULARY.starts_word_V[token]) for token in row]
    columns: dict[str, Any] = {
        "input_ids": row,
        "segment_b_start": inner[0] + 1 if inner else len(row),
        "pair_label": label,
        "word_starts": [s or t == ID["[UNK]"] for s, t in zip(starts, row, strict=True)],
        "document_a": 10,
        "document_b": 10 + (label or 0),
    }
    if masks is not None:
        columns["mask_positions"] = [list(mask) for mask in masks]
        columns["mask_tokens"] = [[ID[token] for token in mask.values()] for mask in masks]
    schema = shards.pairs_schema(VOCABULARY.size, static_masks=masks is not None)
    return pa.Table.from_pylist([columns] * copies, schema)


PAIR = rows("[CLS] the fox [UNK] [SEP] over jump ##s [SEP]", label=1)
SINGLE = rows("[CLS] the fox jump ##s [SEP]", label=None)
MASKED = rows("[CLS] the fox jump ##s [SEP] over dog [SEP]", masks=[{2: "[MASK]", 4: "the", 7: "dog"}, {1: "[MASK]"}])
STATIC = {"static_masks": 2, "masking": "span", "mask_prob": 0.15}
CARDS = {
    "nsp": data_card(manifest(NSP), PAIR, VOCABULARY),
    "one segment": data_card(manifest(ONE, "full_sentences"), SINGLE, VOCABULARY),
    "static masks": data_card(manifest(NSP | {"masks": MASKS}, **STATIC), MASKED, VOCABULARY),
}


class Tags(HTMLParser):
    """Checks that every tag is closed in its place; gathers headings and what is written."""

    VOID = ("meta",)

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.headings: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        # As a browser shows it: a line break in the page is a space.
        self.text = re.sub(r"\s+", " ", self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data
        if "h2" in self.open:
            self.headings.append(data)


@pytest.mark.parametrize("card", CARDS)
def test_the_page_is_whole_and_needs_nothing_else(card: str) -> None:
    page = CARDS[card]
    tags = Tags(page)
    assert tags.open == []
    assert not tags.seen & {"script", "link", "img", "iframe", "object", "base"}
    assert not re.search(r"https?:|//\w|@import|url\(|\bsrc=|\bhref=|/home/me", page)
    assert "prefers-color-scheme: dark" in page and "width=device-width" in page
    # Across, drawings go in percent, so that they fit a phone.
    assert "viewBox" not in page and not re.search(r"<(?!/?svg)[^>]* width=\"\d+\"", page)


def test_nsp_says_the_figures_that_people_quote() -> None:
    tags = Tags(CARDS["nsp"])
    text = tags.text
    expected = "Lengths|Segment A|Labels|Sources|Commonest tokens|Duplicate rows|Left out of pairs|Made by|1 row"
    assert "|".join(tags.headings) == expected
    assert "rows1,000" in text and "tokens12,300" in text and "mean length12.3" in text
    assert "0123456789abcdef" * 2 in text and "seed42" in text and "objectivensp" in text and "text" + "e" * 32 in text
    assert "padding at 1623.1%" in text and "padding 23.12% 3,700" in text  # 16,000 places
    assert "[UNK] rate1.000%" in text and "duplicate rows17" in text and "17 of 1,000 rows, 1.700%" in text
    assert "0: B follows A 60.00% 600" in text and "1: B from another document 40.00% 400" in text
    assert text.index("news9,225 75.0%") < text.index("books3,075 25.0%")
    assert "the3 33.3%" in text and "one sentencenews1,234" in text
    assert "Masks" not in text and "mask rate" not in text


def test_one_segment_has_no_labels() -> None:
    tags = Tags(CARDS["one segment"])
    assert not {"Segment A", "Labels"} & set(tags.headings) and "Lengths" in tags.headings
    assert "segment B" not in tags.text and 'class="b"' not in CARDS["one segment"]
    assert "Full sentences" in tags.text
    assert '<div class="row"><span>6 tokens</span>' in CARDS["one segment"]


def test_static_masks_are_counted_and_shown() -> None:
    page, text = CARDS["static masks"], Tags(CARDS["static masks"]).text
    assert "mask rate15.00%" in text and "Masks per row: 2, of kind span" in text  # 3,690 of 2 x 12,300
    assert "80.00% 2,952" in text and "10.03% 370" in text and "9.97% 368" in text
    assert "15.00% of all, 15.00% requested; 20.00% of those that are not special." in text
    assert '<ruby><b class="masked">[MASK]</b><rt>fox</rt></ruby>' in page
    assert '<i class="piece"><ruby><b class="random">the</b><rt>s</rt></ruby></i>' in page
    assert '<b class="kept">dog</b>' in page
    assert page.count("<rt>the</rt>") == 0  # the second mask is not shown
    assert "<rt>" not in CARDS["nsp"]


def test_rows_show_words_pieces_and_special_tokens() -> None:
    page = CARDS["nsp"]
    row = page[page.index('<p dir="auto">') :]
    assert row.startswith(
        '<p dir="auto"><span class="special">[CLS]</span> <span class="a">the fox <mark>[UNK]</mark></span> '
        '<span class="special">[SEP]</span> <span class="b">over jump<i class="piece">s</i></span> '
        '<span class="special">[SEP]</span></p>'
    )
    assert "<b>1: B from another document</b> 9 tokens" in page
    assert f"documents <code>{10:016x}</code> <code>{11:016x}</code>" in page
    many = rows("[CLS] the [SEP] fox [SEP]", copies=20)
    assert data_card(manifest(NSP), many, VOCABULARY).count('class="row"') == 12


def test_a_byte_level_space_can_be_seen() -> None:
    vocabulary = Vocabulary("bytebpe", ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "\u0120", "\u0120fox"), "f" * 32)
    row = {"input_ids": [0, 6, 5, 2], "segment_b_start": 4, "word_starts": [False, True, True, False]}
    row |= {"document_a": 1, "document_b": 1}
    table = pa.Table.from_pylist([row], shards.pairs_schema(vocabulary.size))
    page = data_card(manifest(ONE, "doc_sentences"), table, vocabulary)
    assert '<span class="special">&lt;s&gt;</span> <span class="a">fox \u2423</span>' in page


def test_everything_from_data_is_escaped() -> None:
    evil = '<script>alert("1")</script>'
    statistics = NSP | {"tokens_by_source": {evil: 5}, "commonest_tokens": [[evil, 5]], "masks": MASKS}
    made = manifest(statistics, static_masks=2, masking=evil, mask_prob=0.15, note=evil)
    made = made.model_copy(update={"ledger": [LedgerEntry(reason=evil, source=evil, count=1)], "fingerprint": evil})
    page = data_card(made, rows("[CLS] <i> [SEP] fox [SEP]", masks=[{1: "the", 3: "<i>"}]), VOCABULARY)
    tags = Tags(page)
    assert tags.open == [] and "script" not in tags.seen
    # Fingerprint, mask kind twice, note, source, token, and the ledger's two.
    assert page.count(str(escape(evil))) == 8
    assert "<rt>&lt;i&gt;</rt>" in page and '<b class="random">&lt;i&gt;</b>' in page


def drawn_histogram(lengths: list[int]) -> str:
    """The first drawing on a card of rows with these lengths."""
    page = data_card(manifest(NSP | {"lengths": lengths}), PAIR, VOCABULARY)
    begin = page.index('<svg class="histogram"')
    return page[begin : page.index("</svg>", begin)]


def test_a_histogram_draws_each_count_and_breaks_only_a_bar_that_dwarfs_the_rest() -> None:
    even = drawn_histogram([0, 4, 0, 8, 2])
    assert even.count("<rect") == 3 and "gap" not in even  # nothing is drawn of an empty length
    heights = [float(h) for h in re.findall(r'height="([\d.]+)"', even)]
    assert heights == pytest.approx([84, 168, 42]) and "<title>3 tokens: 8 rows</title>" in even
    assert 'class="mean" x1="65.00' not in even and 'x1="64.29%"' in even  # (4 + 24 + 8) / 14 of 4
    spike = drawn_histogram([0, 4, 0, 8, 2, 100])
    assert spike.count('class="gap"') == 2 and ">100 rows</text>" in spike
    assert "gap" not in drawn_histogram([0, 0, 5])
    assert "<rect" not in drawn_histogram([0, 0, 0])


def test_the_terminal_says_the_same() -> None:
    lines = list(show_manifest(manifest(NSP | {"masks": MASKS}, **STATIC)))
    text = "\n".join(lines)
    assert max(len(line) for line in text.splitlines()) <= 110 and "[0, " not in text
    assert "mean 12.3 tokens, quartiles 9, 11, 16; 23.1% padding at 16" in text
    assert re.search(r"9-10 tokens +200 +20\.00%  █+", text) and re.search(r"1-2 tokens +800 +80\.00%", text)
    assert re.search(r"0: B follows A +600 +60\.00%", text)
    assert "2 a row, span: 15.00% of all tokens chosen" in text and re.search(r"the mask token +2,952 +80\.00%", text)
    assert "123 tokens, 1.000%" in text and "duplicates  17 rows" in text
    assert re.search(r"news +9,225 +75\.00%", text) and re.search(r"the +0\.02%", text)
    assert "ledger      1,234 x one sentence (news)" in text
    one = "\n".join(show_manifest(manifest(ONE, "doc_sentences")))
    assert "labels" not in one and "segment A" not in one and "masks " not in one


def test_the_terminal_stays_readable_for_other_folders() -> None:
    statistics = {"language": "en", "flag": True, "cleaning": {"spaces": 1200}, "log2": [0, 1290], "rarest": ["a", "b"]}
    statistics |= {"by": {"x": {"words": 3}}, "log2_lengths": [7, 0, 1500], "undecodable": None}
    made = manifest({}).model_copy(update={"kind": "text", "statistics": statistics})
    text = "\n".join(show_manifest(made))
    assert "log2        0  1,290" in text and "rarest      a  b" in text and "flag        True" in text
    assert re.search(r"lengths\n    1 +7\n    2-3 +0\n    4-7 +1,500\n", text) and "undecodable" not in text
    assert re.search(r"cleaning\n    spaces +1,200\n", text) and re.search(r"by\n    x +words 3\n", text)


def test_rows_in_the_terminal_come_one_at_a_time() -> None:
    both = list(show_pairs(rows("[CLS] the [SEP] fox jump ##s [SEP]", label=0, copies=2), VOCABULARY))
    assert len(both) == 2
    head = f"label 0  7 tokens  {10:016x} {10:016x}"
    assert both[0].splitlines()[1:] == [head, "  A  [CLS] the [SEP]", "  B  fox jumps [SEP]"]
    (single,) = show_pairs(SINGLE, VOCABULARY)
    assert single.splitlines()[1].startswith("no label  6 tokens") and "\n  B" not in single and "\n  M" not in single
    (masked,) = show_pairs(MASKED, VOCABULARY)
    assert masked.splitlines()[-1] == "  M  fox>[MASK]  s>the  dog>dog"
