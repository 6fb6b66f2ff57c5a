"""From records to shards of clean sentences: the library behind `python -m pipeline shard`.

The path of one document, which begins in pipeline/readers:

    documents        a record becomes a document, which takes steps until it is dropped or fills a run
    cleaning         fixed rules for control characters, spaces, line ends, Unicode and endless words
    sentences        wrapped lines are joined, and the text is split into sentences by the rules of `languages`
    write_runs       the first half of the shuffle: every worker writes sorted run files
    survey           all runs are counted: may this be published, and in how many shards?
    copies           optional (--dedup): all copies of a text but one are dropped, starting within runs
    write_shard      the second half of the shuffle: every shard collects its documents from all runs
    holdout          optional (--holdout): which documents go to a second folder

Only `write_runs` and `write_shard` move the bytes of the corpus, so each byte is written twice and read twice in all.

No document is dropped silently. Every rejected record, dropped document and duplicate is counted in the manifest's
ledger as (reason, source, count). A record that was rejected for a fault (not JSON, no text, too long, no end tag) is
also written to OUTPUT/rejected/ with its file, its position and its first characters. Too many of them
(--max_bad_ratio), or too many bytes that cannot be decoded (--max_undecodable_ratio), end the job with a DataError, and
nothing is published. What cleaning changes inside a document is counted in the manifest's statistics.
"""
