"""The engine `slurm`: an sbatch script that saves, queues itself again and goes on when its time is nearly over."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterator
from pathlib import Path

from ups.run_files import CONFIG
from ups.types import ConfigError, DataError, UpsError
from ups.verdict import Ending
from ups_fleet.submit.job import LaunchJob, State, Status, ended
from ups_fleet.submit.records import record_with
from ups_fleet.submit.shell import NotSubmittedError, RefusedError, answer, begun_or_resumed, checks, quoted

ENGINE = "slurm"
MARGIN = 30.0  # seconds between the end of the grace and the time limit
EARLY = 5  # times that a job is queued again whose run was ended before it could listen
PORTS = (20_000, 10_000)  # the first port at which the nodes of a job may meet, and how many there are
# Options that are passed on as they are: an sbatch option each.
OPTIONS = ("partition", "account", "qos", "constraint", "mem", "nodelist", "exclude", "reservation")
FACTS = re.compile(r"([\w/:]+)=(.*?)(?= [\w/:]+=|$)")  # NAME=VALUE of `scontrol show`; a value may have blanks
STATES: dict[str, State] = {
    **dict.fromkeys(("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING"), "queued"),
    **dict.fromkeys(("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"), "running"),
    **dict.fromkeys(("CANCELLED", "REVOKED"), "stopped"),
    "COMPLETED": "done",
    **dict.fromkeys(
        ("FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED"), "failed"
    ),
}

SCRIPT = """\
#!/bin/bash
{header}

# What a node lacks is said in the first second.
read -r -d '' NEEDS <<'UPS_END' || true
{needs}
UPS_END
# Then every node runs its supervisor, as on a laptop.
read -r -d '' NODE <<'UPS_END' || true
{node}
UPS_END

step="srun --nodes={nodes} --ntasks={nodes} --cpus-per-task={cpus} --kill-on-bad-exit=0"
export UPS_PORT=$(({first} + SLURM_JOB_ID % {count}))
$step bash -c "$NEEDS" && $step bash -c "$NODE"
code=$?

# A run that was asked to stop and has saved ({preempted}), or was not yet able to: unless somebody cancelled the job,
# it is queued again.
case "$code" in
{preempted} | {early})
    state=$(scontrol show job --oneliner "$SLURM_JOB_ID" | grep -o 'JobState=[A-Z_]*' | head -n 1)
    if [ "$state" = JobState=CANCELLED ]; then
        echo "ups: job $SLURM_JOB_ID was cancelled; launched again, it goes on from here." >&2
    elif [ "$code" != {preempted} ] && [ "${{SLURM_RESTART_COUNT:-0}}" -ge {most} ]; then
        echo "ups: job $SLURM_JOB_ID was ended {most} times before it could listen; it is not queued again." >&2
    elif scontrol requeue "$SLURM_JOB_ID"; then
        echo "ups: job $SLURM_JOB_ID is queued again, and will go on from here." >&2
        sleep 60 # until SLURM ends this script
    else
        echo "ups: job $SLURM_JOB_ID could not be queued again; launched again, it goes on from here." >&2
    fi
    ;;
