"""Times whole jobs of `shard`, each of its readers and filter sets, and the same work by datatrove and WikiExtractor.

    python deploy/demo/corpus.py out/documents.jsonl --megabytes 20
    pip download --no-deps gensim==4.4.0 && unzip gensim-*.whl 'gensim/test/test_data/enwiki*'    # 206 pages
    pip install --target out/rivals spacy faust-cchardet warcio wikiextractor
    python benchmarks/corpora.py --documents out/documents.jsonl --dump gensim/test/test_data/enwiki*.bz2 \\
        --pages /usr/share/doc --rivals out/rivals --output out/corpora

Input is repeated, each copy changed a little, to the same size for both sides. Every measurement is one line of
OUTPUT/results.jsonl, and those that are there are not made again, so that an interrupted benchmark continues.

Ours reads, cleans, splits sentences, shuffles and checks what it wrote. datatrove reads, filters and writes documents;
WikiExtractor extracts them. Work per core is what counts: megabytes of input (text, HTML or XML, uncompressed) per CPU
second of all processes of the command, from its start to its end.
"""

from __future__ import annotations

import argparse
import bz2
import contextlib
import ctypes
import gzip
import itertools
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import polars

FILES = 4  # of each folder of input, so that two workers have work
SIDES = ("ours", "rival")
SET_CHILD_SUBREAPER = 36  # of prctl(2): processes whose parent ends, as a server of forks does, become ours and count
PAGES_OF_A_STREAM = 100  # as in the multistream dumps of Wikimedia


class Case(NamedTuple):
    """A job: the folder of its input, its size in units of --megabytes, its filters, and what does the same."""

    material: str
    size: int = 10
    filters: str = "none"
    rival: str = "datatrove"


CASES = {
    "jsonl": Case("jsonl"),
    "csv": Case("csv"),
    "parquet": Case("parquet"),
    "mediawiki": Case("mediawiki", rival="wikiextractor"),
    "mediawiki_bz2": Case("mediawiki_bz2", rival="wikiextractor"),
    "warc": Case("warc", size=1),
    **{f"filters_{name}": Case("jsonl", size=1, filters=name) for name in ("c4", "gopher", "fineweb")},
}


