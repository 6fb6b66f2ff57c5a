"""A local worker process: Beam's own, without its log on the user's terminal.

Errors still reach the user: Beam hands an exception's text to the process that runs the job, which raises it.
"""

import logging
import sys

logging.disable(logging.CRITICAL)

from apache_beam.runners.worker import sdk_worker_main  # noqa: E402  (it warns while it is imported)

if __name__ == "__main__":
    sdk_worker_main.main(sys.argv)
