"""Rules that judge documents and lines by their text alone (`shard --filters`): those of C4, Gopher and FineWeb.

measures     what is measured about a document: words, lines, repeated n-grams
rules        the table of rules, each with its paper, its definition and its threshold; which of them a job applies

pipeline/shard/documents.py applies them between cleaning and splitting. A document that fails a rule is in the ledger
by the name of the first rule that it failed; lines that fail one are counted in the manifest's `cleaning`.
"""
