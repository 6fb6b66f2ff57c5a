"""Finds near-duplicates by MinHash and banding (Broder 1997; Leskovec et al., Mining of Massive Datasets, chapter 3).

    signatures   128 minima over a document's shingles of 5 consecutive words (of single characters in Chinese and
                 Japanese); the share of equal minima estimates the Jaccard similarity of two documents' shingles
    bands        documents that agree in 8 minima in a row are a candidate pair
    similarity   candidate pairs whose signatures agree in at least 70% of the minima are connected
    components   the document with the smallest id of each connected group stays, and the others are dropped

Everything here is a function of arrays and tables. Workers write signatures and bands as runs, and rows meet by key
from step to step (pipeline/jobs/near_duplicates.py), so no worker needs more than one bucket of them. Which copy stays
follows from the ids, and so from the texts alone.

Cost, in bytes that are written and read once: 256 for bands and 136 for signatures, for each document of the corpus; 32
and 144 for each candidate pair, and another 16 and 144 for each document that is the larger one of a pair; 8 for each
document to drop; and, in each round of stars, 48 for each edge that `check_candidates` leaves.
"""
