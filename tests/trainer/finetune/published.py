"""Small files laid out exactly as benchmarks publish theirs, with sentences of our own.

Layouts: the files inside GLUE's, SuperGLUE's and CLUE's archives, as read by https://github.com/huggingface/datasets
(glue.py, super_glue.py) and described in the README of https://github.com/CLUEbenchmark/CLUE.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BYTE_ORDER_MARK = "\ufeff"

# A lone quote, one that opens a field, a character at which str.splitlines splits, and letters outside of ASCII.
SENTENCES = [
    'The nail is 6" long.',
    '"Where to?" asked the driver.',
    "A line separator\u2028stands here.",
    "Der Bäcker öffnet um acht.",
]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def write_rows(path: Path, header: str | None, rows: list[list[Any]], end: str = "\n") -> None:
    """Write a file of tab-separated fields."""
    lines = [header] if header else []
    lines += ["\t".join(str(field) for field in row) for row in rows]
    write(path, "".join(line + end for line in lines))


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write a file with one JSON object a line."""
    write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def pairs(labels: list[Any]) -> list[tuple[str, str, Any]]:
    """Two sentences and a label for each sentence, in turn."""
    found = []
    for number, sentence in enumerate(SENTENCES):
        found.append((sentence, f"The answer to sentence {number}.", labels[number % len(labels)]))
    return found


def glue(folder: Path) -> None:
    """Write all of GLUE."""
    single = [[sentence, number % 2] for number, sentence in enumerate(SENTENCES)]
    for name in ("train", "dev"):
        write_rows(folder / f"CoLA/{name}.tsv", None, [["gj04", label, "*", text] for text, label in single])
        write_rows(folder / f"SST-2/{name}.tsv", "sentence\tlabel", [[f"{text} ", label] for text, label in single])
    for task in ("CoLA", "SST-2"):
        rows = [[number, text] for number, (text, _) in enumerate(single)]
        write_rows(folder / f"{task}/test.tsv", "index\tsentence", rows)

    glue_mrpc(folder / "MRPC")
    glue_numbered(folder / "QNLI", "index\tquestion\tsentence", "label", ["entailment", "not_entailment"])
    glue_numbered(folder / "RTE", "index\tsentence1\tsentence2", "label", ["entailment", "not_entailment"])
    glue_numbered(folder / "WNLI", "index\tsentence1\tsentence2", "label", [0, 1])
    glue_similarity(folder / "STS-B")
    glue_questions(folder / "QQP")
    glue_inference(folder / "MNLI")


def glue_numbered(folder: Path, header: str, label: str, labels: list[Any]) -> None:
    """Write QNLI, RTE or WNLI: an index, two texts and, but for the test file, a label."""
    rows = [[number, first, second, name] for number, (first, second, name) in enumerate(pairs(labels))]
    for name in ("train", "dev"):
        write_rows(folder / f"{name}.tsv", f"{header}\t{label}", rows)
    write_rows(folder / "test.tsv", header, [row[:-1] for row in rows])


def glue_mrpc(folder: Path) -> None:
    """Write MRPC as GLUE's script makes it, with Microsoft's byte order mark and line ends, and Microsoft's file."""
    rows = [[label, 702876 + number, 702977 + number, *texts] for number, (*texts, label) in enumerate(pairs([1, 0]))]
    columns = "#1 ID\t#2 ID\t#1 String\t#2 String"
    for name in ("train.tsv", "dev.tsv", "msr_paraphrase_train.txt"):
        write_rows(folder / name, f"{BYTE_ORDER_MARK}Quality\t{columns}", rows, "\r\n")
    tests = [[number, *row[1:]] for number, row in enumerate(rows)]
    write_rows(folder / "test.tsv", f"{BYTE_ORDER_MARK}index\t{columns}", tests)


def glue_similarity(folder: Path) -> None:
    columns = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
    rows = []
    for number, (first, second, score) in enumerate(pairs(["5.000", "0.500", "3.2", "4"])):
        rows.append([number, "main-news", "headlines", "2013", number, "none", "none", first, second, score])
    for name in ("train", "dev"):
        write_rows(folder / f"{name}.tsv", f"{columns}\tscore", rows)
    write_rows(folder / "test.tsv", columns, [row[:-1] for row in rows])


def glue_questions(folder: Path) -> None:
    """Write QQP, whose published files have lines without all fields and pairs without a question."""
    columns = "id\tqid1\tqid2\tquestion1\tquestion2"
    rows = [[number, 2 * number, 2 * number + 1, *texts] for number, texts in enumerate(pairs([0, 1]))]
    broken = [[100, 200, 201, "How do I"], [101, 202, 203, "What is it?", "", 1]]
    for name in ("train", "dev"):
        write_rows(folder / f"{name}.tsv", f"{columns}\tis_duplicate", [*rows[:2], *broken, *rows[2:]])

    tests = [[number, first, second] for number, (first, second, _) in enumerate(pairs([0]))]
    write_rows(folder / "test.tsv", "id\tquestion1\tquestion2", [*tests, [4, "What is this?", ""]])


