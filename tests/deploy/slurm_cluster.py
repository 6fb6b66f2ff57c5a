"""A Slurm cluster on this machine: Debian's packages unpacked into a folder, a controller and two nodes.

Nothing is installed, and no privileges are needed. The nodes are two slurmd with addresses of their own on loopback,
which are their names too, because job scripts connect to a node by its name.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.ports import free_port
from tests.processes import ran

PACKAGES = ["slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins"]
LIBRARIES = ["libdbus-1-3", "libhwloc15", "libjson-c5", "liblua5.1-0", "libmunge2", "libnuma1", "libreadline8"]
LIBRARIES += ["libyaml-0-2"]
"""What the packages need and may not be installed."""

NODES = ["127.0.0.2", "127.0.0.3"]

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
# Nobody has to be kept out of a cluster that lasts for a test.
AuthType=auth/none
CredType=cred/none
# A job that is requeued waits for this many seconds; 120 by default.
AuthInfo=cred_expire=5
MpiDefault=none
# No cgroups, which need privileges: processes are found by their parents.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
# Nodes have what is written here, whatever the machine has.
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
MailProg=/bin/true
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeAddr={name} NodeHostname={host} Port={port} CPUs=64 RealMemory=256000\n"


class NotAvailableError(Exception):
    """The packages cannot be had here; the text says why in one line."""


def unpack_packages(folder: Path) -> Path:
    """Download Debian's packages into a folder, unpack them there, and return the root of what they hold.

    Raises NotAvailableError where that is not possible.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise NotAvailableError("Slurm's Debian packages: this is no Debian")

    if not _download(folder):
        # The lists of packages may be missing or old; only root may fetch them.
        subprocess.run(["apt-get", "update"], capture_output=True, check=False)
        if not _download(folder):
            raise NotAvailableError("Slurm's Debian packages: apt-get cannot download them")

    root = folder / "root"
    for package in sorted(folder.glob("*.deb")):
        subprocess.run(["dpkg", "--extract", package, root], check=True)
    return root


def _download(folder: Path) -> bool:
    command = ["apt-get", "download", *PACKAGES, *LIBRARIES]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


class Cluster:
    """Two nodes of 64 cores and 256 GB, as they claim, under a controller."""

    def __init__(self, root: Path, folder: Path):
        self.folder = folder
        self._root = root
        [plugins] = root.glob("usr/lib/*/slurm-wlm")
        self._environment = os.environ | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{root / 'usr/bin'}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": f"{plugins}:{plugins.parent}",
        }

        names = {"host": socket.gethostname(), "user": getpass.getuser()}
        text = CONFIGURATION.format(folder=folder, plugins=plugins, port=free_port(), **names)
        nodes = [NODE.format(name=name, port=free_port(), **names) for name in NODES]
        (folder / "slurm.conf").write_text(text + "".join(nodes))
        (folder / "state").mkdir()

        self._daemons = [self._start("slurmctld-wlm")]
        for name in NODES:
            (folder / f"spool-{name}").mkdir()
            self._daemons.append(self._start("slurmd-wlm", "-N", name, "-d", root / "usr/sbin/slurmstepd-wlm"))

    def _start(self, daemon: str, *flags: object) -> subprocess.Popen[bytes]:
        command = [str(self._root / "usr/sbin" / daemon), "-D", *map(str, flags)]
        quiet = subprocess.DEVNULL  # they write their own logs
        return subprocess.Popen(command, env=self._environment, stdout=quiet, stderr=quiet)

    def wait_for_nodes(self) -> None:
        self.wait_until(lambda: self.run("sinfo", "--noheader", "--format=%T %D").stdout == "idle 2\n", 60)

    def run(self, *command: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands as a user of the cluster."""
        return ran(command, timeout=60, cwd=cwd or self.folder, env=self._environment | environment)

    def submit(self, script: Path, *arguments: object, flags: Sequence[str] = (), **environment: str) -> int:
        """Submit a job script in its folder and return the job's number."""
        done = self.run("sbatch", "--parsable", *flags, script, *arguments, cwd=script.parent, **environment)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def job(self, job: int | str) -> dict[str, str]:
        """What Slurm says about a job, or about the first task of an array: JobState, Restarts, ExitCode ..."""
        shown = self.run("scontrol", "--oneliner", "show", "job", job).stdout.splitlines()[0]
        return dict(re.findall(r"(\S+?)=(\S*)", shown))

    def wait_for(self, job: int | str, state: str, seconds: float = 600) -> None:
        """Wait until a job is in a state; ends early when it has failed."""

        def is_there() -> bool:
            now = self.job(job)["JobState"]
            assert now == state or now not in ("FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"), (now, self.output())
            return now == state

        self.wait_until(is_there, seconds)

    def wait_until(self, condition, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert all(daemon.poll() is None for daemon in self._daemons), self.output()
            assert time.monotonic() < end, self.output()
            time.sleep(0.1)

    def output(self) -> str:
        """The ends of all logs, for the message of a test that fails."""
        files = [*self.folder.rglob("*.out"), *self.folder.glob("*.log")]
        return "\n".join(f"--- {file}\n{file.read_text()[-4000:]}" for file in sorted(files))

    def close(self) -> None:
        """End all jobs and the cluster."""
        self.run("scancel", "--state=PENDING", "--user", getpass.getuser())
        self.run("scancel", "--signal=KILL", "--full", "--user", getpass.getuser())
        end = time.monotonic() + 20
        while self.run("squeue", "--noheader").stdout and time.monotonic() < end:
            time.sleep(0.1)
        for daemon in self._daemons:
            daemon.terminate()
        for daemon in self._daemons:
            daemon.wait(20)
