"""What `clozeline doctor` is to check, as its flags state it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from schemas import storage
from trainer.config.schema import Recipe


@dataclass(frozen=True)
class Plan:
    """What to check. recipe: the one to train, None without --config. folder, urls: as given; may be empty."""

    recipe: Recipe | None = None
    folder: str = ""
    urls: tuple[str, ...] = ()

    @property
    def run_folder(self) -> Path:
        """The local folder that a run would write: --folder, the recipe's, or the working directory."""
        if self.folder:
            return Path(self.folder)
        if self.recipe is not None:
            return Path(self.recipe.run.folder)
        return Path.cwd()

    @property
    def existing_folder(self) -> Path:
        """The run folder, or its closest parent that exists, which is on the same disk."""
        folder = Path(os.path.abspath(self.run_folder.expanduser()))
        while not folder.is_dir() and folder != folder.parent:
            folder = folder.parent
        return folder

    @property
    def written_urls(self) -> list[str]:
        """URLs that a run must be able to write to: those of --url, and run.output if it is a URL."""
        output = self.recipe.run.output if self.recipe is not None else ""
        outputs = [output] if output and not storage.is_local(output) else []
        return [*self.urls, *(url for url in outputs if url not in self.urls)]
