"""Engines that are files: what is asked of a cluster, how its answers are read, and mistakes in a
file. What a site's programs print is as they print it."""

import contextlib
import itertools
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from launcher_contract import settings, until

from ablate.planning.compose import Composer
from ablate.planning.engine import EngineFile
from ablate.running.launchers import engine as launcher_engine
from ablate.running.launchers.engine import (
    FileEngine,
    answer_to,
    meaning,
    read_states,
    refusal,
    seconds,
)
from ablate.running.launchers.jobs import JobEnd
from ablate.shared.errors import Failure, UserError


def engine(name: str, root: Path, **own: Any) -> FileEngine:
    return FileEngine(settings(name, **own), root, "token")


def site(folder: Path, **programs: str) -> Path:
    """A folder of shell scripts that stand for a site's programs; on PATH."""
    folder.mkdir(exist_ok=True)
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """`programs(sbatch="echo 7")`: a site has these."""
    monkeypatch.setenv("PATH", f"{tmp_path}/site:/usr/bin:/bin")
    return lambda **texts: site(tmp_path / "site", **texts)


# --- Rendering ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "values", "text"),
    [
        ("-q {queue}", {"queue": "long"}, "-q long"),
        ("a[ -q {queue}]b", {"queue": ""}, "ab"),
        ("[:gpus={gpus}][:mem={mem}]", {"gpus": 2, "mem": ""}, ":gpus=2"),
        ("[{gpus}]", {"gpus": 0}, ""),
        ("name[1-4] {{a}}", {}, "name[1-4] {a}"),
        ("{JOB}_{number}", {"number": 3}, "{JOB}_3"),
    ],
)
def test_a_template_is_filled_and_leaves_out_what_is_empty(template, values, text):
    assert EngineFile.fill(template, values) == text


def test_a_place_is_one_word_and_a_list_of_them_several():
    values = {"jobs": ["1", "2 3"], "name": "a b", "queue": ""}
    words = EngineFile.words("kill {*jobs} --name={name} [-q {queue}]", values)
    assert words == ["kill", "1", "2 3", "--name=a b"]


def test_settings_become_sbatchs_own(tmp_path):
    own = {"sbatch": "reservation=vit --exclusive", "mem": "64G", "account": "me", "time": "1:0:0"}
    slurm = engine("slurm", tmp_path, gpus=2, cpus=8, jobs=3, **own)
    words = slurm.request(2, {"n2", "n1"}).words
    logs = tmp_path / "pilots" / "jobs"
    assert words[:2] == ["sbatch", "--parsable"]
    assert sorted(words[2:]) == sorted(
        f"--{option}"
        for option in (
            *("job-name=ablate-token", "nodes=1", "ntasks-per-node=1", "cpus-per-task=16"),
            *("gpus-per-node=2", "account=me", "mem=64G", "time=1:0:0", "reservation=vit"),
            *("exclusive", "requeue", "signal=USR2@90", "exclude=n1,n2", "array=0-1"),
            *(f"output={logs}/%A_%a_0_log.out", f"error={logs}/%A_%a_0_log.err"),
            "open-mode=append",
        )
    )
    single = slurm.request(1).words
    assert f"--error={logs}/%j_0_log.err" in single
    assert not [word for word in single if word.startswith(("--array", "--exclude"))]
    # the partition's own limit
    limited = engine("slurm", tmp_path, time="").request(1).words
    assert not [word for word in limited if word.startswith("--time")]


def test_a_key_of_sbatch_takes_the_place_of_ours_and_null_leaves_it_out(tmp_path):
    own = "gres=gpu:a100:1 gpus_per_node=null mem-per-cpu=4G nodes=1-1 requeue=null"
    words = engine("slurm", tmp_path, sbatch=own).request(1).words
    for word in ("--gres=gpu:a100:1", "--mem-per-cpu=4G", "--nodes=1-1"):
        assert word in words
    assert not [word for word in words if word.startswith(("--gpus-per-node", "--requeue"))]


