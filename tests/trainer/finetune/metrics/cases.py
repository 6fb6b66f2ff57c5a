"""How many random cases each metric is compared on with its reference library."""

import os

CASES = int(os.environ.get("METRIC_CASES", "250"))
"""1,000 take a minute longer: METRIC_CASES=1000 pytest tests/trainer/finetune/metrics"""