esac
exit "$code"
"""


class Slurm:
    """Jobs of the SLURM that `sbatch` here speaks to; a sweep is an array. The identity of a job is SLURM's number."""

    def check(self, job: LaunchJob) -> None:
        if job.points and job.nodes > 1:
            raise ConfigError(f"a sweep is of runs on one node each, and {job.nodes} are asked for; leave --nodes out.")
        if odd := next((path for path in (job.place, _log_folder(job)) if "\\" in str(path)), None):
            raise ConfigError(f"{odd}: has a backslash, which SLURM drops from the paths it is given; rename it.")
        if job.seconds is not None and job.seconds <= job.grace + MARGIN:
            raise ConfigError(
                f"--time is {job.seconds:.0f} s, of which the last checkpoint may take {job.grace + MARGIN:.0f} s; "
                "ask for more, or lower limits.grace."
            )

    def render(self, job: LaunchJob) -> str:
        return SCRIPT.format(
            header="\n".join(f"#SBATCH {line}" for line in _header(job)),
            needs=checks(job.inputs, job.place),
            node=_node(job),
            nodes=job.nodes,
            cpus=_cpus(job),
            first=PORTS[0],
            count=PORTS[1],
            preempted=int(Ending.PREEMPTED),
            most=EARLY,
            early=" | ".join(str(128 + number) for number in (signal.SIGUSR1, signal.SIGTERM)),
        )

    def submit(self, job: LaunchJob, text: str) -> str:
        _require_possible(text)
        _log_folder(job).mkdir(parents=True, exist_ok=True)
        return _answer("sbatch", "--parsable", text=text).strip().partition(";")[0]

    def find(self, key: str) -> str | None:
        rows = _answer("squeue", "--noheader", "--me", "--states=all", f"--name=ups-{key}", "--format=%A").split()
        return rows[0] if rows else None

    def status(self, identity: str) -> Status:
        tasks = _tasks(identity)
        if not tasks:
            return Status("gone", "SLURM has forgotten it; `ups show` says what its run has left.")
        return _together([_status(task) for task in tasks])

    def logs(self, identity: str) -> Iterator[str]:
        paths = _logs(identity)
        for path in paths:
            try:
                yield path.read_text(errors="replace")
            except OSError as error:
                raise DataError(f"{path}: the log of the job cannot be read ({error.strerror}).") from None

    def stop(self, identity: str) -> None:
        _answer("scancel", identity)


def _require_possible(text: str) -> None:
    """A NotSubmittedError for a script that no nodes could ever carry out, which SLURM itself may let wait for ever.
    While nodes are down this cannot be said."""
    try:
        _answer("sbatch", "--test-only", text=text)
    except RefusedError as error:
        if "not available" not in str(error) or not _nodes_are_away():
            raise NotSubmittedError(str(error)) from None


def _nodes_are_away() -> bool:
    """Whether some nodes cannot work now."""
    away = _answer("sinfo", "--noheader", "--states=down,drain,fail,maint,unknown", "--format=%D").split()
    return any(count != "0" for count in away)


