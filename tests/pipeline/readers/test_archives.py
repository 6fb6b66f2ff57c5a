"""Archives: each member is read as a file with its name would be, and damage and bombs are one line."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.clozeline.test_installation import run_without
from tests.pipeline.readers.input_files import COMPRESS
from tests.pipeline.readers.office_files import docx, pdf, word, zipped

MEMBERS: dict[str, bytes | str] = {
    "b/x.txt": "One text. It is short.",
    "a/y.jsonl.gz": gzip.compress(b'{"text": "A record. Another one."}\n{bad\n'),
    "../../z.docx": docx(word("A document. It is short too.")),
    "i.png": b"\x89PNG\r\n\x1a\n",
    ".hidden.txt": "No text of the corpus.",
    "inner.zip": zipped({"x.txt": "Hidden."}),
}


def tarred(parts: dict[str, bytes | str]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, data in parts.items():
            content = data.encode() if isinstance(data, str) else data
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()


ARCHIVES = [
    ("x.zip", zipped(MEMBERS)),
    ("x", zipped(MEMBERS)),
    ("x.tar", tarred(MEMBERS)),
    ("x.TGZ", gzip.compress(tarred(MEMBERS))),
    *((f"x.tar{suffix}", compress(tarred(MEMBERS))) for suffix, compress in COMPRESS.items() if suffix),
]


@pytest.mark.parametrize(("name", "data"), ARCHIVES, ids=[name for name, _ in ARCHIVES])
def test_members_are_read_in_place(command, tmp_path: Path, name: str, data: bytes) -> None:
    pytest.importorskip("lxml")
    (tmp_path / name).write_bytes(data)
    done = command("shard", "--input", tmp_path / name, "--output", tmp_path / "text", "--max_bad_ratio", 1)
    assert done.returncode == 0, done.stderr
    for line in ("3 documents", "1 x archive in an archive", "1 x file that looks like an image (folder)"):
        assert line in done.stdout

    lines = "".join(path.read_text() for path in (tmp_path / "text" / "rejected").iterdir()).splitlines()
    places = {Path(entry["path"]).name: entry["place"] for entry in map(json.loads, lines)}
    assert places == {"y.jsonl.gz": 35, "inner.zip": 0, "i.png": 0}
    assert all(f"{tmp_path / name}/" in line for line in lines)
    assert not (tmp_path.parent / "z.docx").exists()


BOMB = b"\n" * (300 << 20)
DAMAGED: list[tuple[str, Callable[[], bytes], str]] = [
    ("x.zip", lambda: zipped(MEMBERS)[:-60], "cannot be read to its end"),
    ("x.tar", lambda: tarred(MEMBERS)[:1300], "cannot be read to its end"),
    ("no-end.tar", lambda: tarred({"x.txt": "A b."})[:1024], "no mark of its end"),
    ("two.zip", lambda: zipped(MEMBERS) * 2, "another archive stands before it in the file"),
    ("two.tar", lambda: tarred(MEMBERS) * 2, "more follows after its end, such as a second archive"),
    ("x.tar.gz", lambda: gzip.compress(tarred(MEMBERS))[:-60], "cannot be read to its end"),
    ("junk.zip", lambda: b"PK\x03\x04" + b"junk" * 99, "cannot be read to its end"),
    ("junk.tar", lambda: b"junk" * 999, "cannot be read to its end"),
    ("bomb.zip", lambda: zipped({"a.txt": BOMB, "b.txt": BOMB}), "members of archives are read up to"),
]


@pytest.mark.parametrize(("name", "make", "message"), DAMAGED, ids=[case[0] for case in DAMAGED])
def test_damage_is_one_line(command, tmp_path: Path, name: str, make: Callable[[], bytes], message: str) -> None:
    (tmp_path / name).write_bytes(make())
    done = command("shard", "--input", tmp_path / name, "--output", tmp_path / "text", "--direct_num_workers", 1)
    assert done.returncode == 3
    assert message in done.stderr and "Traceback" not in done.stderr


def test_without_pypdf_a_pdf_in_an_archive_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(zipped({"x.pdf": pdf([["A b."]])}))
    done = run_without("pypdf", "shard", "--input", str(tmp_path / "x.zip"), "--output", str(tmp_path / "text"))
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert "x.zip/x.pdf needs the package pypdf" in done.stderr and 'pip install "clozeline[corpora]"' in done.stderr


def encrypted(parts: dict[str, bytes | str]) -> bytes:
    """Return a zip file whose first member says that it is encrypted."""
    data = bytearray(zipped(parts))
    data[data.find(b"PK\x03\x04") + 6] |= 1
    data[data.find(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


def test_encrypted_members_are_bad_records(command, tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(encrypted({"secret.txt": "A text.", "open.txt": "Another text. It is read."}))
    arguments = ("shard", "--input", tmp_path / "x.zip", "--output", tmp_path / "text")
    refused = command(*arguments)
    assert refused.returncode == 3 and "member of an archive that is encrypted" in refused.stderr
    assert f"of {tmp_path}/x.zip/secret.txt" in refused.stderr

    done = command(*arguments, "--max_bad_ratio", 1)
    assert done.returncode == 0 and "1 document" in done.stdout
    assert "1 x member of an archive that is encrypted (archive)" in done.stdout

    (tmp_path / "corpora.toml").write_text(f'[[corpus]]\nname = "mine"\ninput = "{tmp_path}/x.zip"\n')
    words = ("shard", "--inputs", tmp_path / "corpora.toml", "--output", tmp_path / "named", "--max_bad_ratio", 1)
    done = command(*words)
    assert "1 x member of an archive that is encrypted (mine)" in done.stdout, done.stderr


def test_an_archive_may_not_grow_without_limit(command, tmp_path: Path) -> None:
    parts: dict[str, bytes | str] = {f"{number}.txt": b"One text. " * (10 << 20) for number in range(3)}
    (tmp_path / "x.zip").write_bytes(zipped(parts))
    done = command("shard", "--input", tmp_path / "x.zip", "--output", tmp_path / "text", "--direct_num_workers", 1)
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert "x.zip grows beyond" in done.stderr and "--max_decompression_ratio" in done.stderr


def test_an_archive_holds_what_its_files_hold_in_a_folder(command, documents: list[str], tmp_path: Path) -> None:
    pytest.importorskip("lxml")
    rows = [{"text": text} for text in documents]
    articles = "".join(
        f'<doc id="{i}" url="http://x.org/{i}" title="T">\nT\n{text}\n</doc>\n' for i, text in enumerate(documents)
    )
    table = pa.Table.from_pylist(rows[20:30])
    parquet, arrow = io.BytesIO(), io.BytesIO()
    pq.write_table(table, parquet)
    with pa.ipc.new_file(arrow, table.schema) as writer:
        writer.write_table(table)
    members: dict[str, bytes | str] = {
        "paragraphs.txt": "\r\n \r\n".join(documents[:60]),
        "many.txt": "".join(f"Paragraph {i} has words.\n\n\n" for i in range(40_000)),
        "utf-8 mark.txt": "\ufeff" + "\n\n".join(documents[60:]),
        "records.jsonl": "".join(json.dumps(row) + "\n" for row in rows[:10]),
        "table.csv": "text\n" + "".join(f'"{text}"\n' for text in documents[10:20]),
        "table.parquet": parquet.getvalue(),
        "table.arrow": arrow.getvalue(),
        "wiki_00": articles,
        "page.docx": docx("".join(map(word, documents[30:35]))),
        "compressed.txt.gz": gzip.compress("\n\n".join(documents[35:40]).encode()),
    }
    for name, data in members.items():
        path = tmp_path / "folder" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    (tmp_path / "a.zip").write_bytes(zipped(members))
    (tmp_path / "a.tar").write_bytes(tarred(members))

    results = set()
    for name in ("folder", "a.zip", "a.tar"):
        done = command("shard", "--input", tmp_path / name, "--output", tmp_path / f"text {name}", "--num_shards", 2)
        assert done.returncode == 0, done.stderr
        results.add(done.stdout.splitlines()[0].split(": ", 1)[1])
    assert len(results) == 1 and results.pop().startswith("40,286 documents")
