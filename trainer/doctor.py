"""`clozeline doctor`: checks whether training can start on this machine, and says what to change.

Checks import torch and DeepSpeed themselves, because these may be missing. One that raises is a line of the answer.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import platform
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any, Literal, NamedTuple

from clozeline.installation import EXTRAS, SET_TMPDIR, missing_findings
from schemas import storage
from schemas.command_line import CommandParser, file_path, folder_path
from schemas.errors import ClozelineError, StorageError, UsageError
from schemas.host_limits import allowed_cores, available_bytes, core_quota, usable_cores
from schemas.terminal import print_lines
from trainer.command_line import add_set_flag, print_error, raise_at_ctrl_c
from trainer.config.load import load_recipe
from trainer.config.phases import phases_of
from trainer.config.schema import Recipe

INSTALL = 'Install it: pip install "clozeline[trainer]"'

VOCABULARY_SIZE = 30_522  # BERT's, assumed if neither the recipe nor finished pairs state one

TEST_FILE = ".clozeline-doctor-"
SHARED_MEMORY = Path("/dev/shm")
SMALL_SHARED_MEMORY = 512_000_000  # bytes; NCCL takes tens of MB a rank, and Docker's default is 64 MB
URL_SECONDS = 30.0  # a store that does not answer within this time counts as unreachable


class Finding(NamedTuple):
    """The result of one check.

    state: "note" is not needed; with a "warning" training starts, but slower or less safely.
    value: what was found. advice: what to do, empty if nothing. exit_code: the code that training would end with.
    """

    name: str
    state: Literal["ok", "note", "warning", "failed"]
    value: str
    advice: str = ""
    exit_code: int = 0


def failed(name: str, value: str, advice: str = "", code: int = UsageError.exit_code) -> Finding:
    """Return a finding that keeps training from starting. code: the exit code of training."""
    return Finding(name, "failed", value, advice, code)


def warned_if(is_bad: bool, name: str, value: str, advice: str) -> Finding:
    """Return a warning with advice, or else that all is well."""
    return Finding(name, "warning", value, advice) if is_bad else Finding(name, "ok", value)


# Packages


def check_packages() -> list[Finding]:
    """Compare Python and the installed packages with the versions that Clozeline's metadata asks for."""
    if find_spec("packaging") is None:
        return [Finding(**one) for one in missing_findings()]
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    try:
        requirements = [Requirement(line) for line in metadata.requires("clozeline") or []]
    except metadata.PackageNotFoundError:
        return [Finding("packages", "note", "not checked, because Clozeline runs without being installed")]
    python_versions = SpecifierSet(metadata.metadata("clozeline")["Requires-Python"])
    needed = [check_version("python", platform.python_version(), python_versions)]
    for one in requirements:
        if one.marker is None or one.marker.evaluate({"extra": "trainer"}):
            installed = next(iter(metadata.distributions(name=one.name)), None)
            needed.append(check_version(one.name, installed.version if installed else "", one.specifier))

    # The extras that are not needed for training: those that are complete, and what others lack.
    complete = [name for name, modules in EXTRAS.items() if name != "trainer" and all(map(find_spec, modules))]
    missing = [Finding(**one) for one in missing_findings() if one["state"] == "note"]
    return [*needed, Finding("other extras", "ok", ", ".join(complete)), *missing]


def check_version(name: str, version: str, supported: Any) -> Finding:
    """Compare a version, empty for a missing package, with what a packaging.specifiers.SpecifierSet allows."""
    if not version:
        return failed(name, "not installed", INSTALL)
    is_outside = not supported.contains(version, prereleases=True)
    return warned_if(is_outside, name, f"{version} (supported: {supported})", INSTALL)


# Devices


