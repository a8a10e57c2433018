"""Clients of Kubernetes and SkyPilot that print these programs' real output, for a `fake_site`.

Sources: Kubernetes 1.31, kubectl reference and the Job API (batch/v1). SkyPilot 0.10, CLI
reference: sky jobs launch, queue, cancel; `sky/utils/ux_utils.py` has what a launch prints.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from fake_site import CLEAN, Job, fail, jobs_of, run_client, split_options, start_job

# --- Kubernetes -----------------------------------------------------------------------------------

NAMESPACES = ("default",)


def kubectl(base: Path, words: list[str]) -> int:
    values = ["namespace=", "filename=", "output=", "selector=", "ignore-not-found", "wait=",
              "no-headers", "context=", "cascade=", "grace-period=", "request-timeout=", "force",
              "now", "sort-by=", "tail="]  # fmt: skip
    options, rest = split_options(words, "n:f:o:l:", values)
    verb, *rest = rest
    output = (options.get("-o") or options.get("--output") or [""])[-1]
    selector = (options.get("-l") or options.get("--selector") or [""])[-1]
    source = (options.get("-f") or options.get("--filename") or [""])[-1]
    namespace = (options.get("-n") or options.get("--namespace") or ["default"])[-1]
    if verb in ("create", "apply"):
        if namespace not in NAMESPACES:
            place = 'error when creating "STDIN"'
            error = f'namespaces "{namespace}" not found'
            return fail(f"Error from server (NotFound): {place}: {error}", 1)
        text = sys.stdin.read() if source == "-" else Path(source).read_text()
        return max(_kube_job(base, tree, output) for tree in yaml.safe_load_all(text))
    kind, *names = rest
    kind, slash, name = kind.partition("/")
    names = [name] if slash else names
    labels = dict(pair.split("=") for pair in selector.split(",") if pair)
    jobs = [
        job
        for job in jobs_of(base)
        if not job.was_cancelled
        and (not names or job.facts["name"] in names)
        and labels.items() <= job.facts["labels"].items()
    ]
    lost = sorted({*names} - {job.facts["name"] for job in jobs})
    for name in lost:
        if "--ignore-not-found" not in options:
            fail(f'Error from server (NotFound): jobs.batch "{name}" not found', 1)
    if verb == "delete":
        for job in jobs:
            job.kill()
            (job.folder / "cancelled").touch()
            print(f'job.batch "{job.facts["name"]}" deleted')
    elif verb == "get":
        _kube_list(kind, jobs, output, "--no-headers" in options, single=bool(names))
    elif verb == "logs":
        for job in jobs:
            print((job.folder / "log").read_text(), end="")
    return 1 if lost and "--ignore-not-found" not in options else 0


def _kube_job(base: Path, tree: dict[str, Any], output: str) -> int:
    """Create a Job, if it is a valid one."""
    assert (tree["apiVersion"], tree["kind"]) == ("batch/v1", "Job")
    given = tree["metadata"].get("generateName", "")
    name = tree["metadata"].get("name") or f"{given}x{len(jobs_of(base)) + 1}"
    problem = _kube_problem(tree, name)
    if problem:
        return fail(f'The Job "{name}" is invalid: {problem}', 1)
    if name in [job.facts["name"] for job in jobs_of(base) if not job.was_cancelled]:
        place = 'error when creating "STDIN"'
        return fail(
            f'Error from server (AlreadyExists): {place}: jobs.batch "{name}" already exists', 1
        )
    pod = tree["spec"]["template"]["spec"]
    [container] = pod["containers"]
    command = [*container.get("command", ()), *container.get("args", ())]
    environment = {**CLEAN, "HOSTNAME": f"{name}-abcde", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    for pair in container.get("env", ()):
        field = pair.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        there = {
            "metadata.name": f"{name}-abcde",
            "spec.nodeName": "node1",
            None: pair.get("value"),
        }
        environment[pair["name"]] = str(there[field])
    facts = {"name": name, "labels": tree["metadata"].get("labels", {}), "tree": tree}
    start_job(base, facts, command, Path(container.get("workingDir", "/")), environment, None)
    print(f"job.batch/{name}" + ("" if output == "name" else " created"))
    return 0


def _kube_problem(tree: dict[str, Any], name: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name) or len(name) > 63:
        rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters"
        return f'metadata.name: Invalid value: "{name}": {rule}'
    for value in tree["metadata"].get("labels", {}).values():
        if not re.fullmatch(r"([A-Za-z0-9]([-\w.]*[A-Za-z0-9])?)?", value) or len(value) > 63:
            return (
                f'metadata.labels: Invalid value: "{value}": a valid label must be an empty string'
            )
    policy = tree["spec"]["template"]["spec"].get("restartPolicy", "Always")
    if policy not in ("OnFailure", "Never"):
        values = 'supported values: "OnFailure", "Never"'
        return f'spec.template.spec.restartPolicy: Unsupported value: "{policy}": {values}'
    return ""


def _kube_tree(kind: str, job: Job) -> dict[str, Any]:
    """A Job, or its pod, as the API server describes it."""
    facts = job.facts
    tree = {"metadata": {"name": facts["name"], "labels": facts["labels"]}, **{"kind": "Job"}}
    if kind.startswith("pod"):
        phase = "Pending" if job.waits else "Running"
        if job.code is not None:
            phase = "Failed" if job.code else "Succeeded"
        labels = {**facts["labels"], "job-name": facts["name"]}
        pod = {"metadata": {"name": f"{facts['name']}-abcde", "labels": labels}, "kind": "Pod"}
        return {**pod, "status": {"phase": phase}}
    if job.code is None:
        # a pod that is not scheduled is active, and not ready
        return {**tree, "status": {"active": 1, "ready": 0 if job.waits else 1}}
    if job.code == 0:
        condition = {"type": "Complete", "status": "True"}
        return {**tree, "status": {"succeeded": 1, "ready": 0, "conditions": [condition]}}
    reason = {"reason": "BackoffLimitExceeded", "status": "True"}
    condition = {
        "type": "Failed",
        "message": "Job has reached the specified backoff limit",
        **reason,
    }
    return {**tree, "status": {"failed": 1, "ready": 0, "conditions": [condition]}}


def _kube_list(kind: str, jobs: Sequence[Job], output: str, bare: bool, single: bool) -> None:
    trees = [_kube_tree(kind, job) for job in jobs]
    form, _, template = output.partition("=")
    if form == "json":
        only = single and len(trees) == 1
        print(json.dumps(trees[0] if only else {"kind": "List", "items": trees}, indent=4))
    elif form == "name":
        for tree in trees:
            kind_name = "pod" if tree["kind"] == "Pod" else "job.batch"
            print(f"{kind_name}/{tree['metadata']['name']}")
    elif form == "jsonpath":
        tree = trees[0] if single and len(trees) == 1 else {"items": trees}
        print(_jsonpath(template, tree), end="")
    elif form == "custom-columns":
        columns = [column.split(":", 1) for column in template.split(",")]
        if trees and not bare:
            print("   ".join(name for name, _ in columns))
        for tree in trees:
            values = [",".join(map(str, _values(path, tree))) for _, path in columns]
            print("   ".join(value or "<none>" for value in values))
    if not trees and not single and form != "json":
        fail("No resources found in default namespace.", 0)


def _values(path: str, tree: Any) -> list[Any]:
    """The values at a JSONPath of names, [*] and [?(@.name=="value")]."""
    values = [tree]
    for name, every, key, wanted in re.findall(
        r'\.([\w-]+)|(\[\*\])|\[\?\(@\.(\w+)=="([^"]*)"\)\]', path
    ):
        if name:
            values = [value[name] for value in values if isinstance(value, dict) and name in value]
        else:
            values = [item for value in values for item in value]
        if key and not every:
            values = [item for item in values if str(item.get(key)) == wanted]
    return values


def _jsonpath(template: str, tree: Any) -> str:
    """What kubectl makes of a template with {range}, {.paths} and {"texts"}."""
    loop = re.fullmatch(r"\{range ([^}]*)\}(.*)\{end\}", template, re.DOTALL)
    if loop:
        return "".join(_jsonpath(loop[2], item) for item in _values(loop[1], tree))

    def filled(match: re.Match[str]) -> str:
        path = match[1]
        if path.startswith('"'):
            return str(json.loads(path))
        return " ".join(str(value) for value in _values(path.removeprefix("$"), tree))

    return re.sub(r"\{([^}]*)\}", filled, template)


# --- SkyPilot -------------------------------------------------------------------------------------

SKY_LAUNCHED = """\
YAML to run: {file}
Managed job '{name}' will be launched on (estimated):
Considered resources (1 node):
---------------------------------------------------------------------
 INFRA                INSTANCE   vCPUs   Mem(GB)   COST ($)   CHOSEN