def test_a_zero_of_a_file_is_asked_for_and_what_is_empty_is_not(tmp_path, monkeypatch):
    options = "{nice: 0, hold: false, qos: '', account: null, mem: 0.0}"
    text = f"defaults: [slurm]\noptions: {options}\n"
    made = FileEngine(declared(tmp_path, monkeypatch, text), tmp_path, "token")
    words = made.request(1).words
    assert {"--nice=0", "--mem=0.0"} <= {*words}
    assert not [word for word in words if word.startswith(("--hold", "--qos", "--account"))]


def test_keys_of_sbatch_whose_quotes_do_not_match_are_refused(tmp_path):
    with pytest.raises(UserError) as refused:
        engine("slurm", tmp_path, sbatch="comment='a").request(1)
    assert str(refused.value).startswith("launcher.sbatch: comment='a: ")
    assert "\n" not in str(refused.value)


def test_a_limit_without_time_to_train_is_refused(tmp_path):
    with pytest.raises(UserError) as refused:
        engine("slurm", tmp_path, time="1")
    assert str(refused.value).startswith("launcher.time: 1 ")
    assert "launcher.grace_s=90" in str(refused.value)


@pytest.mark.parametrize("limit", ["4h", "90s", "1:00:00:00", "UNLIMITED"])
def test_a_limit_that_can_not_be_given_in_the_unit_of_the_engine_is_refused(tmp_path, limit):
    for name in ("sge", "pbs", "lsf", "kubernetes"):
        with pytest.raises(UserError) as refused:
            engine(name, tmp_path, time=limit)
        assert str(refused.value).startswith("launcher.time: ")
        assert str(refused.value).endswith(f" {limit}")
    assert "h_rt" not in " ".join(engine("sge", tmp_path, time="").request(1).words)
    assert f"--time={limit}" in engine("slurm", tmp_path, time=limit).request(1).words


def test_a_job_of_lsf_has_its_gpus_alone(tmp_path):
    for gpus, options in ((2, {"num=2:j_exclusive=yes"}), (0, set())):
        words = engine("lsf", tmp_path, gpus=gpus).request(1).words
        assert {after for word, after in itertools.pairwise(words) if word == "-gpu"} == options


SRUN = """
[ "$SRUN_CPUS_PER_TASK" = "$SLURM_CPUS_PER_TASK" ] || exit 98
[ "$1 $2 $4" = "--unbuffered --output --error" ] || exit 99
shift 5
exec "$@"
"""