def check_devices() -> list[Finding]:
    import torch

    from trainer.distributed.threads import device_kind

    findings = [check_cores()]
    if device_kind() == "cuda":
        findings += [check_gpu(index) for index in range(torch.cuda.device_count())]
    elif Path("/dev/nvidia0").exists():
        advice = "Install a CUDA build of torch, and check the driver with nvidia-smi."
        findings.append(Finding("gpu", "warning", "there is an NVIDIA GPU, but torch does not find it", advice))
    return findings


def check_gpu(index: int) -> Finding:
    """Describe a GPU, and check that torch computes on it, which a build without kernels for it does not."""
    import torch

    gpu = torch.cuda.get_device_properties(index)
    value = f"{gpu.name}, {gpu.total_memory / 1e9:.1f} GB, compute capability {gpu.major}.{gpu.minor}"
    try:
        torch.ones(2, 2, device=f"cuda:{index}").sum().item()
    except RuntimeError as error:
        advice = f"Free it, or replace torch {torch.__version__} by a build for it."
        return failed(f"gpu {index}", f"{value}: {str(error).splitlines()[0]}", advice)
    return Finding(f"gpu {index}", "ok", value)


def check_cores() -> Finding:
    usable = usable_cores()
    value = f"{allowed_cores()} of {os.cpu_count()} usable"
    if usable < allowed_cores():
        value += f", limited to the time of {core_quota():g} cores"

    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads and not threads.split(",")[0].strip().isdecimal():
        value += f"; OMP_NUM_THREADS = {threads} is no number, and has no effect"
    elif threads:
        value += f"; each rank uses OMP_NUM_THREADS = {threads}"
    advice = f"Set OMP_NUM_THREADS to {usable} divided by the ranks of this machine, or unset it."
    return warned_if(threads.isdigit() and int(threads) > usable, "cores", value, advice)


# The recipe


def check_data(recipe: Recipe) -> list[Finding]:
    """Read the manifests and vocabularies of finished pairs. Raises as training does if they do not fit the model."""
    from trainer import describe

    findings = []
    for phase in phases_of(recipe):
        describe.check_phase(phase.recipe, "")
        ready = describe.finished_folders(phase.recipe)
        findings += [Finding("data", "ok", f"{folder} can be read") for folder in ready]
        missing = [folder for folder in phase.recipe.data.folders if folder not in ready]
        findings += [Finding("data", "note", describe.why_unfinished(folder)) for folder in missing]
    return findings


def check_room(recipe: Recipe, folder: Path) -> list[Finding]:
    """Compare what a rank needs with its device, copies of checkpoints with host memory, and checkpoints with the disk.

    Raises UsageError if the device does not support the precision.
    There is one rank on each GPU, or a single one on a CPU. With batch.micro_tokens "auto", which depends on the free
    memory, it needs at least the smallest micro-batch. Of several phases, the one that needs most counts.
    """
    import torch

    from trainer import describe
    from trainer.checkpoint.snapshot import SHARE_OF_MEMORY
    from trainer.distributed.threads import device_kind
    from trainer.engine import check_precision
    from trainer.models.families import encoder_shape

    check_precision(recipe.engine.precision)
    vocabulary = describe.vocabulary_size(recipe, assumed=VOCABULARY_SIZE)
    phase = describe.phase_that_needs_most(phases_of(recipe), vocabulary).recipe
    shape = encoder_shape(phase.model, vocabulary)
    parameters = describe.count_parameters(describe.meta_model(shape))
    tokens = describe.least_micro_batch(phase)
    saved = describe.saved_bytes(parameters)

    on_gpus = device_kind() == "cuda"
    ranks = torch.cuda.device_count() if on_gpus else 1
    available = torch.cuda.get_device_properties(0).total_memory if on_gpus else available_bytes()
    needed = describe.rank_bytes(shape, parameters, phase, ranks)
    what = f"a rank's {parameters:,} parameters and micro-batches of {tokens:,} tokens take"
    advice = "Use a smaller micro-batch, more ranks with a higher engine.zero_stage, or engine.recompute=true."
    findings = [compared("memory", what, needed, available, advice)]

    needed, available = saved * (recipe.checkpoint.keep + 1), shutil.disk_usage(folder).free
    advice = "Lower checkpoint.keep, free some space, or choose another run.output."
    findings.append(compared("disk", f"checkpoints in {folder} take", needed, available, advice))

    if recipe.checkpoint.background:
        available = round(SHARE_OF_MEMORY * available_bytes())
        advice = "Without them, training stops while a checkpoint is written. Free memory, or use more machines."
        findings.append(compared("host memory", "copies of a checkpoint take", saved, available, advice))
    return findings


