"""Times whole jobs of `shard`, each reader and filter set, in turns with datatrove and WikiExtractor on the same input.

    make bench_corpora DUMP=enwiki-latest-pages-articles1.xml.bz2      # installs the others in out/corpora/rivals

Documents are repeated, each copy with its number in it. A measurement is one line of OUTPUT/results.jsonl, and those
that are there are skipped, so that an interrupted benchmark continues. Failed ones are reported and tried again.

`shard` reads, cleans, splits sentences, shuffles and checks what it wrote. datatrove reads, filters and writes
documents, WikiExtractor extracts them. Speed per core is megabytes of text, HTML or XML, before compression, by the CPU
seconds of all processes of a command.
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

SIDES = ("ours", "rival")
FILES = 4  # of each folder of input, so that two workers have work
PAGES_OF_A_STREAM = 100  # as in the multistream dumps of Wikimedia
NUMBER = "\0"  # where each copy of a document has its number
SET_CHILD_SUBREAPER = 36  # of prctl(2): processes whose parent ends, as a server of forks does, become ours and count


class Case(NamedTuple):
    """A job: the kind of its input, its size in units of --megabytes, and its filters."""

    material: str
    size: int = 10
    filters: str = "none"


CASES = {name: Case(name) for name in ("jsonl", "csv", "parquet", "mediawiki", "mediawiki_bz2")}
CASES["warc"] = Case("warc", size=1)
CASES |= {f"filters_{name}": Case("jsonl", size=1, filters=name) for name in ("c4", "gopher", "fineweb")}


def main() -> None:
    """Measure what is missing, and print a table of medians."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--documents", type=Path, help="JSON lines with the key text")
    flags.add_argument("--dump", type=Path, help="XML dump of MediaWiki, .bz2 or not")
    flags.add_argument("--pages", type=Path, help="folder with HTML files")
    flags.add_argument("--output", type=Path, required=True)
    flags.add_argument("--rivals", default="", help="folders with packages of the other side, with colons between")
    flags.add_argument("--megabytes", type=float, default=20, help="of input; 10 times it for readers but warc")
    flags.add_argument("--rounds", type=int, default=3)
    flags.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    flags.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    options = flags.parse_args()

    options.output.mkdir(parents=True, exist_ok=True)
    (results := options.output / "results.jsonl").touch()
    done = [json.loads(line) for line in results.read_text().splitlines()]
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1)

    for turn, name in itertools.product(range(options.rounds), options.only):
        if (folder := made(CASES[name], options)) is None:
            continue
        size = json.loads(folder.with_suffix(".json").read_text())["megabytes"]
        for workers, side in itertools.product(options.workers, SIDES):
            run = {"case": name, "side": side, "workers": workers, "round": turn, "megabytes": size}
            if any(run.items() <= line.items() for line in done):
                continue
            packages = options.rivals if side == "rival" else ""
            if measured := measure(partial(command, run, folder), packages, options.output / "written"):
                done.append(run | measured)
                with results.open("a") as file:
                    file.write(json.dumps(done[-1]) + "\n")
    print_table(done)


def command(run: dict[str, Any], folder: Path, target: Path) -> list[str]:
    """Return the command of a side, as arguments of Python."""
    case, workers = CASES[run["case"]], str(run["workers"])
    if run["side"] == "ours":
        filters = ["--filters", case.filters] if case.filters != "none" else []
        job = ["-m", "pipeline", "shard", "--direct_num_workers", workers, *filters]
        return [*job, "--input", f"{folder}/*", "--output", f"{target}"]
    if case.material.startswith("mediawiki"):  # without a pass for templates, which `shard` does not expand either
        job = ["-m", "wikiextractor.WikiExtractor", f"{next(folder.iterdir())}", "-o", f"{target}"]
        return [*job, "--no-templates", "--json", "--quiet", "--processes", workers]
    rivals = Path(__file__).with_name("rivals.py")
    return [f"{rivals}", "datatrove", f"{folder}", f"{target}", case.material, case.filters, workers]


