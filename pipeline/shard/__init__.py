"""From records to shards of clean sentences: the library behind `python -m pipeline shard`.

The path of one document, which begins in pipeline/readers:

    documents        what is done to a document, until it is dropped
    run_buffer       the documents of a split that stay fill runs in memory
    cleaning         fixed rules for control characters, spaces, line ends, Unicode and endless words
    sentences        wrapped lines are joined, and the text is split into sentences by the rules of `languages`
    write_runs       the first half of the shuffle: every worker writes sorted run files
    hosts            how many documents of a crawl are from which host
    survey           all runs are counted: may this be published, and in how many shards?
    copies           optional (--dedup): all copies of a text but one are dropped, starting within runs
    write_shard      the second half of the shuffle: every shard collects its documents from all runs
    holdout          optional (--holdout): which documents go to a second folder
    repeats          optional (--drop_repeats): shards are written again without sentences that occurred before

Only `write_runs` and `write_shard` move the bytes of the corpus, so each byte is written twice and read twice in all:
three times with --drop_repeats.
docs/architecture.md says what happens to a document that is dropped.
"""
