"""The metrics of tasks. Each is a fraction between -1 and 1, and larger is better.

table.py            the metrics by name, with the kinds of task that each one serves
classification.py   accuracy, F1, Matthews
correlation.py      Pearson, Spearman
conll.py            F1 of chunks (names, phrases), as conlleval counts them
squad.py            exact match and F1 of answers, as SQuAD's script scores them; thresholds for unanswerable questions
summary.py          mean with interval and quartiles, of several seeds
"""
