"""`python -m trainer` with faults: faulty_run.py FAULTS <the trainer's own flags>. See faults.py for their words."""

import os
import sys

from tests.trainer.distributed.faults import faulty
from trainer.cli import main

os.environ.setdefault("RANK", "0")
with faulty(sys.argv[1]):
    raise SystemExit(main(sys.argv[2:]))
