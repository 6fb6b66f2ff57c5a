"""Gathers text from Debian packages, wherever apt works, and makes text folders of it.

    python benchmarks/package_corpus.py OUT [--language en|de|ru|zh] [--nltk_data FOLDER] [--direct_num_workers 2]

The packages are downloaded and not installed: guides, books, manuals and dictionaries (PACKAGES). Those in HELD_OUT are
for evaluation, so that held-out text is by other authors and not only from other pages. With a copy of nltk/nltk_data,
the reviews, news and speeches of nltk_corpus.py join the English corpus. Writes

    OUT/packages/          what was downloaded (1.2 GB); another start downloads what is missing
    OUT/pages/NAME.tar     the HTML pages of a package
    OUT/texts/NAME.jsonl   its plain texts, as documents of some 20,000 characters
    OUT/train.toml         these corpora, each with its license as the package's copyright file names it
    OUT/held_out.toml      the same for HELD_OUT
    OUT/text_heldout       `clozeline shard` of the latter
    OUT/text               and of the former: documents of the language that pass Gopher's rules, without near
                           duplicates, and without those that share 13 words in a row with a held-out package
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tomli_w

PACKAGES = {
    "en": """
anarchism bash-doc debian-edu-doc-en debian-handbook debian-history debian-policy debian-reference-en debmake-doc
developers-reference doc-debian fortunes freedombox-doc-en gnu-standards installation-guide-amd64 live-manual-html
mh-book png-definitive-guide zsh-doc
dict-devil dict-elements dict-foldoc dict-gcide dict-jargon dict-vera dict-wn
apache2-doc bind9-doc borgbackup-doc cinder-doc clang-19-doc cmake-doc corosync-doc cppreference-doc-en-html csound-doc
doxygen-doc dpdk-doc erlang-doc exim4-doc-html ffmpeg-doc fontforge-doc fp-docs-3.2.2 frr-doc gap-doc ghostscript-doc
giac-doc gimp-help-en git-doc glance-doc gnucash-docs gnuplot-doc grass-doc icinga2-doc imagemagick-6-doc jmeter-help
kea-doc keystone-doc krb5-doc lemonldap-ng-doc libreoffice-help-en-us lilypond-doc-html linux-doc-6.1 llvm-19-doc
mame-doc maxima-doc mit-scheme-doc netcdf-doc neutron-doc nodejs-doc nova-doc ns3-doc nut-doc octave-doc openafs-doc
perl-doc pike8.0-doc postfix-doc postgis-doc postgresql-doc-15 povray-doc python-astropy-doc python-django-doc
python-pandas-doc python-scipy-doc python-skimage-doc python-sklearn-doc python-statsmodels-doc python-sympy-doc
python3.11-doc qtbase5-doc-html qtdeclarative5-doc-html qtquickcontrols2-5-doc-html r-doc-html racket-doc renpy-doc
sbcl-doc scons-doc shorewall-doc slurm-wlm-doc snakemake-doc solfege-doc sphinx-doc sqlite3-doc stilts-doc
swi-prolog-doc swift-doc swig4.0-doc tomcat10-docs topcat-doc twisted-doc vim-doc wireshark-doc wx3.2-doc yade-doc
""",
    "de": """
debian-edu-doc-de debian-handbook debian-reference-de developers-reference-de gimp-help-de installation-guide-amd64
kicad-doc-de libreoffice-help-de lilypond-doc-html-de maint-guide-de udo-doc-de
""",
    "ru": """
aptitude-doc-ru debian-handbook developers-reference-ru doublecmd-help-ru gimp-help-ru installation-guide-amd64
kicad-doc-ru libreoffice-help-ru maint-guide-ru
""",
    "zh": """
