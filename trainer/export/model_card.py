"""Writes the model card of an export (README.md): what the model is, how to load it, and how it was trained.

An export may be published, so its card holds no paths and no accounts of the run. The text is in
templates/model_card.md.jinja.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from schemas.pages import render_markdown
from schemas.terminal import counted
from schemas.text_facts import TextFacts
from schemas.vocabulary import VOCABULARY_FOLDER
from trainer.checkpoint.format import checkpoint_path
from trainer.checkpoint.state import TrainingState, read_state
from trainer.checkpoint.text_facts import read_text_facts
from trainer.config.record import public_changes, public_recipe, shown_value
from trainer.config.schema import Recipe
from trainer.export.request import Writing
from trainer.logs import logger
from trainer.metrics.log import Figures, is_evaluation, read_lines, skipped_note
from trainer.metrics.presentation import duration, masks_note, shown_path
from trainer.metrics.run_record import read_blanks
from trainer.metrics.starts import Start, read_starts, versions
from trainer.models.families import FAMILIES
from trainer.models.hf_config import ARCHITECTURES, AUTO_CLASSES

TEMPLATE = "model_card.md.jinja"
PIPELINES = {"AutoModelForCausalLM": "text-generation"}
"""transformers' pipelines other than fill-mask, by the Auto class of the family."""

LANGUAGE_CODE = re.compile("[a-z]{2,3}")
"""ISO 639, which the Hub knows languages by."""

_LANGUAGE_NAMES = (
    "ar=Arabic bn=Bengali cs=Czech da=Danish de=German el=Greek en=English es=Spanish fa=Persian fi=Finnish fr=French "
    "he=Hebrew hi=Hindi hu=Hungarian id=Indonesian it=Italian ja=Japanese ko=Korean la=Latin nl=Dutch no=Norwegian "
    "pl=Polish pt=Portuguese ro=Romanian ru=Russian sv=Swedish sw=Swahili ta=Tamil th=Thai tr=Turkish uk=Ukrainian "
    "ur=Urdu vi=Vietnamese zh=Chinese"
)
LANGUAGES = {code: name for code, _, name in (pair.partition("=") for pair in _LANGUAGE_NAMES.split())}
"""Names for the title. A language without one is named by its code."""

PUBLISHED = {"Roberta": "RoBERTa", "Albert": "ALBERT", "Electra": "ELECTRA", "Esm": "ESM", "Gte": "GTE"}
"""How papers spell architectures that transformers spells otherwise, besides Bert."""

METRICS = {
    "loss": "loss",
    "mlm_loss": "masked LM loss",
    "mlm_loss_masked": "loss at [MASK]",
    "mlm_accuracy": "accuracy of predicted tokens",
    "mlm_accuracy_masked": "accuracy at [MASK]",
    "unigram_loss": "loss of word frequencies alone",
    "pair_loss": "pair loss",
    "pair_accuracy": "pair accuracy",
    "rtd_loss": "loss of replaced-token detection",
    "rtd_accuracy": "accuracy of replaced-token detection",
    "replaced_fraction": "tokens that were replaced",
    "tokens_per_second": "tokens per second",
}
"""The metrics on the card, in order, and their names there. Those of held-out pairs begin with "eval_"."""

REPEATED = (("loss", "mlm_loss"), ("mlm_loss_masked", "mlm_loss"), ("mlm_accuracy_masked", "mlm_accuracy"))
"""Metrics, and those that they repeat if the masked LM is the only objective, or all predicted tokens are [MASK]."""

BLANKS = 4
"""The most sentences with blanks on the card. The first one is that of word frequencies alone."""


@dataclass(frozen=True)
class LastMetrics:
    """The last metrics logged up to a step, or a note that says why there are none.

    step: of the training metrics, `figures`, as texts by name. evaluated: the step of the last evaluation up to then; 0
    if there is none.
    """

    step: int = 0
    figures: dict[str, str] = field(default_factory=dict)
    evaluated: int = 0
    held_out: dict[str, str] = field(default_factory=dict)
    note: str = ""


