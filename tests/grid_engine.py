"""A Grid Engine of the tests' own, on this host: a queue master and a daemon that runs jobs.

python tests/grid_engine.py COMMAND      runs a command that can ask it for jobs
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

from support.daemons import end_process, free_ports, lacking, output, run_beside, until

PROGRAMS = ("sge_qmaster", "sge_execd", "qsub", "qstat", "qconf")
LIB, SHARE = Path("/usr/lib/gridengine"), Path("/usr/share/gridengine")
BOOTSTRAP = """\
admin_user              none
default_domain          none
ignore_fqdn             true
spooling_method         classic
spooling_lib            libspoolc
spooling_params         {base}/root/default/common;{base}/spool
binary_path             /usr/sbin
qmaster_spool_dir       {base}/spool
security_mode           none
listener_threads        2
worker_threads          2
scheduler_threads       1
"""
CONFIGURATION = {  # what differs from the one that ships
    "execd_spool_dir": "{base}/execd",
    "min_uid": "0",
    "min_gid": "0",
    "load_report_time": "00:00:02",
    "max_unheard": "00:00:10",
    "shell_start_mode": "unix_behavior",
    "reporting_params": "accounting=true reporting=false flush_time=00:00:01 joblog=false "
    "sharelog=00:00:00",
}
SCHEDULER = {"schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1"}
GPU = "gpu gpu INT <= YES YES 0 0\n"
ENVIRONMENT = """\
pe_name smp
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule $pe_slots
control_slaves FALSE
job_is_first_task TRUE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
"""


def lacks() -> str:
    """Why there can be none here, "" where there can."""
    return lacking(PROGRAMS)


class GridEngine:
    """Started when it is made. `base`: an empty folder with a short name."""

    def __init__(self, base: Path, slots: int = 4, gpus: int = 4) -> None:
        self.base, self.host = base, "localhost"
        master, execd = free_ports(2)
        self.environment = {
            **os.environ,
            "SGE_ROOT": str(base / "root"),
            "SGE_CELL": "default",
            "SGE_QMASTER_PORT": str(master),
            "SGE_EXECD_PORT": str(execd),
        }
        common = base / "root" / "default" / "common"
        for folder in (common, base / "spool" / "job_scripts", base / "execd"):
            folder.mkdir(parents=True)
        base.chmod(0o755)
        architecture = subprocess.check_output([str(SHARE / "util" / "arch")], text=True).strip()
        for name in ("bin", "lib", "utilbin"):
            (base / "root" / name).mkdir()
            (base / "root" / name / architecture).symlink_to(LIB)
        (base / "root" / "util").symlink_to(SHARE / "util")
        (common / "bootstrap").write_text(BOOTSTRAP.format(base=base))
        (common / "act_qmaster").write_text("localhost\n")
        # Clients say who they are by the host's name; its address may have another.
        own_name = socket.gethostname()
        names = {"localhost", own_name, own_name.partition(".")[0]} - {"localhost"}
        (common / "host_aliases").write_text(" ".join(["localhost", *sorted(names)]) + "\n")
        self._spool(common)
        try:
            self.start_master()
            self._configure(slots, gpus)
            self.start_node()
            self.wait_for_node()
        except BaseException:
            self.end()
            raise

    def _spool(self, common: Path) -> None:
        """Fill the queue master's folder."""
        lines = []
        for line in (SHARE / "default-configuration").read_text().splitlines():
            key = line.split()[0] if line.split() else ""
            value = CONFIGURATION.get(key, "").format(base=self.base)
            lines.append(f"{key} {value}" if value else line)
        own = self.base / "configuration"
        own.write_text("\n".join([*lines, ""]))
        self._run(
            str(LIB / "spoolinit"), "classic", "libspoolc", f"{common};{self.base}/spool", "init"
        )
        resources = SHARE / "util" / "resources"
        for kind, value in (
            ("configuration", own),
            ("complexes", resources / "centry"),
            ("usersets", resources / "usersets"),
            ("managers", "root"),
        ):
            self._run(str(LIB / "spooldefaults"), kind, str(value))

    def _configure(self, slots: int, gpus: int) -> None:
        """One queue, `all.q`; one parallel environment, `smp`; a resource `gpu`."""
        self._run("qconf", "-as", self.host)
        scheduler = [line.split(None, 1) for line in self.output("qconf", "-ssconf").splitlines()]
        lines = [f"{key} {SCHEDULER.get(key, value)}" for key, value in scheduler]
        self._change("-Msconf", "\n".join([*lines, ""]))
        self._change("-Mc", self.output("qconf", "-sc") + GPU)
        self._change("-Ap", ENVIRONMENT)
        values = f"gpu={gpus}"
        keys = ("load_scaling", "user_lists", "xuser_lists", "projects", "xprojects")
        host = "".join(f"{key} NONE\n" for key in (*keys, "usage_scaling", "report_variables"))
        self._change("-Ae", f"hostname {self.host}\ncomplex_values {values}\n{host}")
        queue = self.output("qconf", "-sq")  # a template of the program's own
        own = {"qname": "all.q", "hostlist": self.host, "slots": str(slots), "pe_list": "smp"}
        own |= {"shell": "/bin/bash", "rerun": "TRUE", "load_thresholds": "NONE", "notify": "0:0:5"}
        lines = []
        for key, value in (line.split(None, 1) for line in queue.splitlines()):
            lines.append(f"{key} {own.get(key, value)}")
        self._change("-Aq", "\n".join([*lines, ""]))

    def _change(self, option: str, text: str) -> None:
        file = self.base / "change"
        file.write_text(text)
        self._run("qconf", option, str(file))

    def _run(self, *words: str) -> None:
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=30
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {done.stdout}{done.stderr}")

    # --- Its parts, which may die ---------------------------------------------------------------

    def start_master(self) -> None:
        subprocess.run(["sge_qmaster"], check=True, env=self.environment, timeout=60)
        until(lambda: self.output("qconf", "-sm"), "sge_qmaster", 30)

    def start_node(self) -> None:
        subprocess.run(["sge_execd"], check=True, env=self.environment, timeout=60)

    def kill(self, part: str) -> None:
        """kill -9 of `qmaster`, or of `execd`; returns when it is gone."""
        end_process(self._pid_file(part))

    def _pid_file(self, part: str) -> Path:
        return (
            self.base
            / {
                "qmaster": "spool/qmaster.pid",
                "execd": f"execd/{self.host}/execd.pid",
            }[part]
        )

    def wait_for_node(self) -> None:
        """Its queue takes jobs."""

        def takes_jobs() -> bool:
            lines = [line.split() for line in self.output("qstat", "-f").splitlines()]
            # a sixth column has the letters of what is wrong
            return any(line and line[0].startswith("all.q@") and len(line) == 5 for line in lines)

        until(takes_jobs, "sge_execd", 60)

    def output(self, *words: str) -> str:
        """What a command of Grid Engine's prints, "" where it fails."""
        return output(words, self.environment)

    def jobs(self, name: str) -> list[str]:
        """The jobs of this name that wait or run."""
        listing = self.output("qstat", "-r", "-u", "*")
        return re.findall(
            rf"^ *(\d+) .*\n +Full jobname: +{re.escape(name)}$", listing, re.MULTILINE
        )

    def state(self) -> str:
        """Of its jobs, for people."""
        log = (self.base / "spool" / "messages").read_text().splitlines()[-30:]
        return "\n".join([self.output("qstat", "-f"), self.output("qhost"), *log])

    def end(self) -> None:
        """Everything that was started here, by the numbers in its own files."""
        self.output("qdel", "-f", "-u", "*")
        for part in ("execd", "qmaster"):
            with contextlib.suppress(OSError, ValueError):
                end_process(self._pid_file(part), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(run_beside("Grid Engine", lacks(), GridEngine))
