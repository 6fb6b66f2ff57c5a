"""The metrics of tasks. Each is a fraction between -1 and 1, and larger is better.

table.py            the metrics by name, with the kinds of tasks that each one applies to
classification.py   accuracy, F1, Matthews
correlation.py      Pearson, Spearman
conll.py            F1 of chunks (names, phrases), as conlleval counts them
squad.py            exact match and F1 of answers, as SQuAD's script scores them
null_threshold.py   the threshold above which a question counts as unanswerable
cmrc.py             exact match and F1 of Chinese answers, as CMRC 2018's script scores them
summary.py          mean with interval, and quartiles, over several seeds
"""
