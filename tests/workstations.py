"""Workstations of the tests' own, by ssh: an sshd each, with processes, mounts and a host name of
its own, on 127.0.0.2 and on. They see this host's files; what is mounted on one, the others lack.

python tests/workstations.py COMMAND      runs a command that can reach `one` and `two` by ssh
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from support.daemons import answers, free_ports, lacking, output, run_beside, until

PROGRAMS = ("sshd", "ssh", "ssh-keygen", "unshare", "nsenter")
DESK = "desk"  # the host of those who start sweeps: it always sees this host's files
# Without the start-up files of this user, which may take any time and leave locks behind.
SSHD = """\
ListenAddress {address}
Port {port}
HostKey {base}/host_key
PidFile {base}/{name}.pid
AuthorizedKeysFile {base}/user_key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
SetEnv PATH={base}/bin:{path} HOME={base}
Subsystem sftp internal-sftp
"""
SSH = """\
Host {name}
  HostName {address}
  Port {port}
  HostKeyAlias {name}
"""
EVERY = """\
Host *
  User root
  IdentityFile {base}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {base}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  LogLevel ERROR
"""
# The first process of a host: when it dies, all others of the host do. It outlives sshd.
FIRST = """\
hostname {name}
{mounts}
{sshd} -f {base}/{name}.sshd
while :; do sleep 1; done
"""


def lacks() -> str:
    """Why there can be none here, "" where there can."""
    return lacking(PROGRAMS)


class Workstations:
    """Started when it is made. `base`: an empty folder, kept from other users; `alone`: by the name
    of a host, folders on which it has an empty disk of its own."""

    def __init__(
        self,
        base: Path,
        names: tuple[str, ...] = ("one", "two"),
        alone: dict[str, list[Path]] | None = None,
    ) -> None:
        self.base, self.names = base, names
        self._alone = alone or {}
        every = (*names, DESK)
        self._hosts: dict[str, subprocess.Popen] = {}
        self._addresses = {name: f"127.0.0.{n}" for n, name in enumerate(every, start=2)}
        self._ports = dict(zip(every, free_ports(len(every)), strict=True))
        self._keys()
        self._client()
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd insists on it
        try:
            for name in every:
                self.start(name)
        except BaseException:
            self.end()
            raise

    def _keys(self) -> None:
        for name in ("host_key", "user_key"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.base / name)]
            subprocess.run(words, check=True)
        key = (self.base / "host_key.pub").read_text()
        (self.base / "known_hosts").write_text("".join(f"{name} {key}" for name in self._addresses))

    def _client(self) -> None:
        """A folder of programs in which ssh has a configuration of the tests' own."""
        config, programs = self.base / "config", self.base / "bin"
        hosts = [
            SSH.format(name=name, address=address, port=self._ports[name])
            for name, address in self._addresses.items()
        ]
        config.write_text("".join([*hosts, EVERY.format(base=self.base)]))
        programs.mkdir()
        wrapper = programs / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
        wrapper.chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}

    # --- Its hosts, which may vanish ------------------------------------------------------------

    def start(self, name: str) -> None:
        """Boot a host; return when it answers."""
        options = SSHD.format(
            address=self._addresses[name],
            port=self._ports[name],
            base=self.base,
            name=name,
            path=os.environ["PATH"],
        )
        (self.base / f"{name}.sshd").write_text(options)
        mounts = [
            f"mkdir -p {folder}; mount -t tmpfs none {folder}"
            for folder in self._alone.get(name, ())
        ]
        first = FIRST.format(
            name=name, base=self.base, mounts="\n".join(mounts), sshd=shutil.which("sshd")
        )
        words = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        files = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._hosts[name] = subprocess.Popen(
            [*words, "bash", "-c", first], start_new_session=True, **files
        )
        self._wait_for(name)

    def _wait_for(self, name: str) -> None:
        until(lambda: answers(self._ports[name], self._addresses[name]), f"host {name}", 30)

    def vanish(self, name: str) -> None:
        """A power cut: all processes of a host are gone when this returns."""
        first = self._first(name)
        os.kill(first, signal.SIGKILL)
        self._hosts.pop(name).wait(30)

    def kill_sshd(self, name: str) -> None:
        """kill -9 of a host's sshd, and of its sessions; what it runs goes on."""
        self._inside(name, "pkill", "-9", "-x", "sshd")
        until(lambda: not answers(self._ports[name], self._addresses[name]), "the end of sshd")

    def start_sshd(self, name: str) -> None:
        self._inside(name, str(shutil.which("sshd")), "-f", f"{self.base}/{name}.sshd")
        self._wait_for(name)

    def kill(self, name: str, pid: int) -> bool:
        """kill -9 of a process, by its number on that host; False where there is none."""
        return self._inside(name, "kill", "-9", str(pid)).returncode == 0

    def _first(self, name: str) -> int:
        """The number here of a host's first process."""
        parent = self._hosts[name].pid
        children = Path(f"/proc/{parent}/task/{parent}/children")
        return int(children.read_text().split()[0])

    def _inside(self, name: str, *words: str) -> subprocess.CompletedProcess:
        into = ["nsenter", "-t", str(self._first(name)), "--mount", "--uts", "--pid"]
        return subprocess.run([*into, *words], capture_output=True, text=True, timeout=15)

    def output(self, name: str, *words: str) -> str:
        """What a command prints on a host, over ssh; "" where it fails."""
        line = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", name, *words]
        return output(line, self.environment, 30)

    def state(self) -> str:
        """Of its processes, for people."""
        return "\n".join(
            f"{name}: {self._inside(name, 'ps', 'ax', '-o', 'pid,args').stdout}"
            for name in self._hosts
        )

    def end(self) -> None:
        """Every host that was started here."""
        for name in list(self._hosts):
            with contextlib.suppress(OSError, IndexError):
                self.vanish(name)


if __name__ == "__main__":
    sys.exit(run_beside("workstations", lacks(), Workstations))
