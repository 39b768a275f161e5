"""A real Slurm of two nodes on this machine: own folder, own ports, loopback, own munge key.

Everything runs as the user of the tests, so neither root nor the system's Slurm is needed.
"""

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

PARTITION = "main"
NODES = ("n0", "n1")
CPUS_A_NODE = 2
_DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch")
_START_S = 60.0
_STOP_S = 5.0

_CONFIG = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
OverTimeLimit=0
InactiveLimit=0
{nodes}
PartitionName={partition} Nodes={names} Default=YES MaxTime=1:00:00 State=UP
"""


def why_no_slurm() -> str:
    """What this machine lacks to run a Slurm, in one line; empty where nothing is missing."""
    absent = [name for name in _DAEMONS if shutil.which(name, path=_search_path()) is None]
    return f"not installed here: {', '.join(absent)} (slurm-wlm, munge)" if absent else ""


@pytest.fixture(scope="session")
def slurm() -> "Iterator[SlurmCluster]":
    """A cluster that is up; commands and submitted jobs find it by SLURM_CONF."""
    absent = why_no_slurm()
    if absent:
        pytest.skip(absent)
    with running_cluster() as cluster:
        yield cluster


@dataclass(frozen=True)
class SlurmCluster:
    """A running cluster: its folder, and what its commands need in their environment."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def call(self, *words: str) -> str:
        """Run one of Slurm's commands; its standard output."""
        return subprocess.run(
            words,
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, **self.environment},
            timeout=30,
        ).stdout.strip()

    def state(self, job: str) -> str:
        """A job's state in Slurm's own word, e.g. RUNNING."""
        return self.call("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T")

    def start_soon(self, job: str) -> None:
        """Shorten the two minutes that Slurm lets a requeued job wait.

        Not to nothing: a node refuses credentials of the second in which the former run's ended.
        """
        self.call("scontrol", "update", f"JobId={job}", "StartTime=now+3seconds")

    def pids(self) -> list[int]:
        """Processes of this cluster that are alive: daemons, steps and what jobs run."""
        mark = f"SLURM_CONF={self.folder / 'slurm.conf'}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    continue  # it ended, or is another user's
        return found


@contextmanager
def running_cluster() -> Iterator[SlurmCluster]:
    """Start a cluster and take it down with all that it started."""
    with TemporaryDirectory(prefix="slurm-") as name:
        # munged refuses a socket below a folder that others can write to.
        folder = Path(name)
        folder.chmod(0o711)
        cluster = SlurmCluster(folder)
        _configure(folder)
        daemons: list[subprocess.Popen[bytes]] = []
        try:
            _start(cluster, daemons)
            yield cluster
        finally:
            _stop(cluster, daemons)


def _configure(folder: Path) -> None:
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    (folder / "state").mkdir()
    port, *node_ports = _free_ports(1 + len(NODES))
    host = socket.gethostname().split(".")[0]
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} "
        f"CPUs={CPUS_A_NODE} RealMemory=1000 State=UNKNOWN"
        for node, node_port in zip(NODES, node_ports, strict=True)
    )
    text = _CONFIG.format(
        host=host,
        user=getpass.getuser(),
        port=port,
        folder=folder,
        nodes=nodes,
        names=",".join(NODES),
        partition=PARTITION,
    )
    (folder / "slurm.conf").write_text(text)


def _start(cluster: SlurmCluster, daemons: list[subprocess.Popen[bytes]]) -> None:
    folder = cluster.folder
    munged = ["munged", "--foreground", f"--socket={folder / 'munge.socket'}"]
    for name in ("key", "log", "pid", "seed"):
        munged.append(f"--{name}-file={folder / f'munge.{name}'}")
    commands = [munged, ["slurmctld", "-D"], *(["slurmd", "-D", "-N", node] for node in NODES)]
    environment = {**os.environ, **cluster.environment, "PATH": _search_path()}
    for words in commands:
        daemons.append(
            subprocess.Popen(
                words,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=(folder / f"{words[0]}.err").open("ab"),
                start_new_session=True,
            )
        )
        if words is munged:
            _wait(cluster, daemons, (folder / "munge.socket").exists)
    _wait(cluster, daemons, lambda: _idle_nodes(cluster) == len(NODES))


def _idle_nodes(cluster: SlurmCluster) -> int:
    try:
        states = cluster.call("sinfo", "--noheader", "--Node", "--format=%T").split()
    except subprocess.CalledProcessError:
        return 0
    return states.count("idle")


def _wait(
    cluster: SlurmCluster, daemons: list[subprocess.Popen[bytes]], ready: Callable[[], bool]
) -> None:
    deadline = time.monotonic() + _START_S
    while not ready():
        ended = [daemon for daemon in daemons if daemon.poll() is not None]
        if ended or time.monotonic() > deadline:
            logs = "".join(
                f"\n== {path.name}\n{path.read_text(errors='replace')[-2000:]}"
                for path in sorted(cluster.folder.iterdir())
                if path.suffix in (".log", ".err")
            )
            raise RuntimeError(f"Slurm did not start{logs}")
        time.sleep(0.05)


def _stop(cluster: SlurmCluster, daemons: list[subprocess.Popen[bytes]]) -> None:
    """End every process of the cluster: politely, then not."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        for pid in cluster.pids():
            try:
                os.kill(pid, sent)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + _STOP_S
        while cluster.pids() and time.monotonic() < deadline:
            for daemon in daemons:
                daemon.poll()
            time.sleep(0.05)
    for daemon in daemons:
        daemon.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _search_path() -> str:
    """PATH with the folders that daemons live in, which a user's often lacks."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