def glue_inference(folder: Path) -> None:
    """Write MNLI, whose dev files have five annotators' labels before the one that counts."""
    columns = "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse"
    columns += "\tsentence2_parse\tsentence1\tsentence2"
    rows = []
    for number, (first, second, label) in enumerate(pairs(["neutral", "entailment", "contradiction"])):
        rows.append(
            [number, 31193, "31193n", "fiction", "( a )", "( b )", "(ROOT a)", "(ROOT b)", first, second, label]
        )

    write_rows(folder / "train.tsv", f"{columns}\tlabel1\tgold_label", [[*row, row[-1]] for row in rows])
    labels = "\t".join(f"label{number}" for number in range(1, 6))
    for kind in ("matched", "mismatched"):
        write_rows(folder / f"dev_{kind}.tsv", f"{columns}\t{labels}\tgold_label", [row + row[-1:] * 5 for row in rows])
        write_rows(folder / f"test_{kind}.tsv", columns, [row[:-1] for row in rows])


def superglue(folder: Path) -> None:
    """Write all of SuperGLUE that has a task: train, val and test are JSON lines."""
    superglue_pairs(folder / "BoolQ", ("question", "passage"), [True, False])
    superglue_pairs(folder / "CB", ("premise", "hypothesis"), ["neutral", "entailment", "contradiction"])
    superglue_pairs(folder / "RTE", ("premise", "hypothesis"), ["entailment", "not_entailment"])

    copa = []
    for number, (first, second, label) in enumerate(pairs([0, 1])):
        asked = "cause" if number % 2 else "effect"
        row = {"premise": "It rained.", "choice1": first, "choice2": second, "question": asked}
        copa.append({**row, "label": label, "idx": number, "changed": False})
    superglue_sets(folder / "COPA", copa)

    wic = []
    for number, (first, second, label) in enumerate(pairs([False, True])):
        places = {"start1": 0, "start2": 0, "end1": 3, "end2": 3, "version": 1.1}
        wic.append({"word": "bank", "sentence1": first, "sentence2": second, "idx": number, "label": label, **places})
    superglue_sets(folder / "WiC", wic)

    superglue_sets(folder / "WSC", references([True, False]))
    superglue_passages(folder / "MultiRC")


def superglue_pairs(folder: Path, keys: tuple[str, str], labels: list[Any]) -> None:
    rows = []
    for number, (first, second, label) in enumerate(pairs(labels)):
        rows.append({keys[0]: first, keys[1]: second, "label": label, "idx": number})
    superglue_sets(folder, rows)


def superglue_sets(folder: Path, rows: list[dict[str, Any]]) -> None:
    for name in ("train", "val"):
        write_lines(folder / f"{name}.jsonl", rows)
    write_lines(folder / "test.jsonl", [{key: row[key] for key in row if key != "label"} for row in rows])


def references(labels: list[Any]) -> list[dict[str, Any]]:
    """Rows of WSC and of CLUEWSC2020: a noun, a pronoun, and whether they mean the same."""
    rows = []
    for number, (first, _, label) in enumerate(pairs(labels)):
        target = {"span1_index": 0, "span1_text": "Mark", "span2_index": 13, "span2_text": "He"}
        rows.append({"text": f"Mark told me. He {first}", "target": target, "idx": number, "label": label})
    return rows


def superglue_passages(folder: Path) -> None:
    for name in ("train", "val", "test"):
        rows = []
        for number, sentence in enumerate(SENTENCES):
            questions = []
            for question in range(2):
                answers: list[dict[str, Any]] = [
                    {"text": f"{sentence} yes", "idx": 2 * question, "label": 1},
                    {"text": "no", "idx": 2 * question + 1, "label": 0},
                ]
                if name == "test":
                    answers = [{key: answer[key] for key in ("text", "idx")} for answer in answers]
                questions.append({"question": f"Is it {question}?", "answers": answers, "idx": question})
            rows.append({"idx": number, "version": 1.1, "passage": {"text": sentence, "questions": questions}})
        write_lines(folder / f"{name}.jsonl", rows)


