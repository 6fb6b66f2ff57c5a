"""Uploads an export to the Hugging Face Hub, as one commit of a model repository, by huggingface_hub.

HF_ENDPOINT, HF_TOKEN and `hf auth login` count as for any program of theirs. What a user can mend is found before the
export begins, as far as one request can tell: no token, one that is refused, no network.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalTokenNotFoundError,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import disable_progress_bars, validate_repo_id

from schemas import progress, storage
from schemas.errors import StorageError, UsageError
from trainer.export.folder import EXPORT_FILES, NESTED_FILES
from trainer.models.families import GENERATOR_FOLDER

TAG = "clozeline"
"""The tag of the card by which an export is recognized on the Hub."""


def check_access(repository: str, overwrite: bool) -> None:
    """Raise UsageError or StorageError if an upload to a repository would fail, or replace files that must stay.

    As in a folder, these are the files of any model without `overwrite`, and with it those of one that is no export.
    """
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise UsageError(f"--push_to_hub {repository}: {error} Give OWNER/NAME.") from None
    if repository.count("/") != 1:
        raise UsageError(f"--push_to_hub {repository}: the owner is missing. Give OWNER/NAME, your user name first.")

    with _hub_errors(repository, "Nothing was exported."):
        HfApi().whoami()
        try:
            there = HfApi().model_info(repository)
        except RepositoryNotFoundError:
            return

    names = sorted({file.rfilename for file in there.siblings or []} - {"README.md", ".gitattributes"})
    if names and TAG not in (there.tags or []):
        raise UsageError(
            f"--push_to_hub {repository}: a model is there that is no export of ours ({names[0]}; its card has no "
            f"tag {TAG}). Give another name."
        )
    if names and not overwrite:
        raise UsageError(
            f"--push_to_hub {repository}: an earlier export is there. Add --overwrite to replace it, or give another "
            "name."
        )


def push(folder: Path, files: Sequence[str], output: str, repository: str, private: bool) -> str:
    """Upload these files of a folder, create the repository if there is none, and return its URL.

    Files of an earlier export in the repository that have no successor are deleted in the same commit. output: the
    finished export, for messages. private: of a repository that is created; one that exists keeps its visibility.
    Raises UsageError or StorageError.
    """
    if not progress.is_terminal(sys.stderr):
        disable_progress_bars()
    later = "the same command with --overwrite"
    if storage.is_local(output):
        later = f"hf upload {repository} {shlex.quote(output)}"
    done = f"The export in {output} is complete; this uploads it later: {later}"
    with _hub_errors(repository, done):
        api = HfApi()
        url = api.create_repo(repository, private=private or None, exist_ok=True)
        api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=list(files),
            delete_patterns=[*_weights_and_more(""), *NESTED_FILES, *_weights_and_more(f"{GENERATOR_FOLDER}/")],
            commit_message="Export of a Clozeline run",
        )
    return str(url)


def _weights_and_more(folder: str) -> list[str]:
    return [folder + name for name in (*EXPORT_FILES, "model-*-of-*.safetensors")]


@contextlib.contextmanager
def _hub_errors(repository: str, state: str) -> Iterator[None]:
    """Turn huggingface_hub's errors into ours. state: what was done so far, for the message."""
    try:
        yield
    except (HTTPError, OSError, ValueError) as error:
        status = error.response.status_code if isinstance(error, HfHubHTTPError) else 0
        said = getattr(error, "server_message", None) or str(error) or type(error).__name__
        place, line = f"--push_to_hub {repository}", " ".join(said.split())[:200].rstrip(".")
        if status in (401, 403, 404) or isinstance(error, LocalTokenNotFoundError):
            advice = "Set HF_TOKEN to a token with the right to write there, or log in with `hf auth login`."
            raise UsageError(f"{place}: the Hub refuses it ({line}). {advice} {state}") from None
        if isinstance(error, ValueError) and not status:  # what it finds wrong with the card's header
            raise UsageError(
                f"{place}: the Hub refuses the card ({line}). Give a --license that it knows. {state}"
            ) from None
        what = f"answered {status}" if status else "cannot be reached"
        raise StorageError(f"{place}: the Hub {what} ({line}). Try again later. {state}") from None