def compared(name: str, what: str, needed: int, available: int, advice: str) -> Finding:
    return warned_if(needed > available, name, f"{what} {needed / 1e9:,.1f} of {available / 1e9:,.1f} GB", advice)


# Storage


def check_folder(folder: Path) -> list[Finding]:
    """Write and sync a file in a folder and remove it again."""
    path = folder / f"{TEST_FILE}{secrets.token_hex(6)}"
    try:
        with path.open("wb") as file:
            file.write(secrets.token_bytes(4_000_000))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        advice = "Choose another folder (--folder, run.output), free some space, or check the permissions."
        return [failed("folder", f"{folder}: {error.strerror}", advice, StorageError.exit_code)]
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
    return [Finding("folder", "ok", f"{folder}: written, {shutil.disk_usage(folder).free / 1e9:,.1f} GB free")]


def check_temporary_folder() -> list[Finding]:
    try:
        return [Finding("TMPDIR", "ok", f"{tempfile.gettempdir()}: temporary files can be written")]
    except FileNotFoundError as error:
        return [failed("TMPDIR", str(error.strerror), SET_TMPDIR, StorageError.exit_code)]


def check_shared_memory() -> list[Finding]:
    """Check the free shared memory, through which ranks of one machine exchange gradients and data."""
    if not SHARED_MEMORY.is_dir():
        return []
    free = shutil.disk_usage(SHARED_MEMORY).free
    advice = "Several ranks may need more. In a container: docker run --shm-size=8g, or mount an emptyDir there."
    return [warned_if(free < SMALL_SHARED_MEMORY, "shared memory", f"{free / 1e9:,.2f} GB free", advice)]


def check_url(url: str) -> Finding:
    """Write, read and remove a small file at a URL. Gives up after URL_SECONDS."""
    name = f"url {url}"
    found: list[Finding] = []

    def try_it() -> None:
        try:
            target = storage.join(url, f"{TEST_FILE}{secrets.token_hex(6)}")
            storage.publish(target, secrets.token_bytes(1000))
            storage.read(target)
            storage.remove(target)
            found.append(Finding(name, "ok", "written, read and removed"))
        except ClozelineError as error:
            found.append(failed(name, str(error), code=error.exit_code))
        except Exception as error:
            found.append(failed(name, f"{type(error).__name__}: {error}", advice, StorageError.exit_code))

    advice = "Check the address, the credentials and the network."
    thread = Thread(target=try_it, daemon=True)
    thread.start()
    thread.join(URL_SECONDS)
    silence = failed(name, f"no answer within {URL_SECONDS:.0f} seconds", advice, StorageError.exit_code)
    return found[0] if found else silence


# The command


def main(arguments: list[str] | None = None, prog: str = "python -m trainer.doctor") -> int:
    """Run the command line. Returns 0 if training can start, otherwise the exit code that training would end with."""
    try:
        options = parser(prog).parse_args(arguments)
        recipe = load_recipe(options.config, options.set) if options.config else None
        raise_at_ctrl_c()
        findings = examine(recipe, options.folder or "", options.url)
    except ClozelineError as error:
        print_error(error, rank=0)
        return error.exit_code
    except KeyboardInterrupt:
        print("clozeline: interrupted", file=sys.stderr)
        return 130

    exit_code = next((finding.exit_code for finding in findings if finding.state == "failed"), 0)
    if options.json:
        answer = {"ready": exit_code == 0, "exit_code": exit_code, "findings": [one._asdict() for one in findings]}
        print_lines(json.dumps(answer, indent=2).splitlines())
    else:
        print_lines(as_table(findings))
    return exit_code


