"""A Slurm of the tests' own, on this host: a controller, nodes, fake GPUs; no systemd, no cgroups.

python tests/slurm_cluster.py COMMAND      runs a command that can ask it for jobs
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from support.daemons import answers, end_process, free_ports, lacking, output, run_beside, until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={base}/munge/socket/s,cred_expire=5
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool.%n
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/slurmd.%n.pid
SlurmctldLogFile={base}/slurmctld.log
SlurmdLogFile={base}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2,requeue_delay=1
ReturnToService=2
SlurmdTimeout=10
SlurmdParameters=config_overrides
KillWait=5
MinJobAge=3600
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
{accounting}
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=20
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9 PreemptMode=OFF
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=4000 "
    "Boards=1 SocketsPerBoard=1 CoresPerSocket=4 ThreadsPerCore=1 Gres=gpu:2 State=UNKNOWN\n"
)
DBD = """\
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={base}/munge/socket/s
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=tests
StorageLoc=slurm_tests
PidFile={base}/slurmdbd.pid
LogFile={base}/slurmdbd.log
"""


def lacks(accounting: bool = False) -> str:
    """Why there can be none here, "" where there can."""
    return lacking((*PROGRAMS, "slurmdbd", "mariadbd") if accounting else PROGRAMS)


class SlurmCluster:
    """Started when it is made. `base`: a folder with a short name, for its sockets."""

    def __init__(self, base: Path, nodes: int = 3, accounting: bool = False) -> None:
        self.base, self.host = base, socket.gethostname().partition(".")[0]
        self.names = [f"n{n + 1}" for n in range(nodes)]
        self.environment = {**os.environ, "SLURM_CONF": str(base / "slurm.conf")}
        self._started: list[subprocess.Popen] = []
        port, dbd, *ports = free_ports(nodes + 2)
        for folder in ("munge/socket", "state", *(f"spool.{name}" for name in self.names)):
            (base / folder).mkdir(parents=True)
        for folder in (base, base / "munge" / "socket"):
            folder.chmod(0o755)
        (base / "munge").chmod(0o711)
        self._munge()
        if accounting:
            self._accounting(dbd)
        kind = f"slurmdbd\nAccountingStorageHost=127.0.0.1\nAccountingStoragePort={dbd}"
        kind += f"\nAccountingStoragePass={base}/munge/socket/s"
        kind = f"AccountingStorageType=accounting_storage/{kind if accounting else 'none'}"
        conf = CONF.format(base=base, host=self.host, port=port, accounting=kind)
        gres = ""
        for name, own in zip(self.names, ports, strict=True):
            conf += NODE.format(name=name, host=self.host, port=own)
            for gpu in range(2):  # a device that stands for one
                os.mknod(base / f"gpu.{name}.{gpu}", 0o20666, os.makedev(1, 3))
            gres += f"NodeName={name} Name=gpu File={base}/gpu.{name}.[0-1]\n"
        (base / "slurm.conf").write_text(conf)
        (base / "gres.conf").write_text(gres)
        if accounting:
            self.output("sacctmgr", "-i", "add", "cluster", "tests")
        self.start_controller()
        for name in self.names:
            self.start_node(name)
        self.wait_for_nodes()

    def _munge(self) -> None:
        key = self.base / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {"socket": "socket/s", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        words = [f"--{option}={self.base}/munge/{name}" for option, name in files.items()]
        subprocess.run(["munged", f"--key-file={key}", *words], check=True)

    def _accounting(self, port: int) -> None:
        """A database of its own, on a socket, and Slurm's daemon before it."""
        home, log = self.base / "db", subprocess.DEVNULL
        own_place = {**os.environ, "TMPDIR": "/tmp"}  # which its user can write to
        home.mkdir()
        shutil.chown(home, "mysql", "mysql")
        make = ["mariadb-install-db", "--user=mysql", f"--datadir={home}", "--skip-test-db"]
        subprocess.run(make, check=True, stdout=log, stderr=log, env=own_place)
        own = ["--no-defaults", "--user=mysql", f"--datadir={home}", f"--socket={home}/s"]
        tuned = ["--skip-networking", "--innodb-buffer-pool-size=64M"]
        tuned.append("--innodb-lock-wait-timeout=900")
        words = ["mariadbd", *own, *tuned]
        server = subprocess.Popen(words, stdout=log, stderr=log, env=own_place)
        self._started.append(server)
        client = ["mariadb", "--no-defaults", "-S", str(home / "s"), "-e"]
        users = "create user slurm@localhost identified by 'tests'; create database slurm_tests; "
        users += "grant all on slurm_tests.* to slurm@localhost"
        ask = [*client, "select 1"]
        until(lambda: subprocess.run(ask, capture_output=True).returncode == 0, "mariadbd")
        subprocess.run([*client, users], check=True)
        conf = self.base / "slurmdbd.conf"
        conf.write_text(DBD.format(base=self.base, port=port))
        conf.chmod(0o600)
        environment = {**self.environment, "MYSQL_UNIX_PORT": str(home / "s")}
        subprocess.run(["slurmdbd"], check=True, env=environment)
        until(lambda: answers(port), "slurmdbd")

    # --- Its parts, which may die ---------------------------------------------------------------

    def start_controller(self) -> None:
        subprocess.run(["slurmctld"], check=True, env=self.environment)

    def start_node(self, name: str) -> None:
        subprocess.run(["slurmd", "-N", name, "-c"], check=True, env=self.environment)

    def kill(self, part: str) -> None:
        """kill -9 of `slurmctld`, or of `slurmd.n1`; returns when it is gone."""
        end_process(self.base / f"{part}.pid")

    def wait_for_nodes(self) -> None:
        """All answer, and take jobs; they may have some."""

        def take_jobs() -> bool:
            states = self.output("sinfo", "-h", "-N", "-p", "low", "-o", "%T").split()
            up = ("idle", "mixed", "allocated", "completing")
            return len(states) == len(self.names) and all(state in up for state in states)

        until(take_jobs, "a node of Slurm")

    def output(self, *words: str) -> str:
        """What a command of Slurm's prints, "" where it fails."""
        return output(words, self.environment)

    def jobs(self, *more: str) -> list[str]:
        """Ids of jobs that run."""
        return self.output("squeue", "-h", "-r", "-t", "R", "-o", "%i", *more).split()

    def state(self) -> str:
        """Of its jobs and nodes, for people."""
        log = (self.base / "slurmctld.log").read_text().splitlines()[-80:]
        return "\n".join([self.output("squeue"), self.output("sinfo", "-N", "-l"), *log])

    def end(self) -> None:
        """Everything that was started here, by the numbers in its own files. What is left of jobs
        may still remove files of its own for a moment."""
        self.output("scancel", "-u", "root")
        time.sleep(0.5)
        names = [*(f"slurmd.{name}.pid" for name in self.names), "slurmctld.pid", "slurmdbd.pid"]
        for name in (*names, "munge/pid"):
            with contextlib.suppress(OSError, ValueError):
                end_process(self.base / name, signal.SIGTERM)
        for process in self._started:
            process.terminate()
            process.wait(20)


if __name__ == "__main__":
    sys.exit(run_beside("Slurm", lacks(), SlurmCluster))