def main() -> None:
    """Measure what is missing, and print a table of medians."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--documents", type=Path, help="JSON lines with the key text")
    flags.add_argument("--dump", type=Path, help="XML dump of MediaWiki, .bz2 or not")
    flags.add_argument("--pages", type=Path, help="folder with HTML files")
    flags.add_argument("--output", type=Path, required=True)
    flags.add_argument("--rivals", default="", help="folders with packages of the other side, with colons between")
    flags.add_argument("--megabytes", type=float, default=20, help="of input; readers but warc have 10 times it")
    flags.add_argument("--rounds", type=int, default=3)
    flags.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    flags.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    options = flags.parse_args()

    options.output.mkdir(parents=True, exist_ok=True)
    results = options.output / "results.jsonl"
    done = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1)

    for turn, name in itertools.product(range(options.rounds), options.only):
        if (folder := made(CASES[name], options)) is None:
            continue
        size = json.loads(folder.with_suffix(".json").read_text())["megabytes"]
        for workers, side in itertools.product(options.workers, SIDES):
            run = {"case": name, "side": side, "workers": workers, "round": turn, "megabytes": size}
            if any(run.items() <= line.items() for line in done):
                continue
            written = options.output / "written"
            shutil.rmtree(written, ignore_errors=True)
            packages = options.rivals if side == "rival" else ""
            if measured := measure(command(run, folder, written), packages, written):
                done.append(run | measured)
                with results.open("a") as file:
                    print(json.dumps(done[-1]), file=file)
                print(json.dumps(done[-1]), flush=True)
    print_table(done)


def command(run: dict[str, Any], folder: Path, target: Path) -> list[str]:
    """Return the command of a side, as arguments of Python."""
    case, workers = CASES[run["case"]], str(run["workers"])
    if run["side"] == "ours":
        filters = ["--filters", case.filters] if case.filters != "none" else []
        job = ["-m", "pipeline", "shard", "--input", f"{folder}/*", "--output", f"{target}", *filters]
        return [*job, "--direct_num_workers", workers]

    if case.rival == "wikiextractor":  # without a second pass for templates, which `shard` does not expand either
        job = ["-m", "wikiextractor.WikiExtractor", f"{next(folder.iterdir())}", "-o", f"{target}"]
        return [*job, "--no-templates", "--json", "--quiet", "--processes", workers]
    rivals = str(Path(__file__).with_name("rivals.py"))
    return [rivals, "datatrove", f"{folder}", f"{target}", case.material, case.filters, workers]


# ---- Measuring ----


def measure(line: list[str], rivals: str, written: Path) -> dict[str, Any] | None:
    """Return the seconds of a command, the megabytes that it wrote and the load before it; None if it fails."""
    load, before, start = os.getloadavg()[0], resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([rivals, os.environ.get("PYTHONPATH", "")])}
    ended = subprocess.run([sys.executable, *line], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wall = time.perf_counter() - start

    with contextlib.suppress(ChildProcessError):  # until no orphan is left
        while True:
            os.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    size = sum(path.stat().st_size for path in written.rglob("*") if path.is_file()) / 1e6
    if ended.returncode or not size:
        print(f"failed: {' '.join(line)}\n{ended.stderr.decode()[-2000:]}", file=sys.stderr, flush=True)
        return None
    values = {"seconds": wall, "cpu_seconds": cpu, "megabytes_written": size, "load": load}
    return {name: round(value, 2) for name, value in values.items()}


def print_table(lines: list[dict[str, Any]]) -> None:
    """Print the medians of MB a second of a core and of the clock, and how many times the other side's they are."""
    print("| job | workers | ours, MB/s a core | rival | ratio | ours, MB/s | rival | ratio | load |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case, workers in dict.fromkeys((line["case"], line["workers"]) for line in lines):
        both = [line for line in lines if (line["case"], line["workers"]) == (case, workers)]
        cells = [case, str(workers)]
        for key in ("cpu_seconds", "seconds"):
            speeds = [[line["megabytes"] / line[key] for line in both if line["side"] == side] for side in SIDES]
            ours, theirs = (statistics.median(values) if values else float("nan") for values in speeds)
            cells += [f"{ours:.1f}", f"{theirs:.1f}", f"{ours / theirs:.1f}x"]
        print("| " + " | ".join([*cells, f"{max(line['load'] for line in both):.1f}"]) + " |")


# ---- Material ----


NUMBER = "\0"  # where each copy of a document has its number


def made(case: Case, options: argparse.Namespace) -> Path | None:
    """Return the folder of a case's input, which is made once; None if what it is made from was not given."""
    given, read, write = MATERIAL[case.material]
    source = getattr(options, given)
    if source is None:
        return None

    folder = options.output / f"{case.material}_{round(case.size * options.megabytes * 1e3)}"  # kilobytes
    told = folder.with_suffix(".json")
    if not told.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        units = list(repeated(list(read(source)), case.size * options.megabytes * 1e6))
        write(units, folder)
        told.write_text(json.dumps({"megabytes": sum(len(unit.encode()) for unit in units) / 1e6}))
    return folder


def read_documents(path: Path) -> Iterator[str]:
    """Yield texts below the limit of a field in Python's module csv, which datatrove keeps."""
    texts = (json.loads(line)["text"] for line in path.open(encoding="utf-8"))
    yield from (NUMBER + text for text in texts if len(text) < 130_000)


def read_pages(folder: Path) -> Iterator[str]:
    for path in filter(Path.is_file, sorted(folder.rglob("*.htm*"))):
        yield re.sub(
            r"<body[^>]*>", rf"\g<0>{NUMBER}", path.read_text("utf-8", "replace"), count=1, flags=re.IGNORECASE
        )


def read_dump(path: Path) -> Iterator[str]:
    data = bz2.decompress(path.read_bytes()) if path.suffix == ".bz2" else path.read_bytes()
    for page in re.findall(r" *<page>\n.*?</page>\n", data.decode(), re.DOTALL):
        yield re.sub(r"<text [^>]*[^/>]>(?!#)", rf"\g<0>{NUMBER}", page)


def repeated(units: list[str], wanted: float) -> Iterator[str]:
    """Yield copies of all documents, each with its number, until they have the wanted number of bytes."""
    for number, unit in ((number, unit) for number in itertools.count() for unit in units):
        if wanted <= 0:
            return
        yield (copy := unit.replace(NUMBER, f"Copy {number}. "))
        wanted -= len(copy.encode())


def write_documents(suffix: str, texts: list[str], folder: Path) -> None:
    for number in range(FILES):
        table = polars.DataFrame({"text": texts[number::FILES]})
        write = {"jsonl": table.write_ndjson, "csv": table.write_csv, "parquet": table.write_parquet}[suffix]
        write(folder / f"{number}.{suffix}")


def write_warc(pages: list[str], folder: Path) -> None:
    """Write pages as responses, each record a gzip member, as crawlers do."""
    fields = "WARC/1.0\nWARC-Type: response\nWARC-Record-ID: <urn:page:{0}>\nWARC-Date: 2026-11-01T00:00:00Z\n"
    fields += "WARC-Target-URI: http://localhost/{0}\nContent-Type: application/http; msgtype=response\n"
    for place, page in enumerate(pages):
        block = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + page.encode()
        head = f"{fields}Content-Length: {len(block)}\n\n".format(place).replace("\n", "\r\n")
        with (folder / f"{place % FILES}.warc.gz").open("ab") as file:
            file.write(gzip.compress(head.encode() + block + b"\r\n\r\n"))


def write_dump(compress: Callable[[bytes], bytes], pages: list[str], folder: Path) -> None:
    """Write one file, because WikiExtractor reads one; compressed, it has the streams of Wikimedia's dumps."""
    header = "<mediawiki>\n<siteinfo>\n<base>https://en.wikipedia.org/wiki/Main_Page</base>\n"
    header += '<namespace key="10">Template</namespace>\n</siteinfo>\n'
    streams = ["".join(pages[at : at + PAGES_OF_A_STREAM]) for at in range(0, len(pages), PAGES_OF_A_STREAM)]
    name = "dump-pages-articles-multistream.xml.bz2" if compress is bz2.compress else "dump.xml"
    with (folder / name).open("wb") as file:
        file.writelines(compress(part.encode()) for part in [header, *streams, "</mediawiki>\n"])


MATERIAL: dict[str, tuple[str, Callable[[Path], Iterator[str]], Callable[[list[str], Path], None]]] = {
    "jsonl": ("documents", read_documents, partial(write_documents, "jsonl")),
    "csv": ("documents", read_documents, partial(write_documents, "csv")),
    "parquet": ("documents", read_documents, partial(write_documents, "parquet")),
    "warc": ("pages", read_pages, write_warc),
    "mediawiki": ("dump", read_dump, partial(write_dump, bytes)),
    "mediawiki_bz2": ("dump", read_dump, partial(write_dump, bz2.compress)),
}


if __name__ == "__main__":
    main()