def measure(command_of: Callable[[Path], list[str]], packages: str, target: Path) -> dict[str, Any] | None:
    """Return the seconds of a command, the megabytes that it wrote and the load before it; None if it fails."""
    shutil.rmtree(target, ignore_errors=True)
    line = [sys.executable, *command_of(target)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([packages, os.environ.get("PYTHONPATH", "")])}
    load, before, start = os.getloadavg()[0], resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    ended = subprocess.run(line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wall = time.perf_counter() - start

    with contextlib.suppress(ChildProcessError):  # until no orphan is left
        while True:
            os.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file()) / 1e6
    if ended.returncode or not size:
        print(f"failed: {' '.join(line)}\n{ended.stderr.decode()[-2000:]}", file=sys.stderr, flush=True)
        return None
    values = {"seconds": wall, "cpu_seconds": cpu, "megabytes_written": size, "load": load}
    return {name: round(value, 2) for name, value in values.items()}


def print_table(lines: list[dict[str, Any]]) -> None:
    """Print the medians of MB a second of a core and of the clock, and how many times the other side's they are."""
    print(f"| job | workers | ours, MB/s a core | theirs | ratio | ours, MB/s | theirs | ratio | load |\n{'|---' * 9}|")
    for case, workers in dict.fromkeys((line["case"], line["workers"]) for line in lines):
        both = [line for line in lines if (line["case"], line["workers"]) == (case, workers)]
        cells = [case, str(workers)]
        for key in ("cpu_seconds", "seconds"):
            speeds = [[line["megabytes"] / line[key] for line in both if line["side"] == side] for side in SIDES]
            ours, theirs = (statistics.median(values) if values else float("nan") for values in speeds)
            cells += [f"{ours:.1f}", f"{theirs:.1f}", f"{ours / theirs:.1f}x"]
        print("| " + " | ".join([*cells, f"{max(line['load'] for line in both):.1f}"]) + " |")


def made(case: Case, options: argparse.Namespace) -> Path | None:
    """Return the folder of a case's input, which is made once; None if what it is made from was not given."""
    given, read, write = MATERIAL[case.material]
    if (source := getattr(options, given)) is None:
        return None
    folder = options.output / f"{case.material}_{round(case.size * options.megabytes * 1e3)}"  # kilobytes
    if not (told := folder.with_suffix(".json")).exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        texts = list(repeated(list(read(source)), case.size * options.megabytes * 1e6))
        write(texts, folder)
        told.write_text(json.dumps({"megabytes": sum(len(text.encode()) for text in texts) / 1e6}))
    return folder


def read_documents(path: Path) -> Iterator[str]:
    """Yield texts below the limit of a field in Python's module csv, which datatrove keeps."""
    texts = (json.loads(line)["text"] for line in path.open(encoding="utf-8"))
    yield from (NUMBER + text for text in texts if len(text) < 130_000)


def read_pages(folder: Path) -> Iterator[str]:
    for path in filter(Path.is_file, sorted(folder.rglob("*.htm*"))):
        if path.stat().st_size < 300_000:  # datatrove drops a page that takes a second
            yield re.sub(r"(?i)<body[^>]*>", rf"\g<0>{NUMBER}", path.read_text("utf-8", "replace"), count=1)


def read_dump(path: Path) -> Iterator[str]:
    data = bz2.decompress(path.read_bytes()) if path.suffix == ".bz2" else path.read_bytes()
    for page in re.findall(r" *<page>\n.*?</page>\n", data.decode(), re.DOTALL):
        yield re.sub(r"<text [^>]*[^/>]>(?!#)", rf"\g<0>{NUMBER}", page)


def repeated(units: list[str], wanted: float) -> Iterator[str]:
    """Yield copies of all documents, each with its number, until they have the wanted number of bytes."""
    for number, unit in itertools.product(range(1_000_000), units):
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
    header += '<namespace key="10">Template</namespace>\n</siteinfo>\n'  # without it, WikiExtractor skips all pages
    streams = ["".join(pages[at : at + PAGES_OF_A_STREAM]) for at in range(0, len(pages), PAGES_OF_A_STREAM)]
    name = "dump-pages-articles-multistream.xml.bz2" if compress is bz2.compress else "dump.xml"
    with (folder / name).open("wb") as file:
        file.writelines(compress(part.encode()) for part in [header, *streams, "</mediawiki>\n"])


MATERIAL: dict[str, tuple[str, Callable[[Path], Iterator[str]], Callable[[list[str], Path], None]]] = {
    **{kind: ("documents", read_documents, partial(write_documents, kind)) for kind in ("jsonl", "csv", "parquet")},
    "warc": ("pages", read_pages, write_warc),
    "mediawiki": ("dump", read_dump, partial(write_dump, bytes)),
    "mediawiki_bz2": ("dump", read_dump, partial(write_dump, bz2.compress)),
}


if __name__ == "__main__":
    main()
