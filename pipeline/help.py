"""What `--help` says of each command: one sentence, its flags in groups, and examples."""

from __future__ import annotations

from dataclasses import dataclass, field

NOTE_ON_BEAM = "Any other flag goes to Beam: --direct_num_workers (worker processes on this machine), --runner ..."


@dataclass(frozen=True)
class About:
    """What the help of one command says.

    sentence: what it does. groups: for each title the names of its flags, with spaces between. examples: arguments.
    """

    sentence: str
    examples: tuple[str, ...]
    groups: dict[str, str] = field(default_factory=dict)
    notes: str = ""


LAUNCH = "how it runs"
"""The group that the flags of the launch stand in."""

_LAUNCHED = {LAUNCH: "shuffle overwrite"}

ABOUT = {
    "shard": About(
        "Read corpora, clean and shuffle their documents, and write them as text shards.",
        (
            'shard --input "books/**" --output out/text --text_layout file --holdout 0.01',
            "shard --inputs corpora.toml --output out/text --language auto --filters gopher --dedup minhash",
        ),
        {
            "files": "input inputs exclude output format text_layout text_key encoding",
            "the corpus, for cards": "corpus_name corpus_license corpus_url",
            "languages and sentences": "language languages min_language_confidence sentence_splitter",
            "what is left out": "filters sample decontaminate decontaminate_words mask_private dedup drop_repeats",
            "what is written": "holdout num_shards shard_megabytes seed",
            "limits": "max_bad_ratio max_undecodable_ratio max_document_bytes max_decompression_ratio",
        }
        | _LAUNCHED,
        NOTE_ON_BEAM,
    ),
    "vocab": About(
        "Learn a vocabulary from text shards, or extend one.",
        (
            "vocab --text out/text --output out/vocab --model wordpiece --size 30522",
            "vocab --text out/text --output out/vocab --extend models/bert-base --add 1000",
        ),
        {
            "folders": "text counts output",
            "a new vocabulary": "model size lowercase special_tokens keep_accents max_alphabet pad_to_multiple",
            "an extended one": "extend add",
            "what is rare": "min_frequency min_word_count",
        }
        | _LAUNCHED,
        NOTE_ON_BEAM,
    ),
    "pairs": About(
        "Encode text shards with a vocabulary, and write rows for training as pair shards.",
        (
            "pairs --text out/text --vocab out/vocab --output out/pairs --objective nsp --max_length 128",
            "pairs --text out/text --vocab out/vocab --output out/rows --objective full_sentences --max_length 512",
        ),
        {
            "folders": "text vocab output languages word_segmenter",
            "rows": "objective max_length short_seq_prob dupe_factor seed",
            "stored masks": "static_masks masking mask_prob max_predictions",
            LAUNCH: "overwrite",
        },
        NOTE_ON_BEAM,
    ),
    "statistics": About(
        "Count the tokens of pair shards and their co-occurrences, which training can start from.",
        (
            "statistics --pairs out/pairs --output out/statistics",
            "statistics --pairs out/pairs --output out/statistics --window 5 --processes 4",
        ),
        {
            "folders": "pairs output",
            "what is counted": "window max_tokens max_cooccurrences",
            LAUNCH: "processes overwrite",
        },
    ),
    "inspect": About(
        "Say what a folder or a file is, show what is in it, and what to do with it next.",
        ("inspect out/pairs --rows 3", "inspect out/run models/bert-base corpus.jsonl"),
        {"what is shown": "rows exclude"},
    ),
    "verify": About(
        "Check every shard of a folder against its manifest; exit code 3 when one is wrong.",
        ("verify out/text", "verify s3://bucket/pairs"),
    ),
}