def model_card(
    run: str, recipe: Recipe, steps: Sequence[int], output: str = "hf", writing: Writing | None = None
) -> str:
    """Return the card, as Markdown, of one checkpoint of a run. Raises CheckpointError if its state cannot be read.

    run: the local folder. steps: the one of the checkpoint, after those whose weights are averaged with its own.
    """
    writing = writing or Writing()
    averaged = steps if len(steps) > 1 else ()
    # Sentences of a text do not go to the Hub unseen.
    blanks = None if averaged or writing.repository else read_blanks(run)
    return render_markdown(
        "trainer.export",
        TEMPLATE,
        name=writing.repository or shown_path(output),
        averaged=averaged,
        blanks=blanks.filled[:BLANKS] if blanks and blanks.step == steps[-1] else [],
        writing=writing,
        versions=versions("clozeline", "torch", "transformers", "tokenizers"),
        recipe=recipe,
        toml=public_recipe(recipe),
        masks=masks_note(recipe.model_dump()),
        origin=origin_of(recipe),
        traits=FAMILIES[recipe.model.family],
        architecture=ARCHITECTURES[recipe.model.family],
        pipeline=PIPELINES.get(AUTO_CLASSES[recipe.model.family], "fill-mask"),
        cell=cell,
        shown=shown_value,
        **training_facts(run, recipe, read_state(Path(checkpoint_path(run, steps[-1])))),
        **tokenizer_facts(run),
    )


def training_facts(run: str, recipe: Recipe, state: TrainingState) -> dict[str, Any]:
    """Return what the card says of the training up to a checkpoint, and of its text."""
    starts = [start for start in read_starts(run) if start.step < state.step]
    # Fingerprints identify the content that the model was trained on without naming a path.
    pairs = list(dict.fromkeys([*state.earlier_data, *state.identity["data"]]))
    texts = texts_of(run, pairs)
    languages = languages_of(texts)
    return {
        "state": state,
        "changes": public_changes(state.changes),
        "metrics": last_metrics(run, state.step),
        "time": duration(state.seconds),
        "machines": dict.fromkeys(f"{counted(one.ranks, 'rank')}, {one.machine}" for one in starts if one.machine),
        "start": starts[-1] if starts else None,
        "passes": passes_of(state.tokens, starts) if len(pairs) == 1 else None,
        "pairs_fingerprints": pairs,
        "texts": texts,
        "corpora": [f'"{cell(corpus.name)}"' for text in texts for corpus in text.corpora],
        "masked": dict.fromkeys(name for text in texts for name, _ in text.cleaning if name.endswith("masked")),
        "languages": languages,
        "title": title_of(recipe, languages),
    }


def title_of(recipe: Recipe, languages: Sequence[str]) -> str:
    """Return what a model is. Example: `English masked language model, ModernBERT, 2 layers of 128`."""
    family = recipe.model.family
    kind = "masked language model"
    if FAMILIES[family].replaced_tokens:
        kind = "detector of replaced tokens"
    elif FAMILIES[family].two_streams or recipe.objective.kind == "clm":
        kind = "permutation language model" if FAMILIES[family].two_streams else "causal language model"

    names = [LANGUAGES.get(code, code) for code in languages]
    before = " and ".join(names) if len(names) < 3 else f"Multilingual ({len(names)} languages)"
    name = re.sub("For.*|LMHeadModel", "", ARCHITECTURES[family])
    name = PUBLISHED.get(name, name.replace("Bert", "BERT"))
    size = f"{recipe.model.num_hidden_layers} layers of {recipe.model.hidden_size}"
    title = f"{before} {kind}, {name}, {size}".strip()
    return title[0].upper() + title[1:]


