"""From raw corpora to shards of clean sentences: the library behind `python -m pipeline shard`.

The path of one document:

    listing          patterns become a list of files, with the size and version of each
    inputs           files become splits, one worker's task each
    formats          text, JSON lines, Parquet or WikiExtractor? Recognized by name or by the first bytes
    decompression    .gz, .bz2, .xz and .zst become plain bytes in bounded memory; bombs are refused
    encodings        text in another encoding (--encoding) becomes UTF-8
    cut_files        a piece of a large compressed file becomes the plain bytes of its frames
    lines, records   lines become records: the text of one document, or the reason why there is none
    parquet          rows become records
    cleaning         fixed rules for control characters, spaces, line ends, Unicode and endless words
    sentences        wrapped lines are joined, and the text is split into sentences
    documents        records become documents, collected until they fill a run
    partition        the first half of the shuffle: every worker writes sorted run files
    plan             all runs are counted: may this be published, and in how many shards?
    near_duplicates  optional (--dedup minhash): which documents nearly repeat another one
    copies           optional (--dedup): all copies of a text but one are dropped, starting within runs
    merge            the second half of the shuffle: every shard collects its documents from all runs

Only `partition` and `merge` move the bytes of the corpus, so each byte is written twice and read twice in all.

No document is dropped silently. Every rejected record, empty document and duplicate is counted in the manifest's ledger
as (reason, source, count). A record that was rejected for a fault (not JSON, no text, too long, no end tag) is also
written to OUTPUT/rejected/ with its file, its position and its first characters. Too many of them (--max_bad_ratio), or
too many bytes that cannot be decoded (--max_undecodable_ratio), end the job with a DataError, and nothing is published.
What cleaning changes inside a document is counted in the manifest's statistics.

Smaller modules: `frames`, `gzip_members`, `zstd_frames` and `bzip2_blocks` read compressed files frame by frame, and
`cut_points` finds the frames at which they can be cut; `ranges` reads byte ranges of files in a store, and `recent`
remembers what was read; `record` and `limits` contain what the readers share; `undecodable` counts bytes outside the
encoding, and `encoding_guess` with `alphabets` suggests the right one; `file_kinds` knows files that are not text;
`languages` with `language_table` resolves --language; `summary` writes the closing lines of the command.
"""
