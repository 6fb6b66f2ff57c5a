"""A rank that waits for another one under a watchdog, and nothing else: watched.py TIMEOUT.

It says "ready" once both ranks have said how they are. Rank 0 holds the store, as with the deepspeed launcher.
"""

import sys
import time

import torch.distributed as dist

from trainer.distributed.watchdog import Watchdog

dist.init_process_group("gloo")
rank = dist.get_rank()
watchdog = Watchdog(rank, 2, float(sys.argv[1]))
watchdog.at("step 3, computing")
while not watchdog._messages[1 - rank]:
    time.sleep(0.05)
dist.barrier()
print("ready", flush=True)
if rank == int(sys.argv[2]):
    time.sleep(1000)
dist.barrier()
