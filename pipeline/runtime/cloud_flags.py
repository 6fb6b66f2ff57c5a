"""Rejects malformed values of Dataflow's flags, which the service itself rejects only after minutes.

No request is made, so a well-formed name that does not exist is left for the service to find. Google keeps adding
regions and machine types, so an unknown word in one is rejected only if it looks like a misspelling of a known word.
"""

from __future__ import annotations

import ast
import re

from schemas.errors import UsageError, nearest_name

REGION = re.compile(r"([a-z]+)-([a-z]+)\d{1,2}")
ZONE = re.compile(r"([a-z]+-[a-z]+\d{1,2})-[a-z]")
AREAS = ("africa", "asia", "australia", "europe", "me", "northamerica", "southamerica", "us")
PLACES = ("central", "east", "north", "northeast", "northwest", "south", "southeast", "southwest", "west")

MACHINE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)+")
SIZES = (
    *("custom", "edgegpu", "extramem", "highcpu", "highgpu", "highmem", "hypermem", "medium", "megagpu", "megamem"),
    *("metal", "micro", "small", "standard", "ultragpu", "ultramem"),
)
COUNTED_SIZES = ("standard", "highmem", "highcpu")
"""Sizes that are followed by the number of CPUs, as in n2-standard-4."""

_PART = r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
IMAGE = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::[0-9]+)?/)?"  # the registry
    r"(?:[a-z0-9.-]+:[a-z][a-z0-9-]*[a-z0-9]/)?"  # example.com:project, as on gcr.io
    rf"(?:{_PART}/)*{_PART}"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")


def check_region(region: str) -> None:
    """Raise UsageError for a region that cannot exist."""
    form = REGION.fullmatch(region)
    if form is None:
        zone = ZONE.fullmatch(region)
        advice = f"That is a zone; give its region, {zone[1]}." if zone else "Give one such as us-central1."
        raise UsageError(f"--region {region} is no region of Google Cloud. {advice}")

    for word, known in ((form[1], AREAS), (form[2], PLACES)):
        close = "" if word in known else nearest_name(word, known)
        if close:
            raise UsageError(f"--region {region} is no region of Google Cloud: there is no {word}.{close}")


def check_machine_type(name: str) -> None:
    """Raise UsageError for a machine type that cannot exist. A URL that ends in a machine type is accepted too."""
    short = name.rpartition("/")[2]
    if not MACHINE.fullmatch(short):
        raise UsageError(f"--worker_machine_type {name} is no machine type. Give one such as n2-standard-4.")

    words = short.split("-")
    size = words[1]
    close = "" if size in SIZES or not size.isalpha() else nearest_name(size, SIZES)
    if close:
        raise UsageError(f"--worker_machine_type {name} is no machine type: there is no {size}.{close}")
    if size in COUNTED_SIZES and not (len(words) > 2 and words[2].isdecimal()):
        raise UsageError(
            f"--worker_machine_type {name} lacks the number of CPUs. Give one such as {words[0]}-{size}-4."
        )


def check_image(name: str) -> None:
    """Raise UsageError for a string that cannot be the name of a container image."""
    if not IMAGE.fullmatch(name):
        raise UsageError(
            f"--sdk_container_image {name!r} is no name of an image. Give one such as "
            "us-docker.pkg.dev/my-project/images/clozeline-pipeline:0.1.0."
        )


def check_labels(labels: list[str]) -> None:
    """Raise UsageError for labels that are not KEY=VALUE in the characters that Google Cloud allows.

    Beam also accepts a dictionary in Python or JSON notation.
    """
    for label in labels:
        for key, value in _pairs_of(label):
            if not LABEL_KEY.fullmatch(key) or not LABEL_VALUE.fullmatch(value):
                raise UsageError(
                    f"--labels {label} is no label of Google Cloud. Give KEY=VALUE, such as team=nlp: lower-case "
                    "letters, digits, _ and -, at most 63 of each, and the key begins with a letter."
                )


def _pairs_of(label: str) -> list[tuple[str, str]]:
    if "{" in label:
        try:
            return [(str(key), str(value)) for key, value in ast.literal_eval(label).items()]
        except (ValueError, SyntaxError, AttributeError):
            return [("", "")]

    key, is_pair, value = label.partition("=")
    return [(key, value)] if is_pair else [("", "")]