---------------------------------------------------------------------
 Kubernetes (fake)    2CPU--2GB  2       2         0.00          \u2714
---------------------------------------------------------------------
\u2699\ufe0e Job submitted, ID: {job}

\U0001f4cb Useful Commands
Managed Job ID: {job}
\u251c\u2500\u2500 To cancel the job:\t\tsky jobs cancel {job}
\u251c\u2500\u2500 To stream job logs:\t\tsky jobs logs {job}
\u2514\u2500\u2500 To view all managed jobs:\t\tsky jobs queue
"""


def sky(base: Path, words: list[str]) -> int:
    group, verb, *rest = words
    assert group == "jobs"
    return {"launch": _sky_launch, "queue": _sky_queue, "cancel": _sky_cancel}[verb](base, rest)


def _sky_launch(base: Path, words: list[str]) -> int:
    long = ["name=", "yes", "detach-run", "env=", "gpus=", "infra=", "cpus=", "memory=", "pool="]
    options, rest = split_options(words, "n:ydp:", [*long, "use-spot", "num-nodes=", "workdir="])
    if not {"-y", "--yes"} & options.keys():
        return fail("Launching a managed job. Proceed? [Y/n]: Aborted!", 1)
    tree = yaml.safe_load(Path(rest[0]).read_text())
    unknown = tree.keys() - {"name", "resources", "run", "setup", "envs", "workdir", "num_nodes",
                             "file_mounts", "volumes", "secrets", "config"}  # fmt: skip
    if unknown:
        return fail(f"ValueError: Found unsupported field {sorted(unknown)}.", 1)
    if str(tree.get("resources", {}).get("accelerators", "")).startswith("nothing"):
        error = "sky.exceptions.ResourcesUnavailableError: Catalog does not contain any instances"
        return fail(f"{error} satisfying the request", 1)
    name = (options.get("-n") or options.get("--name") or [tree.get("name", "sky-cmd")])[-1]
    number = len(jobs_of(base)) + 1
    environment = {
        **CLEAN,
        "SKYPILOT_TASK_ID": f"sky-managed-2026-11-01-00-00-00-000000_{name}_{number}-0",
    }
    environment |= {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "1"}
    environment |= {key: str(value) for key, value in (tree.get("envs") or {}).items()}
    command = ["bash", "-c", tree["run"]]
    start_job(base, {"name": name}, command, base / "home", environment, None)
    print(SKY_LAUNCHED.format(file=rest[0], name=name, job=number))
    return 0


def _sky_status(job: Job) -> str:
    if job.code is None:
        return "PENDING" if job.waits else "RUNNING"
    return "CANCELLED" if job.was_cancelled else "FAILED" if job.code else "SUCCEEDED"


def _sky_queue(base: Path, words: list[str]) -> int:
    long = ["output=", "refresh", "skip-finished", "all", "all-users", "limit=", "status="]
    options, _ = split_options(words, "o:rsau", long)
    jobs = jobs_of(base)
    if not jobs:  # there is no controller before the first job
        return fail("sky.exceptions.ClusterNotUpError: No in-progress managed jobs.", 1)
    if {"-s", "--skip-finished"} & options.keys():
        jobs = [job for job in jobs if job.code is None]
    rows = [
        {
            "job_id": job.number,
            "task_id": 0,
            "job_name": job.facts["name"],
            "status": _sky_status(job),
        }
        for job in reversed(jobs)
    ]
    if (options.get("-o") or options.get("--output")) == ["json"]:
        print(json.dumps(rows, indent=2))
        return 0
    print("Fetching managed job statuses...\nManaged jobs")
    counts = [f"{sum(r['status'] == s for r in rows)} {s}" for s in ("RUNNING", "PENDING")]
    print(f"In progress tasks: {', '.join(counts)}")
    head = ("ID", "TASK", "NAME", "REQUESTED", "SUBMITTED", "TOT. DURATION", "JOB DURATION",
            "#RECOVERIES", "STATUS")  # fmt: skip
    print("  ".join(head))
    for row in rows:
        cells = (row["job_id"], "-", row["job_name"], "1x[CPU:1]", "1 min ago", "1m", "1m", 0)
        print("  ".join(map(str, (*cells, row["status"]))))
    return 0


def _sky_cancel(base: Path, words: list[str]) -> int:
    options, rest = split_options(words, "n:yau", ["name=", "yes", "all"])
    if not {"-y", "--yes"} & options.keys():
        return fail(f"Cancelling managed jobs {', '.join(rest)}. Proceed? [Y/n]: Aborted!", 1)
    by_id = {str(job.number): job for job in jobs_of(base)}
    known = [name for name in rest if name in by_id and by_id[name].code is None]
    for name in known:
        by_id[name].kill()
    if not known:
        print("No job to cancel.")
    else:
        print(f"Jobs with IDs {', '.join(known)} are scheduled to be cancelled.")
    return 0


if __name__ == "__main__":
    sys.exit(run_client((kubectl, sky)))
