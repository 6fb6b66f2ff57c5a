"""Read a block of pairs again and again, each time with another version of its shard, in a process that may crash.

python -m tests.trainer.checkpoint.read_versions PAIRS BLOCK VERSIONS

VERSIONS holds a folder for each version, whose files replace those of PAIRS. Prints a line for each version as JSON:
[exit code, error].
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from schemas.errors import ClozelineError
from trainer.data.folder import PairFolder


def outcome(pairs: Path, block: int) -> tuple[int, str]:
    """Return the exit code and the error that a user would see; 1 and the exception where that is a traceback."""
    try:
        PairFolder(str(pairs)).block((block,))
    except ClozelineError as error:
        return error.exit_code, str(error)
    except BaseException as error:
        return 1, repr(error)
    return 0, ""


def main(pairs: Path, block: int, versions: Path) -> None:
    for version in sorted(versions.iterdir()):
        for file in version.iterdir():
            shutil.copyfile(file, pairs / file.name)
        print(json.dumps(outcome(pairs, block)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
