"""Uploads an export to the Hugging Face Hub, as one commit of a model repository, by huggingface_hub.

HF_ENDPOINT, HF_TOKEN and `hf auth login` count as for any program of theirs. What a user can mend is found before the
export begins, as far as one request can tell: no token, one that is refused, no network.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, LocalTokenNotFoundError
from huggingface_hub.utils import disable_progress_bars, validate_repo_id

from schemas.errors import StorageError, UsageError
from trainer.export.folder import EXPORT_FILES, NESTED_FILES
from trainer.models.families import GENERATOR_FOLDER


def check_access(repository: str) -> None:
    """Raise UsageError or StorageError unless a repository's name is valid, and the Hub accepts the user's token."""
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise UsageError(f"--push_to_hub {repository}: {error} Give OWNER/NAME.") from None
    if repository.count("/") != 1:
        raise UsageError(f"--push_to_hub {repository}: the owner is missing. Give OWNER/NAME, your user name first.")

    with _hub_errors(repository, "Nothing was exported."):
        HfApi().whoami()


def push(folder: Path, files: Sequence[str], output: str, repository: str, private: bool) -> str:
    """Upload these files of a folder, create the repository if there is none, and return its URL.

    Files of an earlier export in the repository that have no successor are deleted in the same commit. output: the
    finished export, for messages. private: of a repository that is created; one that exists keeps its visibility.
    Raises UsageError or StorageError.
    """
    if not sys.stderr.isatty():
        disable_progress_bars()
    done = f"The export in {output} is complete; this uploads it later: hf upload {repository} {output}"
    with _hub_errors(repository, done):
        api = HfApi()
        url = api.create_repo(repository, private=private or None, exist_ok=True)
        api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=list(files),
            delete_patterns=[*EXPORT_FILES, "model-*-of-*.safetensors", *NESTED_FILES, f"{GENERATOR_FOLDER}/*"],
            commit_message="Export of a Clozeline run",
        )
    return str(url)


@contextlib.contextmanager
def _hub_errors(repository: str, state: str) -> Iterator[None]:
    """Turn huggingface_hub's errors into ours. state: what was done so far, for the message."""
    place = f"--push_to_hub {repository}"
    try:
        yield
    except LocalTokenNotFoundError:
        raise UsageError(
            f"{place}: there is no token. Set HF_TOKEN, or log in with `hf auth login`; the token needs the right to "
            f"write. {state}"
        ) from None
    except HfHubHTTPError as error:
        raise _refusal(place, error, state) from None
    except ValueError as error:  # what the Hub finds wrong with the card's header
        raise UsageError(
            f"{place}: the Hub refuses the card ({_line(error)}). Give a --license that it knows. {state}"
        ) from None
    except (HTTPError, OSError) as error:
        raise StorageError(f"{place}: the Hub cannot be reached ({_line(error)}). {state}") from None


def _refusal(place: str, error: HfHubHTTPError, state: str) -> UsageError | StorageError:
    """Return our error for an answer of the Hub."""
    status = error.response.status_code
    if status == 401:
        return UsageError(f"{place}: the Hub does not accept the token. Make one with the right to write. {state}")
    if status in (403, 404):
        return UsageError(
            f"{place}: the token may not write there ({_line(error)}). Use a token with the right to write to this "
            f"owner's repositories. {state}"
        )
    return StorageError(f"{place}: the Hub answered {status} ({_line(error)}). Try again later. {state}")


def _line(error: Exception) -> str:
    """Return what an error says, in one line. Servers' answers come first in those of the Hub."""
    server = getattr(error, "server_message", None)
    return " ".join((server or str(error) or type(error).__name__).split())[:200].rstrip(".")
