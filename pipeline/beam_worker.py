"""A local worker process: Beam's own, without its log on the user's terminal.

Errors still reach the user: Beam hands an exception's text to the process that runs the job, which raises it.
"""

import gc
import logging
import os
import sys

logging.disable(logging.CRITICAL)
gc.set_threshold(100_000, 50, 50)  # a run holds millions of strings and no cycles; looking for some costs 5%

from apache_beam.runners.worker import sdk_worker_main  # noqa: E402  (it warns while it is imported)

if __name__ == "__main__":
    sdk_worker_main.main(sys.argv)
    os._exit(0)  # all work is handed over; tearing down the interpreter would keep the user waiting half a second