def parser(prog: str) -> CommandParser:
    flags = CommandParser(
        prog,
        "Check whether training can start on this machine, and say what to change; it trains nothing, leaves nothing.",
        [prog, f"{prog} --config bert_base --set run.output=out/run"],
        "0 training can start, 2 usage, configuration or a missing package, 5 storage",
    )
    recipe = flags.add_argument_group("the recipe")
    recipe.add_argument("--config", type=file_path, metavar="RECIPE", help="also check what this recipe needs")
    add_set_flag(recipe, metavar="section.key=value", help="override one value of the recipe")

    places = flags.add_argument_group("where it writes")
    what = "check this folder (default: that of run.output)"
    places.add_argument("--folder", type=folder_path, metavar="DIR", help=what)
    what = "check that this URL can be written; may be repeated"
    places.add_argument("--url", action="append", default=[], metavar="URL", help=what)

    answer = flags.add_argument_group("the answer")
    answer.add_argument("--json", action="store_true", help="print one JSON object")
    return flags


def existing_folder(folder: str) -> Path:
    """Return a folder, or its closest parent that exists, which is on the same disk."""
    path = Path(os.path.abspath(Path(folder).expanduser()))
    with storage.storage_errors_of(str(path)):
        return next((one for one in (path, *path.parents) if one.is_dir()), Path(path.anchor))


def examine(recipe: Recipe | None, folder: str, urls: list[str]) -> list[Finding]:
    """Run all checks. One that raises an error becomes a finding, too."""
    if folder and not storage.is_local(folder):
        folder, urls = "", [*urls, folder]
    writable = existing_folder(folder or (recipe.run.folder if recipe is not None else "."))
    if recipe is not None and not storage.is_local(recipe.run.output):
        urls = list(dict.fromkeys([*urls, recipe.run.output]))

    checks: dict[str, Callable[[], list[Finding]]] = {
        "packages": check_packages,
        "devices": check_devices,
        "recipe": lambda: [] if recipe is None else [*check_data(recipe), *check_room(recipe, writable)],
        "folder": lambda: check_folder(writable),
        "TMPDIR": check_temporary_folder,
        "shared memory": check_shared_memory,
        "url": lambda: [check_url(url) for url in urls],
    }
    findings: list[Finding] = []
    with quiet():
        for name, check in checks.items():
            try:
                findings += check()
            except ModuleNotFoundError as error:
                module = (error.name or "").partition(".")[0]
                findings.append(failed(name, f"not checked, because {module} is not installed", INSTALL))
            except ClozelineError as error:
                findings.append(failed(name, str(error), code=error.exit_code))
            except Exception as error:
                reason = " ".join(str(error).split())[:200]
                findings.append(Finding(name, "warning", f"not checked ({type(error).__name__}: {reason})"))
    return findings


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the prints, logs and warnings, which go to stderr, of libraries out of the answer."""
    nowhere = io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            yield
    finally:
        logging.disable(logging.NOTSET)


def as_table(findings: list[Finding]) -> list[str]:
    """Return the findings as lines of text: state, name, what was found, and below it what to do."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.state:<9}{finding.name:<14}  {finding.value}".rstrip())
        if finding.advice:
            lines.append(f"{'':25}-> {finding.advice}")

    verdict = "Training can start."
    if any(finding.state == "failed" for finding in findings):
        verdict = "Training cannot start here."
    elif any((finding.name, finding.state) == ("data", "note") for finding in findings):
        verdict = "Training can start once its data is there."
    return [*lines, "", verdict]


if __name__ == "__main__":
    from clozeline.installation import run_explained

    raise SystemExit(run_explained(main, "trainer"))
