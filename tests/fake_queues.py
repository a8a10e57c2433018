"""Clients of PBS and LSF that print these programs' real output, for a `fake_site`.

Each takes the options that its documentation names, and no other. Its jobs start where that engine
starts them, with the variables that it sets.

Sources: PBS Professional Reference Guide 2022.1, chapters 2 (qsub, qstat, qselect, qdel) and 8 (job
states); `qstat -f -F json` of OpenPBS 20. IBM Spectrum LSF 10.1, Command Reference: bsub, bjobs,
bkill.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fake_site import CLEAN, Job, fail, jobs_of, keep_script, run_client, split_options, start_job

# --- PBS ------------------------------------------------------------------------------------------

PBS_SERVER = "pbs"
PBS_QUEUES = ("workq",)
PBS_CHUNKS = ("select", "walltime", "place", "ncpus", "ngpus", "mem")


def qsub(base: Path, words: list[str]) -> int:
    options, rest = split_options(words, "A:c:e:hI:j:J:k:l:m:M:N:o:p:P:q:r:R:S:u:v:VW:X:z")
    queue = options.get("-q", ["workq"])[-1]
    if queue not in PBS_QUEUES:
        return fail("qsub: Unknown queue", 170)
    for resource in ",".join(options.get("-l", [])).split(","):
        if resource and resource.partition("=")[0] not in PBS_CHUNKS:
            return fail(f"qsub: Unknown resource: Resource_List.{resource.partition('=')[0]}", 171)
    name = options.get("-N", ["STDIN"])[-1]
    if not re.fullmatch(r"[\w.+-]{1,230}", name):
        return fail("qsub: illegal -N value", 2)
    text = Path(rest[0]).read_text() if rest else sys.stdin.read()
    number = len(jobs_of(base)) + 1
    job_id = f"{number}.{PBS_SERVER}"
    environment = {**(os.environ if "-V" in options else CLEAN), "PBS_JOBID": job_id}
    environment |= {"PBS_O_WORKDIR": os.getcwd(), "PBS_JOBNAME": name}
    environment |= {"PBS_O_HOST": "login", "NCPUS": "1", "PBS_ENVIRONMENT": "PBS_BATCH"}
    for pair in ",".join(options.get("-v", [])).split(","):
        key, equals, value = pair.partition("=")
        if key:
            environment[key] = value if equals else os.environ.get(key, "")
    log = options.get("-o", [None])[-1]
    log = None if log is None or Path(log).is_dir() else log.rpartition(":")[2]
    facts = {"name": name, "queue": queue, "options": words}
    # a job starts in the home folder of its user
    start_job(base, facts, ["bash", keep_script(base, text)], base / "home", environment, log)
    print(job_id)
    return 0


def _pbs_state(job: Job) -> str:
    return "Q" if job.waits else "R" if job.code is None else "F"


def qstat(base: Path, words: list[str]) -> int:
    options, rest = split_options(words, "fF:xtu:waiw")
    jobs, code = jobs_of(base), 0
    if rest:
        by_id = {f"{job.number}.{PBS_SERVER}": job for job in jobs}
        by_id |= {str(job.number): job for job in jobs}
        jobs = []
        for name in rest:
            if name not in by_id:
                code = fail(f"qstat: Unknown Job Id {name}", 153)
            elif by_id[name].code is not None and "-x" not in options:
                line = f"qstat: {name} Job has finished, use -x or -H to obtain historical job"
                code = fail(f"{line} information", 35)
            else:
                jobs.append(by_id[name])
    elif "-x" not in options:
        jobs = [job for job in jobs if job.code is None]
    if code and not jobs:
        return code
    if options.get("-F") == ["json"]:
        print(_pbs_json(jobs))
    elif "-f" in options:
        for job in jobs:
            lines = [f"Job Id: {job.number}.{PBS_SERVER}"]
            lines += [f"    {key} = {value}" for key, value in _pbs_attributes(job).items()]
            print("\n".join([*lines, ""]))
    elif jobs:
        print("Job id            Name             User              Time Use S Queue")
        print("----------------  ---------------- ----------------  -------- - -----")
        for job in jobs:
            name = job.facts["name"][:15]
            state, queue = _pbs_state(job), job.facts["queue"]
            job_id = f"{job.number}.{PBS_SERVER}"
            print(f"{job_id:<17} {name:<16} {'me':<17} {'00:00:00'} {state} {queue:<14}")
    return code


def _pbs_attributes(job: Job) -> dict[str, Any]:
    facts, state = job.facts, _pbs_state(job)
    attributes = {"Job_Name": facts["name"], "Job_Owner": f"me@{PBS_SERVER}", "job_state": state}
    attributes |= {"queue": facts["queue"], "server": PBS_SERVER}
    if state == "R":
        attributes["exec_host"] = "node1/0"
    if job.code is not None:
        # 256 and more: ended by a signal
        ending = 256 + job.code - 128 if job.was_cancelled else job.code
        attributes |= {"substate": 91 if job.was_cancelled else 92, "Exit_status": ending}
    return attributes


def _pbs_json(jobs: Sequence[Job]) -> str:
    """With no space after a colon, as OpenPBS prints it. No key `Jobs` where there is none."""
    tree: dict[str, Any] = {"timestamp": int(time.time()), "pbs_version": "20.0.1"}
    tree["pbs_server"] = PBS_SERVER
    if jobs:
        tree["Jobs"] = {f"{job.number}.{PBS_SERVER}": _pbs_attributes(job) for job in jobs}
    return json.dumps(tree, indent=4, separators=(",", ":"))


def qselect(base: Path, words: list[str]) -> int:
    options, _ = split_options(words, "a:A:c:h:HJl:N:p:P:q:r:s:t:Tu:x")
    states = options.get("-s", ["QHREW"])[-1]
    for job in jobs_of(base):
        if job.code is not None and not {"-x", "-H"} & options.keys():
            continue
        if "-N" in options and job.facts["name"] != options["-N"][-1]:
            continue
        if "-s" not in options or _pbs_state(job) in states:
            print(f"{job.number}.{PBS_SERVER}")
    return 0


def qdel(base: Path, words: list[str]) -> int:
    _, rest = split_options(words, "W:x")
    by_id = {f"{job.number}.{PBS_SERVER}": job for job in jobs_of(base)}
    code = 0
    for name in rest:
        job = by_id.get(name if "." in name else f"{name}.{PBS_SERVER}")
        if job is None:
            code = fail(f"qdel: Unknown Job Id {name}", 153)
        elif job.code is not None:
            code = fail(f"qdel: Job has finished {name}", 35)
        else:
            job.kill()
    return code


# --- LSF ------------------------------------------------------------------------------------------

LSF_FIELDS: dict[str, Callable[[Job], str]] = {
    "jobid": lambda job: str(job.number),
    "jobindex": lambda job: "0",
    "stat": lambda job: _lsf_state(job),
    "job_name": lambda job: job.facts["name"],
    "name": lambda job: job.facts["name"],
    "exit_code": lambda job: str(job.code) if job.code else "-",
    "exit_reason": lambda job: _lsf_reason(job),
    "queue": lambda job: job.facts["queue"],
    "exec_host": lambda job: "-" if job.waits else "node1",
    "user": lambda job: "me",
}


LSF_VALUES = "J o oo e eo n q W We R gpu G P M m w wa wt cwd env Ep E app sla U Jd L sp T D C"


def _lsf_state(job: Job) -> str:
    return "PEND" if job.waits else "RUN" if job.code is None else "EXIT" if job.code else "DONE"


def _lsf_reason(job: Job) -> str:
    owner = "TERM_OWNER: job killed by owner"
    return owner if job.was_cancelled else f"Exited with exit code {job.code}" if job.code else "-"


def bsub(base: Path, words: list[str]) -> int:
    values = LSF_VALUES.split()
    flags = ("H", "K", "r", "rn", "x", "N", "B", "I")
    options, rest = _dashed(words, values, flags)
    if options is None:
        return 255
    queue = options.get("q", ["normal"])[-1]
    if queue != "normal":
        return fail(f"{queue}: No such queue. Job not submitted.", 255)
    limit = options.get("W", ["1:00"])[-1]
    if not re.fullmatch(r"(\d+:)?\d+", limit):
        return fail(f"{limit}: Bad run limit specification. Job not submitted.", 255)
    text = "" if rest else sys.stdin.read()
    command = rest or ["bash", keep_script(base, text)]
    name = options.get("J", [text.splitlines()[0] if text else shlex.join(rest)])[-1]
    number = len(jobs_of(base)) + 1
    environment = {**os.environ, "LSB_JOBID": str(number), "LSB_JOBNAME": name}
    environment |= {"LSB_JOBINDEX": "0", "LS_SUBCWD": os.getcwd(), "LSB_QUEUE": queue}
    log = next((options[key][-1] for key in ("oo", "o") if key in options), None)
    log = log and log.replace("%J", str(number)).replace("%I", "0")
    # -env none, or variables; without it all of the environment of bsub
    if options.get("env", ["all"])[-1] == "none":
        environment = {**CLEAN, **{k: v for k, v in environment.items() if k.startswith("LS")}}
    facts = {"name": name, "queue": queue, "options": words}
    where = Path(options.get("cwd", [os.getcwd()])[-1])
    start_job(base, facts, command, where, environment, log)
    kind = "queue" if "q" in options else "default queue"
    print(f"Job <{number}> is submitted to {kind} <{queue}>.")
    return 0


def _dashed(
    words: Sequence[str], values: Sequence[str], flags: Sequence[str]
) -> tuple[dict[str, list[str]] | None, list[str]]:
    """LSF's options: of one dash and several letters."""
    options: dict[str, list[str]] = {}
    rest = [*words]
    while rest and rest[0].startswith("-"):
        key = rest.pop(0)[1:]
        if key in flags:
            options[key] = [""]
        elif key in values and rest:
            options.setdefault(key, []).append(rest.pop(0))
        else:
            print(f"bsub: illegal option -- {key}", file=sys.stderr)
            return None, []
    return options, rest