debian-edu-doc-zh-cn debian-handbook debian-reference-zh-cn gimp-help-zh-cn installation-guide-amd64 kicad-doc-zh
libreoffice-help-zh-cn lilypond-doc-html-zh maint-guide-zh-cn
""",
}
"""In Debian 12. Other releases have most of them, some under a name with another version; those missing are named."""

HELD_OUT = {
    "en": ("debian-history", "dict-jargon", "fontforge-doc", "gap-doc", "mh-book", "postfix-doc", "slurm-wlm-doc"),
    "de": ("gimp-help-de", "maint-guide-de"),
    "ru": ("doublecmd-help-ru", "kicad-doc-ru", "maint-guide-ru"),
    "zh": ("debian-edu-doc-zh-cn", "kicad-doc-zh", "maint-guide-zh-cn"),
}

PAGE = re.compile(r".+\.x?html?(\.gz)?")
TEXT = re.compile(r".+\.(txt|md|pod|dict)(\.gz|\.dz)?|.+/fortunes/[\w-]+")
NOT_READ = re.compile(r".*/(copyright|changelog|changes|_sources/|search|genindex|py-modindex).*", re.IGNORECASE)
"""Lists of changes and of names, and the sources of pages that are there too."""

POD_MARKS = re.compile(r"(?m)^=\w+ ?|[A-Z]<(?=[^<>\n]*>)|(?<=\w)>(?=[\s,.;:)])")

DOCUMENT_CHARACTERS = 20_000
Corpus = dict[str, Any]  # a [[corpus]] of --inputs

LICENSES = ("GFDL", "GPL", "LGPL", "Apache", "MIT", "BSD", "Expat", "CC-BY-SA", "CC-BY", "Artistic", "MPL", "PSF")


def main() -> None:
    flags = argparse.ArgumentParser(description="Gathers text from Debian packages.")
    flags.add_argument("output", type=Path)
    flags.add_argument("--language", choices=PACKAGES, default="en")
    flags.add_argument("--nltk_data", type=Path, help="a copy of the repository nltk/nltk_data")
    flags.add_argument("--direct_num_workers", type=int, default=1)
    options = flags.parse_args()

    output = options.output
    for folder in ("packages", "pages", "texts"):
        (output / folder).mkdir(parents=True, exist_ok=True)

    corpora = {name: package_corpus(output, name) for name in PACKAGES[options.language].split()}
    if options.nltk_data:
        run("python", Path(__file__).with_name("nltk_corpus.py"), options.nltk_data, output / "nltk")
        corpora["nltk_data"] = corpus_of("nltk_data", "see its packages", [output / "nltk" / "corpus.jsonl"])

    held_out = [corpora.pop(name) for name in HELD_OUT[options.language]]
    rules = ["--language", "auto", "--languages", options.language, "--filters", "gopher", "--dedup", "minhash"]
    rules += ["--direct_num_workers", options.direct_num_workers]
    shard(held_out, output / "held_out.toml", output / "text_heldout", *rules)
    texts = sorted(output.glob("text_heldout/*.arrow"))
    shard(corpora.values(), output / "train.toml", output / "text", *rules, "--decontaminate", *texts)


def package_corpus(output: Path, name: str) -> Corpus | None:
    """Download and unpack a package unless it is there. Return its corpus, or None if apt does not have it."""
    pages, texts = output / "pages" / f"{name}.tar", output / "texts" / f"{name}.jsonl"
    license_file = output / "texts" / f"{name}.license"
    if not license_file.exists():
        package = download(output / "packages", name)
        if package is None:
            print(f"{name}: apt has no such package; it is left out.", file=sys.stderr)
            return None
        license_file.write_text(unpack(package, pages, texts))

    return corpus_of(name, license_file.read_text(), [path for path in (pages, texts) if path.exists()])


def download(folder: Path, name: str) -> Path | None:
    """Return the package's file. It is downloaded unless it is there; None if apt does not have it."""
    if not list(folder.glob(f"{name}_*.deb")):
        subprocess.run(["apt-get", "download", name], cwd=folder, check=False, stdout=subprocess.DEVNULL)
    return next(folder.glob(f"{name}_*.deb"), None)


def unpack(package: Path, pages: Path, texts: Path) -> str:
    """Write a package's pages and plain texts, each if there are any, and return its license."""
    documents: list[str] = []
    found = "not stated"
    with TemporaryDirectory(dir=pages.parent) as folder:
        archive = Path(folder, "pages.tar")
        with tarfile.open(archive, "w") as kept:
            for name, content in files_of(package):
                if name.endswith("/copyright") and found == "not stated":
                    found = license_of(content.decode(errors="replace"))
                elif NOT_READ.fullmatch(name):
                    continue
                elif PAGE.fullmatch(name):
                    entry = tarfile.TarInfo(name.removesuffix(".gz"))
                    entry.size = len(content)
                    kept.addfile(entry, BytesIO(content))
                elif TEXT.fullmatch(name):
                    text = content.decode(errors="replace")
                    documents += cut(POD_MARKS.sub("", text) if name.endswith(".pod") else text)
            has_pages = bool(kept.getmembers())

        if has_pages:
            archive.rename(pages)
    if documents:
        texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return found


def files_of(package: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the path and the decompressed content of each regular file of a package."""
    command = ["dpkg-deb", "--fsys-tarfile", package]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as process,
        tarfile.open(fileobj=process.stdout, mode="r|") as archive,
    ):
        for member in archive:
            file = archive.extractfile(member) if member.isreg() else None
            if file is not None:
                content = file.read()
                is_compressed = member.name.endswith((".gz", ".dz"))
                yield member.name, gzip.decompress(content) if is_compressed else content


def cut(text: str) -> Iterator[str]:
    """Cut a long text at an empty line or one that is "%", as in fortunes; after twice as much at any line."""
    lines: list[str] = []
    characters = 0
    for line in text.splitlines():
        is_end = line.strip() in ("", "%")
        lines.append("" if is_end else line)
        characters += len(line) + 1
        if characters > (1 if is_end else 2) * DOCUMENT_CHARACTERS:
            yield "\n".join(lines)
            lines, characters = [], 0
    yield "\n".join(lines)


def license_of(copyright_file: str) -> str:
    """Return what a copyright file names: its first `License` field, or the names of licenses that it contains."""
    field = re.search(r"^License: *(\S.*)$", copyright_file, re.MULTILINE)
    if field:
        return field[1].strip()
    long_names = copyright_file.replace("Free Documentation License", "GFDL").replace("General Public License", "GPL")
    return ", ".join(name for name in LICENSES if re.search(rf"\b{name}\b", long_names)) or "see the package"


def corpus_of(name: str, license_name: str, files: list[Path]) -> Corpus:
    return {"name": name, "input": [str(path.resolve()) for path in files], "license": license_name}


def shard(corpora: Iterable[Corpus | None], inputs: Path, text: Path, *flags: object) -> None:
    """Make a text folder of the corpora that are there; one that is finished stays."""
    inputs.write_text(tomli_w.dumps({"corpus": [corpus for corpus in corpora if corpus]}))
    if not (text / "manifest.json").exists():
        run("python", "-m", "pipeline", "shard", "--inputs", inputs, "--output", text, *flags)


def run(*words: object) -> None:
    command = [sys.executable if word == "python" else str(word) for word in words]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