def passes_of(tokens: int, starts: Sequence[Start]) -> float | None:
    """Return how often a run has gone through its pairs, None if it did not note their size."""
    size = starts[-1].pass_tokens if starts else None
    return tokens / size if size else None


def tokenizer_facts(run: str) -> dict[str, str]:
    """Return the kind and size of the run's vocabulary, and, in a sentence, what becomes of letters."""
    tokenizer = Tokenizer.from_file(str(Path(run, VOCABULARY_FOLDER, "tokenizer.json")))
    kind = type(tokenizer.model).__name__
    vocabulary = f"{'byte-level BPE' if kind == 'BPE' else kind}, {tokenizer.get_vocab_size():,} tokens"

    normalizer = tokenizer.normalizer
    letter = unicodedata.normalize("NFD", normalizer.normalize_str("É") if normalizer else "É")
    case = "Capital letters become small" if "e" in letter else "Capital and small letters differ"
    reading = f"{case}, and accents {'stay' if len(letter.strip()) > 1 else 'are dropped'}."
    return {"vocabulary": vocabulary, "reading": reading}


def origin_of(recipe: Recipe) -> str:
    """Return the name of the folder whose weights the run began with, without its path; empty for random weights."""
    source = recipe.model.init_from or recipe.model.tile_from or ""
    return source.rstrip("/").rpartition("/")[2]


def texts_of(run: str, pairs: Sequence[str]) -> list[TextFacts]:
    """Return what is known about the text of these pairs (fingerprints), each text once, in their order."""
    known = read_text_facts(run)
    found = [known[fingerprint] for fingerprint in pairs if fingerprint in known]
    return list({facts.fingerprint: facts for facts in found}.values())


def languages_of(texts: Sequence[TextFacts]) -> list[str]:
    """Return the codes of the languages that texts were made in, or that at least 1% of their documents have."""
    found: dict[str, None] = {}
    for text in texts:
        if text.language != "auto":
            found[text.language] = None
        found |= {name: None for name, documents in text.languages if 100 * documents >= text.documents}
    return [name for name in found if LANGUAGE_CODE.fullmatch(name) and name != "und"]  # undetermined


def cell(text: str) -> str:
    """Return any text as it can stand in a cell of a table in Markdown."""
    marks = r"[\\|]" if "://" in text else r"[\\|`*_\[\]]"
    return re.sub(marks, r"\\\g<0>", html.escape(" ".join(text.split()), quote=False))


def last_metrics(run: str, step: int) -> LastMetrics:
    """Return the last metrics logged up to a step, or a note if there are none or the file is unreadable."""
    try:
        lines, skipped = read_lines(run)
    except OSError as error:
        return LastMetrics(note=f"The metrics could not be read: {error.strerror}.")
    if skipped:
        logger.info("%s", skipped_note(run, skipped))

    lines = [line for line in reversed(lines) if line["step"] <= step]
    if not lines:
        return LastMetrics(note="None were logged.")

    trained = next((line for line in lines if not is_evaluation(line)), {})
    evaluation = next((line for line in lines if is_evaluation(line)), {})
    step, evaluated = (trained or evaluation)["step"], evaluation.get("step", 0)
    return LastMetrics(step, _shown(trained, ""), evaluated, _shown(evaluation, "eval_"))


def _shown(line: Figures, prefix: str) -> dict[str, str]:
    """Return the METRICS that a line has numbers for, as texts by name, without what repeats another."""
    found = {name: _text_of(name, number) for name in METRICS if (number := line.get(prefix + name)) is not None}
    same = [name for name, other in REPEATED if found.get(name) == found.get(other)]
    return {METRICS[name]: text for name, text in found.items() if name not in same}


def _text_of(name: str, number: float) -> str:
    if name == "tokens_per_second":
        return f"{number:,.0f}"
    return f"{number:.3f}" if name.endswith(("loss", "loss_masked")) else f"{number:.1%}"