def clock(seconds: float) -> str:
    """A time limit as SLURM writes it: days-hours:minutes:seconds."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:{rest:02}"


def _header(job: LaunchJob) -> list[str]:
    """The options of the job, each quoted as sbatch reads it."""
    words = [
        f"--job-name=ups-{job.key}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={_cpus(job)}",
        f"--chdir={job.place}",
        f"--output={_log(job)}",
        "--open-mode=append",
        "--requeue",
        f"--signal=USR1@{job.grace + MARGIN:.0f}",
    ]
    words += [f"--time={clock(job.seconds)}"] if job.seconds is not None else []
    words += [f"--gpus-per-node={job.gpus}"] if job.gpus else []
    words += [f"--array=0-{len(job.points) - 1}"] if job.points else []
    words += [f"--{name}={job.options[name]}" for name in OPTIONS if job.options.get(name)]
    return [quoted([word]) for word in words]


def _cpus(job: LaunchJob) -> int:
    """Processors of a node: one for each rank, where nothing else is said."""
    return int(job.options.get("cpus") or job.ranks)


def _log_folder(job: LaunchJob) -> Path:
    """Where SLURM writes what a job prints: beside the folder of its run, or in that of its sweep."""
    return job.folder if job.points else job.folder.parent


def _log(job: LaunchJob) -> str:
    """The file, as SLURM names it: the number of the job is its own to put in."""
    place = str(_log_folder(job) / f"{job.name}.slurm-").replace("%", "%%")
    return f"{place}{'%A_%a' if job.points else '%j'}.log"


def _logs(identity: str) -> list[Path]:
    """The logs of a job, by its record: where a path has a '%', SLURM itself names another than it writes to."""
    record = record_with(ENGINE, identity)
    folder = Path(record.folder)
    own = re.compile(rf"{re.escape(record.name)}\.slurm-{identity}(?:_([0-9]+))?\.log")
    rows = [(own.fullmatch(path.name), path) for place in (folder.parent, folder) for path in place.glob("*.log")]
    logs = sorted((int(match[1] or 0), path) for match, path in rows if match)
    if not logs:
        raise DataError(
            f"{folder.parent}: there is no {record.name}.slurm-{identity}.log; the job has not begun, or this machine "
            "does not see the disk of its nodes."
        )
    return [path for _, path in logs]


def _node(job: LaunchJob) -> str:
    """The lines that every node runs."""
    more = (
        [] if job.nodes == 1 else ['--node-rank="$SLURM_NODEID"', '--rendezvous="$SLURM_LAUNCH_NODE_IPADDR:$UPS_PORT"']
    )
    lines: list[str] = []
    if job.nodes > 1:  # every node shows what rank 0 prints: once is enough
        lines += ['[ "$SLURM_NODEID" -eq 0 ] || exec > /dev/null']
    if job.points:
        lines += ['case "$SLURM_ARRAY_TASK_ID" in']
        for number, flags in enumerate(job.points):
            folder = job.folder / dict(flags)["name"]
            lines += [f"{number})", f"    set -- {quoted(f'--{key}={value}' for key, value in flags)}"]
            lines += [f'    [ ! -e {quoted([folder / CONFIG])} ] || set -- "$@" --resume', "    ;;"]
        lines += ["esac"]
    else:
        lines += [begun_or_resumed(job.folder)]
    return "\n".join([*lines, " ".join(["exec", quoted(job.words()), *more, '"$@"'])])


def _tasks(identity: str) -> list[dict[str, str]]:
    """What SLURM knows of a job, or of each task of an array; nothing where it has forgotten it."""
    try:
        text = _answer("scontrol", "show", "job", "--oneliner", identity)
    except RefusedError as error:
        if "Invalid job id" not in str(error):
            raise
        return _accounts(identity)
    # Of two facts of one name the first is SLURM's own: paths, which may hold anything, come after it.
    rows = [dict(reversed(FACTS.findall(line.strip()))) for line in text.splitlines()]
    return [row for row in rows if row.get("JobState")]


def _accounts(identity: str) -> list[dict[str, str]]:
    """What SLURM's accounts say of a job, as `_tasks` gives it; nothing where it keeps none."""
    try:
        text = _answer("sacct", "--allocations", "--parsable2", "--noheader", "--format=State,ExitCode", "-j", identity)
    except UpsError:  # it keeps none
        return []
    rows = [line.split("|") for line in text.splitlines() if "|" in line]
    return [{"JobState": row[0].split()[0], "ExitCode": row[1]} for row in rows]


def _status(task: dict[str, str]) -> Status:
    word = task["JobState"].split("+")[0]
    state = STATES.get(word, "running")
    if word in ("COMPLETED", "FAILED"):
        code, _, number = task.get("ExitCode", "0:0").partition(":")
        return ended(int(code) or (128 + int(number) if int(number or 0) else 0))
    restarts = task.get("Restarts", "0")
    reason = f" ({task['Reason']})" if task.get("Reason", "None") not in ("None", "") else ""
    again = f", queued again {'once' if restarts == '1' else f'{restarts} times'}" if restarts != "0" else ""
    return Status(state, f"SLURM says {word}{reason}{again}.")


def _together(tasks: list[Status]) -> Status:
    """One status for all tasks of an array: of those that are not over the first, else the worst."""
    if len(tasks) == 1:
        return tasks[0]
    order = ("running", "queued", "failed", "stopped", "gone", "done")
    first = min(tasks, key=lambda task: order.index(task.state))
    counts = [f"{sum(task.state == state for task in tasks)} {state}" for state in order]
    return Status(first.state, f"{', '.join(c for c in counts if not c.startswith('0 '))}.", first.code)


def _answer(*words: str, text: str = "") -> str:
    tries = 1 if words[0] == "sbatch" else 3  # nothing is submitted twice
    return answer(*words, text=text, tries=tries, advice="log in to a machine of the cluster")
