"""Compares encoders on many tasks in one table: `clozeline suite FOLDER... --suite glue --output DIR`.

suite_file.py, encoders.py     what to compare, and on which tasks
run.py, plan.py                check the order, and build the jobs of each encoder
jobs.py, child.py              run the jobs in parallel, each in its own process
minimal_pairs.py, probe.py     the jobs that score an encoder without fine-tuning it
suite_results.py, tables.py    collect the scores of all jobs, and show them
"""
