"""Every private function of torch that the trainer calls, each behind one public function.

Checked against torch 2.13. A test refuses private attributes of torch anywhere else, so that an upgrade of torch is
an upgrade of this file.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import distributed_c10d


def set_process_group_timeout(seconds: float, group: Any = None) -> None:
    """Set how long a collective of `group` may take before torch ends it; None is the default group.

    The public interface sets a timeout only when a group is created. Uses `_set_pg_timeout` of
    torch/distributed/distributed_c10d.py.
    """
    distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)


def default_store() -> Any:
    """Return the key-value store (a torch.distributed.Store) through which the default process group was created.

    Raises ValueError before the process group exists. Uses `_get_default_store` of
    torch/distributed/distributed_c10d.py.
    """
    return distributed_c10d._get_default_store()


def extension_build_folder(name: str) -> Path:
    """Return the folder in which torch compiles the C++ extension `name`, and create it if it does not exist.

    Uses `_get_build_directory` of torch/utils/cpp_extension.py, which reads TORCH_EXTENSIONS_DIR.
    """
    from torch.utils import cpp_extension  # imports setuptools, which takes a while

    return Path(cpp_extension._get_build_directory(name, verbose=False))