def bjobs(base: Path, words: list[str]) -> int:
    options, rest = _dashed(
        words, ("o", "J", "u", "q", "m", "g"), ("noheader", "a", "json", "w", "d")
    )
    if options is None:
        return 255
    jobs, by_id = jobs_of(base), {str(job.number): job for job in jobs_of(base)}
    if rest:
        for name in rest:
            if name not in by_id:
                fail(f"Job <{name}> is not found", 255)
        jobs = [by_id[name] for name in rest if name in by_id]
        if not jobs:
            return 255
    else:
        if "a" not in options:
            jobs = [job for job in jobs if job.code is None]
        if "J" in options:
            name = options["J"][-1]
            jobs = [job for job in jobs if job.facts["name"] == name]
            if not jobs:
                return fail(f"Job <{name}> is not found", 255)
        if not jobs:
            return fail("No unfinished job found", 255)
    fields = options.get("o", ["jobid user stat queue exec_host job_name"])[-1]
    delimiter = re.search(r"delimiter='(.)'", fields)
    names = re.sub(r"delimiter='.'", "", fields).split()
    wrong = [name for name in names if name.partition(":")[0].lower() not in LSF_FIELDS]
    if wrong:
        return fail(f"{wrong[0]}: Invalid field name.", 255)
    rows = [
        {n.upper(): LSF_FIELDS[n.partition(":")[0].lower()](job) for n in names} for job in jobs
    ]
    if "json" in options:
        tree = {"COMMAND": "bjobs", "JOBS": len(rows), "RECORDS": rows}
        print(json.dumps(tree, indent=2))
        return 0
    between = delimiter[1] if delimiter else " "
    if "noheader" not in options:
        print(between.join(name.upper() for name in names))
    for row in rows:
        width = 0 if delimiter else 7
        print(between.join(f"{value:<{width}}" for value in row.values()))
    return 0


def bkill(base: Path, words: list[str]) -> int:
    options, rest = _dashed(words, ("s", "J", "u"), ("r", "d"))
    if options is None:
        return 255
    by_id, code = {str(job.number): job for job in jobs_of(base)}, 0
    for name in rest:
        if name not in by_id:
            code = fail(f"Job <{name}>: No matching job found", 255)
        elif by_id[name].code is not None:
            code = fail(f"Job <{name}>: Job has already finished", 255)
        else:
            by_id[name].kill()
            print(f"Job <{name}> is being terminated")
    return code


if __name__ == "__main__":
    sys.exit(run_client((qsub, qstat, qselect, qdel, bsub, bjobs, bkill)))