def test_a_pilots_script_is_bash_and_shows_no_secret_in_its_command(tmp_path):
    """The script is run as a node runs it: a pilot that does not see the store says so in one
    line, and its exit code is the job's."""
    setup = "[[ -n set ]] && export SEEN=secret\necho $SEEN >seen"
    given = {**settings("slurm", setup=setup), "origin": {"command": ["ablate", "sweep", "secret"]}}
    request = FileEngine(given, tmp_path / "a store", "token").request(1)
    assert "secret" not in " ".join(request.words)
    assert "secret" not in request.script.splitlines()[-1]
    path = site(tmp_path, srun=SRUN, squeue="echo 1:00")
    (tmp_path / "job").write_text(request.script)
    environment = {"PATH": f"{path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
    environment["SLURM_CPUS_PER_TASK"] = "16"
    done = subprocess.run(
        ["bash", tmp_path / "job"], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    assert (tmp_path / "seen").read_text() == "secret\n"
    line = f"ablate: {platform.node()} does not see the driver's store in {tmp_path}/a store"
    assert done.stderr.startswith(line), done.stderr
    assert done.stderr.count("\n") == 1
    del environment["SLURM_JOB_ID"], environment["SLURM_CPUS_PER_TASK"]  # as with --cpus-per-gpu
    done = subprocess.run(
        ["bash", tmp_path / "job"], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert "SLURM_JOB_ID" in done.stderr
    assert done.stderr.count("\n") == 1


def rendered(tmp_path, monkeypatch, name: str, **own: Any) -> dict[str, Any]:
    """An engine's script in YAML; the folder's name has signs of YAML and of a shell."""
    folder = tmp_path / """it's "a $HOME": # {folder}"""
    folder.mkdir()
    monkeypatch.chdir(folder)
    return yaml.safe_load(engine(name, tmp_path / "runs", **own).request(1).script)


def test_a_job_of_kubernetes_outlives_its_pod_and_its_limit_is_that_of_the_pod(
    tmp_path, monkeypatch
):
    own = {"image": "lab/a:1", "claim": "0123", "mount": "/it's", "mem": "64Gi", "time": "1:00:00"}
    tree = rendered(tmp_path, monkeypatch, "kubernetes", **own)
    job, pod = tree["spec"], tree["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["workingDir"] == os.getcwd()
    assert container["volumeMounts"][0]["mountPath"] == "/it's"
    assert container["resources"]["limits"] == {"memory": "64Gi", "nvidia.com/gpu": 1}
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "0123"}
    assert tree["metadata"]["generateName"] == "ablate-token-"
    # a pod waits for a node without a limit; as the Job API has these fields
    assert pod["activeDeadlineSeconds"] == 3600
    assert "activeDeadlineSeconds" not in job
    [rule] = job["podFailurePolicy"]["rules"]
    assert rule == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    assert (pod["restartPolicy"], job["backoffLimit"]) == ("Never", 0)


def test_a_task_of_skypilot_begins_in_the_folder_of_the_sweep(tmp_path, monkeypatch):
    own = {"volume": "store", "mount": "/", "mem": "64", "setup": "pwd >seen", "python": "true"}
    tree = rendered(tmp_path, monkeypatch, "skypilot", **own)
    assert tree["volumes"] == {"/": "store"}
    assert (tree["name"], tree["resources"]["memory"]) == ("ablate-token", "64+")
    environment = {**os.environ, **tree["envs"], "SKYPILOT_TASK_ID": "sky-managed-1_a_7-0"}
    subprocess.run(["bash", "-c", tree["run"]], env=environment, cwd=tmp_path, check=True)
    assert Path("seen").read_text() == f"{os.getcwd()}\n"


# --- Reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "left"),
    [
        # as squeue says it
        *(("1-02:03:04", 93784.0), ("2:03:04", 7384.0), ("5:30", 330.0), ("0:00", 0.0)),
        *(("UNLIMITED", None), ("INVALID", None), ("", None)),
        # as sbatch reads it
        *(("10", 600.0), ("10:30", 630.0), ("1:00:30", 3630.0), ("2-1", 176400.0)),
        *(("1-0:30", 88200.0), ("1-0:0:5", 86405.0), ("1:2:3:4", None)),
    ],
)
def test_the_time_that_is_left_and_a_limit(told, left):
    assert seconds(told) == left


REFUSALS = [  # as Slurm 22.05 writes them
    (
        "sbatch: error: invalid partition specified: nowhere\n"
        "sbatch: error: Batch job submission failed: Invalid partition name specified\n",
        "invalid partition specified: nowhere; Batch job submission failed: Invalid partition name "
        "specified",
    ),
    (
        "sbatch: unrecognized option '--nonsense=2'\nTry \"sbatch --help\" for more information\n",
        "unrecognized option '--nonsense=2'",
    ),
    ("sbatch: fatal: No configuration\n", "No configuration"),
    ("a wrapper of the site: no account\n", "a wrapper of the site: no account"),
    ("", ""),
]


@pytest.mark.parametrize(("output", "why"), REFUSALS)
def test_what_sbatch_says_becomes_one_line(output, why, tmp_path):
    assert refusal(engine("slurm", tmp_path)._file, output) == why


def test_the_states_of_slurm_mean_what_the_file_says(tmp_path):
    file = engine("slurm", tmp_path)._file
    output = "7_0 RUNNING\n7_1 PENDING\n8 COMPLETING\n9 REQUEUED\n"
    states = {"7_0": "running", "7_1": "waiting", "8": "ended", "9": "waiting"}
    assert dict(read_states(file, output)) == states
    ends = {"CANCELLED by 0": "lost", "NODE_FAIL": "lost", "FAILED": "failed", "TIMEOUT": "ended"}
    assert {words: meaning(file, words) for words in ends} == ends


def test_slurms_answers_are_read(tmp_path, programs):
    slurm = engine("slurm", tmp_path)
    programs(sbatch="cat >/dev/null; echo '7;cluster'", squeue='echo "7 RUNNING"', sacct="exit 1")
    assert slurm.submit(1, ()) == ["7"]
    assert slurm.submit(2, ()) == ["7_0", "7_1"]
    assert slurm.states() == {"7": True}
    programs(squeue="exit 1", scontrol='echo "JobId=7 JobState=OUT_OF_MEMORY Reason=x"')
    assert slurm.states() is None
    assert slurm.ended("7") == JobEnd("OUT_OF_MEMORY", "failed")
    programs(sacct="printf 'CANCELLED by 0\\n'")
    assert slurm.ended("7") == JobEnd("CANCELLED by 0", "lost")
    programs(sacct="exit 1", scontrol="exit 1")
    assert slurm.ended("7") == JobEnd()


@pytest.mark.parametrize(
    ("name", "printed", "job"),
    [
        ("slurm", "Using project p042\n4711", "4711"),
        ("slurm", "17 credits left\n4711;cluster\n", "4711"),
        ("slurm", "4711;c1\n12 jobs of 20\n", "4711"),
        ("sge", "project p042\n4711\n", "4711"),
        ("sge", "17\n4711\n", "4711"),
        ("pbs", "Using project p042\n4711.server\nwelcome\n", "4711.server"),
    ],
)
def test_the_id_is_a_line_of_its_own_among_those_of_the_site(
    tmp_path, programs, name, printed, job
):
    client = f"cat >/dev/null; cat <<'.'\n{printed.strip()}\n."
    programs(sbatch=client, qsub=client)
    assert engine(name, tmp_path).submit(1, ()) == [job]


def test_a_request_that_hangs_is_given_up(tmp_path, programs, monkeypatch):
    monkeypatch.setattr(launcher_engine, "SUBMIT_S", 0.2)
    programs(sbatch="exec sleep 60")
    begun = time.monotonic()
    with pytest.raises(Failure) as refused:
        engine("slurm", tmp_path).submit(1, ())
    assert str(refused.value).startswith("launcher=slurm: sbatch: ")
    assert time.monotonic() - begun < 30


def test_a_file_with_the_setup_is_this_users_only_while_it_is_read(tmp_path, programs):
    programs(sky=f"for file; do :; done; stat -c %a $file >{tmp_path}/mode; echo 'ID: 7'")
    own = {"setup": "export KEY=secret", "volume": "store", "mount": "/"}
    assert engine("skypilot", tmp_path, **own).submit(1, ()) == ["7"]
    assert (tmp_path / "mode").read_text() == "600\n"
    assert [*(tmp_path / "pilots" / "jobs").iterdir()] == []


def test_a_script_that_can_not_be_written_is_named(tmp_path, programs):
    programs(sky="echo 'ID: 7'")
    made = engine("skypilot", tmp_path, volume="store", mount="/")
    made._script = tmp_path / "gone" / "script.yaml"
    with pytest.raises(Failure) as refused:
        made.submit(1, ())
    assert str(refused.value) == f"launcher=skypilot: {made._script}: No such file or directory"


def test_an_answer_that_is_no_utf8_is_read(tmp_path, programs):
    programs(sbatch="printf 'Gr\\374\\337e\\n7\\n'")
    assert engine("slurm", tmp_path).submit(1, ()) == ["7"]
    assert answer_to(["printf", r"7 \374"]) == ("7 \ufffd", "")


WRAPPER = """
for word in "$@"; do
  case $word in --mem=*|--gpus-per-node=*) echo "lab: $word: not here, ask for --gres" >&2; exit 1
  esac
done
echo 7
"""


def test_a_site_that_refuses_an_option_is_served_by_keys(tmp_path, programs):
    programs(sbatch=WRAPPER)
    with pytest.raises(Failure) as refused:
        engine("slurm", tmp_path).submit(1, ())
    line = str(refused.value)
    assert line.startswith("launcher=slurm: sbatch: ")
    assert "--gpus-per-node=1" in line
    assert "launcher.sbatch=OPTION=null" in line
    keys = "gres=gpu:a100:1 gpus-per-node=null"
    assert engine("slurm", tmp_path, sbatch=keys).submit(1, ()) == ["7"]


# --- Files ----------------------------------------------------------------------------------------


def declared(tmp_path, monkeypatch, text: str, **own: Any) -> dict[str, Any]:
    """The settings of launcher=mine, whose file has this text."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "conf" / "launcher" / "mine.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    words = {f"launcher.{key}": value for key, value in own.items()}
    return Composer(tmp_path / "runs").launcher({"launcher": "mine", **words})


MINE = """\
# Trains on the hosts of our own queue.
submit: enqueue --title {name} [--room {room}]
job: "{QUEUE_JOB}"
states: enqueue --list {name}
state: (?P<job>\\d+) (?P<state>\\w+)
running: active
ended: done
cancel: enqueue --end {*jobs}
settings: {room: "the room of the hosts; empty: any"}
room: attic
"""


def test_a_file_may_build_on_another(tmp_path, monkeypatch):
    text = "defaults: [slurm]\npartition: gpu\noptions: {gpus-per-node: null, gres: gpu:2}\n"
    made = FileEngine(declared(tmp_path, monkeypatch, text, qos="low"), tmp_path, "token")
    words = made.request(1).words
    assert {"--partition=gpu", "--qos=low", "--gres=gpu:2", "--nodes=1"} <= {*words}
    assert not [word for word in words if word.startswith("--gpus-per-node")]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (("submit: enqueue", "submit: '' # "), "launcher.submit: "),
        (("{room}", "{rooms}"), "launcher.submit: {rooms}: got 'rooms' (did you mean 'room'?)"),
        (("{*jobs}", "{jobs!r"), "launcher.cancel: "),
        (("--end", "'--end"), "launcher.cancel: "),
        (("(?P<state>", "("), "launcher.state: "),
        (("\\d+)", "\\d+"), "launcher.state: "),
        (("running", "runing"), "launcher.runing: got 'runing' "),
        (("job:", "#"), "launcher.job: missing"),
        (("room: attic", "quote: yaml"), "launcher.quote: "),
        (
            ("room: attic", "array: {id: '{job}', job: '{JOB}', options: {}, label: '{nubmer}'}"),
            "launcher.array.label: {nubmer}: got 'nubmer' (did you mean 'number'?)",
        ),
    ],
)
def test_a_mistake_in_a_file_is_one_line_with_its_key(tmp_path, monkeypatch, change, place):
    with pytest.raises(UserError) as refused:
        declared(tmp_path, monkeypatch, MINE.replace(*change))
    assert str(refused.value).startswith(place)
    assert "\n" not in str(refused.value)


def test_a_setting_that_a_command_needs_is_missed(tmp_path, monkeypatch):
    text = MINE.replace("[--room {room}]", "--room {room}").replace("room: attic\n", "")
    with pytest.raises(UserError) as refused:
        FileEngine(declared(tmp_path, monkeypatch, text), tmp_path, "token")
    assert str(refused.value).startswith("launcher.room: missing")
    FileEngine(declared(tmp_path, monkeypatch, text, room="cellar"), tmp_path, "token")
    assert len(text.splitlines()) < 15


REACHED = (
    "submit: reach {host} start\njob: '{host}:{PID}'\nstates: reach {host} list\n"
    "state: (?P<job>\\d+) (?P<state>\\w+)\nrunning: up\ncancel: reach {host} end {job}\n"
    "settings: {hosts: 'hosts'}\n"
)


@pytest.fixture
def reached(tmp_path, monkeypatch, programs) -> FileEngine:
    """An engine of the hosts a and b; where there is a file down-HOST, that host is away, and with
    a file full-HOST it takes no job."""
    programs(
        reach=f"cd {tmp_path}; echo $* >>asked; [ -e down-$1 ] && exit 255\n"
        "[ $2 = start ] && [ -e full-$1 ] && echo $1:full >&2 && exit 1\n"
        "case $2 in start) echo 7 | tee $1;; list) [ ! -e $1 ] || echo 7 up;; esac"
    )
    return FileEngine(
        declared(tmp_path, monkeypatch, REACHED, hosts="a, b", jobs=2), tmp_path, "token"
    )


def test_a_host_that_refuses_is_named_while_others_train(tmp_path, reached):
    (tmp_path / "full-b").touch()
    assert reached.submit(2, ()) == ["a:7"]
    with pytest.raises(Failure) as refused:
        reached.submit(1, ())
    assert "b:full" in str(refused.value)


def test_the_job_of_a_host_that_stays_away_leaves_its_place(tmp_path, reached, monkeypatch):
    assert reached.submit(1, ()) == ["a:7"]
    (tmp_path / "down-a").touch()
    assert reached.states() == {"a:7": False}
    monkeypatch.setattr(launcher_engine, "STALE_S", 0.0)
    assert reached.states() == {}
    assert reached.submit(2, ()) == ["b:7"]  # not on a, which may still have it
    (tmp_path / "down-a").unlink()
    assert reached.states() == {"a:7": True, "b:7": True}


def test_jobs_of_hosts_are_on_one_each_and_those_out_of_reach_stay(tmp_path, reached):
    made = reached
    assert made.submit(2, ()) == ["a:7", "b:7"]
    assert made.submit(1, ()) == []  # both are busy
    assert made.states() == {"a:7": True, "b:7": True}
    (tmp_path / "down-a").touch()
    assert made.states() == {"a:7": True, "b:7": True}
    (tmp_path / "down-b").touch()
    assert made.states() is None
    made.cancel(["b:7"])
    assert (tmp_path / "asked").read_text().splitlines()[-1] == "b end 7"
    assert os.environ["PATH"].startswith(str(tmp_path))


@pytest.mark.parametrize(
    ("qstat", "states"),
    [
        ("echo down >&2; exit 1", None),
        ("printf 'Job Id: 7.s\\n    job_state = R\\n\\n'; exit 153", {"7.s": True}),
    ],
)
def test_a_qstat_that_fails_does_not_say_that_there_are_no_jobs(tmp_path, programs, qstat, states):
    programs(qselect="echo 7.s; echo 8.s", qstat=qstat)
    pbs = engine("pbs", tmp_path)
    assert pbs.states() == states
    assert pbs.silence == ("" if states else " (down)")
    programs(qselect="exit 0")
    assert pbs.states() == {}


# The words after the host make a command line, which is split, and not run by any shell.
SSH = """\
import os, shlex, sys
words = sys.argv[1:]
while words[0] == "-o":
    del words[:2]
words = shlex.split(" ".join(words[1:]))
os.execvp(words[0], words)
"""


def test_the_shell_of_a_login_by_ssh_may_be_any(tmp_path, programs):
    programs(ssh=f"exec {sys.executable} -c '{SSH}' \"$@\"")
    (pilot := tmp_path / "pilot").write_text("#!/bin/sh\nexec sleep 600\n")
    pilot.chmod(0o755)
    given = settings("ssh", hosts="one", python=str(pilot))
    ssh = FileEngine(given, tmp_path, f"{os.getpid()}")  # jobs of this host are listed
    [job] = ssh.submit(1, ())
    try:
        until(lambda: ssh.states() == {job: True}, 30)
        ssh.cancel([job])
        until(lambda: ssh.states() == {}, 30)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(job.removeprefix("one:")), signal.SIGKILL)