def clue(folder: Path) -> None:
    """Write all of CLUE that has a task."""
    clue_sets(folder / "afqmc_public", [("sentence1", "sentence2")], ["0", "1"])
    clue_sets(folder / "cmnli_public", [("sentence1", "sentence2")], ["neutral", "-", "entailment", "contradiction"])
    clue_sets(folder / "csl_public", [("abst", "keyword")], ["1", "0"])

    news = [("108", "news_edu"), ("104", "news_finance"), ("116", "news_game"), ("100", "news_story")]
    for path, described in (("tnews_public", "label_desc"), ("iflytek_public", "label_des")):
        rows = []
        for sentence, (label, name) in zip(SENTENCES, news, strict=True):
            rows.append({"label": label, described: name, "sentence": sentence, "keywords": ""})
        clue_files(folder / path, rows)

    clue_files(folder / "cluewsc2020_public", references(["true", "false"]))
    for path in ("cmrc2018_public", "drcd_public"):
        for name in ("train", "dev"):
            write(folder / path / f"{name}.json", json.dumps(squad(False), ensure_ascii=False))
        write(folder / path / "test.json", json.dumps(hidden_squad(), ensure_ascii=False))
    clue_choices(folder / "c3_public")


def clue_sets(folder: Path, keys: list[tuple[str, str]], labels: list[str]) -> None:
    (first_key, second_key) = keys[0]
    rows: list[dict[str, Any]] = []
    for number, (first, second, label) in enumerate(pairs(labels)):
        value = ["水声", "图像"] if second_key == "keyword" else second
        rows.append({"id": number, first_key: first, second_key: value, "label": label})
    clue_files(folder, rows)


def clue_files(folder: Path, rows: list[dict[str, Any]]) -> None:
    for name in ("train", "dev"):
        write_lines(folder / f"{name}.json", rows)
    hidden = [{key: row[key] for key in row if not key.startswith("label")} for row in rows]
    write_lines(folder / "test.json", hidden)


def clue_choices(folder: Path) -> None:
    dialogue = [
        ["男：今天下雨吗？", "女：不下。"],
        [{"question": "天气怎么样？", "choice": ["下雨", "不下雨", "下雪"], "answer": "不下雨"}],
        "25-35",
    ]
    text = [["我喜欢苹果。"], [{"question": "喜欢什么？", "choice": ["苹果", "梨"], "answer": "苹果"}] * 2, "m-1"]
    for kind, entry in (("d", dialogue), ("m", text)):
        for name in ("train", "dev"):
            write(folder / f"{kind}-{name}.json", json.dumps([entry], ensure_ascii=False))
    write(folder / "test1.1.json", json.dumps([dialogue, text], ensure_ascii=False))


def squad(version_2: bool) -> dict[str, Any]:
    """The content of a SQuAD file: 1.1, or 2.0 with a question that has no answer."""
    context = "Der Fluß 𝔄 fließt im Norden. It rains in May."
    questions: list[dict[str, Any]] = [
        {"id": "q-1", "question": "Where?", "answers": [{"text": "im Norden", "answer_start": context.index("im")}]},
        {"id": "q-2", "question": "When?", "answers": [{"text": "May", "answer_start": context.index("May")}] * 3},
    ]
    if version_2:
        for question in questions:
            question["is_impossible"] = False
        plausible = [{"text": "May", "answer_start": context.index("May")}]
        questions.append(
            {"id": "q-3", "question": "Who?", "answers": [], "is_impossible": True, "plausible_answers": plausible}
        )
    paragraph = {"context": context, "qas": questions}
    return {"version": "v2.0" if version_2 else "1.1", "data": [{"title": "Weather", "paragraphs": [paragraph]}]}


def hidden_squad() -> dict[str, Any]:
    """The content of a test file whose answers are placeholders."""
    content = squad(False)
    for question in content["data"][0]["paragraphs"][0]["qas"]:
        question["answers"] = [{"text": "FAKE_ANSWER_1", "answer_start": -1}]
    return content


CONLL_2003 = """-DOCSTART- -X- -X- O

Anna NNP B-NP B-PER
lives VBZ B-VP O
in IN B-PP O
Rome NNP B-NP B-LOC
. . O O

-DOCSTART- -X- O O

" " O O
Yes UH B-INTJ O
"""

CONLL_2000 = "Rivers NNS B-NP\nflow VBP B-VP\n\nThey PRP B-NP\nstop VBP B-VP\n. . O\n\n"

WNUT = "@anna\tO\n#rome\tB-location\nis\tO\n\t\nNew\tB-location\nYork\tI-location\n\t\n"

SWAG = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
    '0,v1,1,"She opens the door, slowly. She","She opens the door, slowly.",She,gold,leaves.,"sings ""la"".",sits.,'
    "eats.,0\n"
    "1,v2,2,He runs. He,He runs.,He,gen,stops.,falls.,swims.,jumps.,3\n"
)
