"""RUN/text_facts.json: where the text of the run's pairs is from, by the pairs' fingerprint, for its model card.

The pairs may be gone when the run is exported, and those of earlier phases even when it is resumed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from schemas import storage
from schemas.manifest import Manifest
from schemas.text_facts import TextFacts, dumped, facts_of
from trainer.logs import logger

TEXT_FACTS_FILE = "text_facts.json"


def keep_text_facts(run: str, manifests: Sequence[Manifest]) -> None:
    """Add what these manifests of pairs say about their text, if anything, to the run's file. Raises StorageError."""
    facts = read_text_facts(run)
    for manifest in manifests:
        found = facts_of(manifest.statistics)
        if found is not None:
            facts[manifest.fingerprint] = found

    if facts:
        content = {fingerprint: dumped(found) for fingerprint, found in sorted(facts.items())}
        storage.publish(str(Path(run, TEXT_FACTS_FILE)), (json.dumps(content, indent=1) + "\n").encode())


def read_text_facts(run: str) -> dict[str, TextFacts]:
    """Return the facts by the fingerprint of the pairs; none without a sound file."""
    path = Path(run, TEXT_FACTS_FILE)
    if not path.exists():
        return {}
    try:
        content = json.loads(storage.read(str(path)))
        return {fingerprint: TextFacts.model_validate(facts) for fingerprint, facts in content.items()}
    except (ValueError, AttributeError, RecursionError):
        logger.info("%s is damaged, so where the text of the pairs is from is not known.", path)
        return {}
