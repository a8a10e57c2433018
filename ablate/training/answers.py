"""Answers questions of the control half that only torch or the data can answer. JSON both ways.

`describe` (sizes and costs of specs), `rehearse` (the first steps of rows against those of their
baseline), `prepare` (decode a dataset), `beside` (what a set has in common with the training set),
`check_resume` (train a few steps, compare with another folder), `compare_own` (compare two folders
of a run by the user's own trainer), `deterministic` (the cost of deterministic algorithms), `rate`
(of matrix products), `settle` (decisions common to all runs of a column), `timm` (weights under the
names of timm), `kernel` (whether a device works at all).

Used by training/worker.py, to which the fork server passes questions: those of `ablate plan` and
`ablate sweep` are in running/estimate.py, running/rehearse.py and running/preflight.py. These files
keep answers and check their keys (`_is_answer`, `_is_decision`, `is_load`), so a changed key must
be changed there, too.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save

from ablate.data import (
    check_names,
    class_names,
    count_examples,
    inspect_data,
    match_labels,
    prepare_cache,
    shared_images,
)
from ablate.run import (
    TASKS,
    Data,
    Run,
    build_run,
    parts,
    read_section,
)
from ablate.shared import (
    DISK_FULL_ERRORS,
    Failure,
    NoRoom,
    UserError,
    write_whole,
)
from ablate.training import calibrate, faults, numerics, plugin, resume_check
from ablate.training.calibrate import times
from ablate.training.column_decision import load_of, settle
from ablate.training.device import device_of
from ablate.training.model import Host, build
from ablate.training.model.count import describe
from ablate.training.model.export import timm_arguments, to_timm
from ablate.training.model.init import overruled
from ablate.training.model.whole_model import initial
from ablate.training.numerics import check_compile
from ablate.training.optim import check_optimizer, check_schedule, factors, lengths
from ablate.training.own.handle import compare
from ablate.training.own_augment import check_extra
from ablate.training.plugin import blame, by_path
from ablate.training.probes import class_of
from ablate.training.rates import matmul_rate
from ablate.training.rehearsal import Rehearsal, compare_rows, rehearse
from ablate.training.starting_weights import check_start
from ablate.training.step_memory import StepPeaks, count_peaks
from ablate.training.task.classify import check_loss

Progress = Callable[[int, int], None]
Importing = Callable[[str], AbstractContextManager[None]]


def answer_describe(question: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """{"specs": {key: tree}, "calibrate": [key], "peaks": [key], "cache": folder, "device",
    "initial": whether to return hashes of initial weights, too} -> {key: answer}.

    An answer has `parameters`, `multiply_adds`, `launches`, `groups` and `statistics` (see
    model.count), `warnings`, `examples` (images of each split; null where only fetching the set
    would tell) and `warmup` (see `warmup_steps`). For the keys of `peaks` it also has `step`, a
    `StepPeaks` or null where that is unknown. For the keys to calibrate it also has the fields of
    `Times`, measured on this machine with as many threads as a worker has.
    """
    device = device_of(question["device"])
    torch.set_num_threads(1 if device.type == "cpu" else 4)
    cache = Path(question["cache"])
    counts: dict[tuple[str, float], dict[str, int] | None] = {}
    peaks: dict[str, tuple[StepPeaks | None, list[str]]] = {}
    answers = {}
    for key, tree in question["specs"].items():
        run = build_run(tree)
        content = run.data.fingerprint, run.data.fraction
        if content not in counts:
            counts[content] = count_examples(run.data, cache)
        examples = counts[content]
        if examples:
            check_images(run, examples["train"])
        if device.type == "cpu" or torch.cuda.is_available():  # else it is of other hardware
            numerics.check(run, device)
        with blame(*by_path(run)):
            check_start(run)
            check_compile(run, device)
            if run.optim.lr_mult:
                factors(build(run, device="meta"), run.optim)
            check_parts(run, examples)
            warnings = slow(run, device) + amiss(run) + unnamed(run, cache)
            answers[key] = describe(run) | {"examples": examples, "warnings": warnings}
            answers[key]["warmup"] = warmup_steps(run, examples)
            if key in question["peaks"]:
                alike = run.spec.step_identity
                if alike not in peaks:
                    peaks[alike] = countable_peaks(run)
                step, reasons = peaks[alike]
                answers[key] |= {"step": step and asdict(step)}
                warnings += reasons
            if question.get("initial"):
                answers[key]["initial"] = initial(build(run))
        if key in question["calibrate"] and examples is not None:  # else no time can be measured
            numerics.choose(run, device).use()
            answers[key] |= asdict(times(run, device, answers[key]["multiply_adds"]))
    return answers


def countable_peaks(run: Run) -> tuple[StepPeaks | None, list[str]]:
    """Return the memory of a run's step, None where it is not known, and a line on why where a part
    of the user's own is to blame: it may look at values, which the meta device lacks."""
    try:
        return count_peaks(run), []
    except Exception as error:
        used = by_path(run)
        if not used:
            raise
        names = ", ".join(f"{part.key}: {part.name}" for part in used)
        reason = faults.line(error)
        return None, [f"{names}: the memory of a step is not known: without values, {reason}"]


def check_parts(run: Run, examples: Mapping[str, int] | None) -> None:
    """Try each part by import path. Raises UserError for one that doesn't work."""
    for name in run.probe:
        class_of(name, run)
    check_optimizer(run.optim)
    check_loss(run)
    check_extra(run)
    epoch = epoch_steps(run, examples) if examples else 1
    check_schedule(run.optim, lengths(run.optim, run.train, epoch))


def epoch_steps(run: Run, examples: Mapping[str, int]) -> int:
    return max(1, examples["train"] // run.train.batch)


def warmup_steps(run: Run, examples: Mapping[str, int] | None) -> int | None:
    """Return the steps of a training that is all warm-up, so that its rate never falls; None of any
    other, and of one whose images are not counted yet."""
    if examples is None or not TASKS[run.task].trains:
        return None
    counts = lengths(run.optim, run.train, epoch_steps(run, examples))
    return counts.total if counts.warmup == counts.total else None


def amiss(run: Run) -> list[str]:
    """Return a line on each parameter that a class of the user's own fills in vain, see
    `overruled`."""
    has_user_class = any(parts.kind_of(used.key).has_roles for used in by_path(run))
    if not has_user_class:
        return []
    model = build(run, device="meta")
    if not isinstance(model, Host):
        return []
    return overruled(model, run.seed)


def slow(run: Run, device: torch.device) -> list[str]:
    """Return a line on each setting that makes a run slower on this machine than it need be."""
    bfloat16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    if device.type == "cpu" and run.train.precision == "bf16" and not bfloat16:
        return ["train.precision=bf16 is slow here: this CPU has no instructions for it; give fp32"]
    return []


def unnamed(run: Run, cache: Path) -> list[str]:
    """Return a line on each set of `eval.also` whose classes have WordNet's ids for names, by which
    a run with texts would ask for them. Raises UserError where a set has no class names, as far as
    that is known before it is fetched."""
    if run.text is None:
        return []
    lines = []
    for test_set in run.eval.also:
        is_known, names = class_names(test_set, cache)
        if is_known:
            lines += check_names(test_set, names)
    return lines


def answer_rehearse(question: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """{"baseline": row, "rows": {key: row}, "cache", "device"}, where a row is {"spec",
    "multiply_adds"} -> {key: the answer of `rehearsal.compare_rows` for it and the baseline, or
    {"untried": a line that says why one of the two could not be tried}}. Raises UserError where a
    class of the user's own fails."""
    device = device_of(question["device"] if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1 if device.type == "cpu" else 4)

    def tried(row: dict[str, Any]) -> Rehearsal | str:
        run = build_run(row["spec"])
        try:
            with blame(*by_path(run)):
                return rehearse(run, row["multiply_adds"], Path(question["cache"]), device)
        except UserError:
            raise
        except Exception as error:
            return faults.line(error)

    def compared(row: dict[str, Any]) -> dict[str, Any]:
        if isinstance(baseline, str):
            return {"untried": baseline}
        rehearsal = baseline if row == question["baseline"] else tried(row)
        if isinstance(rehearsal, str):
            return {"untried": rehearsal}
        return compare_rows(rehearsal, baseline)

    baseline = tried(question["baseline"])
    return {key: compared(row) for key, row in question["rows"].items()}


def answer_prepare(question: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """{"data": section, "cache": folder} -> {"examples": counts, "folder", "whole", "done", "size",
    "free"}; see cache.CacheState, sizes are texts. `progress(done, total)` is called now and then.

    With "look": true nothing is decoded, and the answer describes what is there.
    """
    reported_at = 0.0

    def report(count: int, total: int) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at > 0.5 or count == total:
            reported_at = time.monotonic()
            progress(count, total)

    data, cache = read_section(Data, question["data"], "data"), Path(question["cache"])
    if not question.get("look"):
        prepare_cache(data, cache, report)
    state = inspect_data(data, cache)
    return {
        "examples": state.counts,
        "folder": str(state.folder),
        "whole": state.is_complete,
        "done": state.decoded_images,
        "size": state.size_text,
        "free": state.free_text,
    }


def answer_beside(question: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """{"data": section, "other": section, "texts": whether texts ask for the other's classes,
    "cache"}, both decoded -> {"line": a remark on their classes, or ""; "shared": images of the
    other's test split that are also in the training split}."""
    train_set = read_section(Data, question["data"], "data")
    test_set = read_section(Data, question["other"], "data")
    learnt = prepare_cache(train_set, Path(question["cache"]))
    cached = prepare_cache(test_set, Path(question["cache"]))
    if question["texts"]:
        line = " ".join(check_names(test_set, cached.class_names))
    else:
        _, line = match_labels(test_set, cached, train_set, learnt)
    return {"line": line, "shared": shared_images(learnt.split("train"), cached.split("test"))}


def answer_check_resume(question: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """{"spec": tree, "cache", "device", "folder", "until": step, "halfway": folder | null,
    "against": folder | null} -> the answer of `resume_check.leg` for `folder`. In `halfway` the
    same run is then stopped after half its steps. With `against`, "compared" is the answer of
    `resume_check.compare`."""
    run, device = build_run(question["spec"]), resume_check.set_up(question["device"])
    folder, cache = Path(question["folder"]), Path(question["cache"])
    with blame(*by_path(run)):
        answer = resume_check.leg(run, folder, cache, device, question["until"])
        if question["halfway"] is not None:
            resume_check.leg(run, Path(question["halfway"]), cache, device, answer["step"] // 2)
    if question["against"] is not None:
        answer["compared"] = resume_check.compare(Path(question["against"]), folder)
    return answer


def answer_compare_own(question: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """{"one": folder, "other": folder} -> the answer of `compare` for them."""
    return compare(Path(question["one"]), Path(question["other"]))


def answer_timm(question: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """{"spec": tree, "weights": file, "file"} -> {}. Writes the weights under timm's names, with
    the arguments of VisionTransformer in the file's metadata."""
    run = build_run(question["spec"])
    arguments = json.dumps(timm_arguments(run))
    tensors = to_timm(run, load_file(question["weights"]))
    write_whole(Path(question["file"]), save(tensors, {"VisionTransformer": arguments}))
    return {}


def answer_deterministic(question: dict[str, Any], progress: Progress) -> dict[str, float]:
    """{"spec": tree, "device"} -> {"ratio"}: see resume_check.deterministic_ratio."""
    run, device = build_run(question["spec"]), resume_check.set_up(question["device"])
    return {"ratio": resume_check.deterministic_ratio(run, device)}


def answer_settle(question: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """{"specs": trees, the baseline's first, "wants": [key], "known": an earlier decision, "cache",
    "device", "share": of its memory, "parts": the least number of micro-batches of a step} -> the
    decision: see `settle`."""
    device = resume_check.set_up(question["device"])
    calibrate.limit(device, question["share"])
    runs = [build_run(tree) for tree in question["specs"]]
    decision, cache, parts = question["known"], Path(question["cache"]), question["parts"]
    return settle(runs, question["wants"], decision, cache, device, parts)


def answer_load(question: dict[str, Any], progress: Progress) -> dict[str, float]:
    """{"specs": trees, "settled": the column's decision, "cache", "device"} -> the `Load` of the
    largest run."""
    device = resume_check.set_up(question["device"])
    runs = [build_run(tree) for tree in question["specs"]]
    return asdict(load_of(runs, question["settled"], Path(question["cache"]), device))


def answer_rate(question: dict[str, Any], progress: Progress) -> dict[str, float]:
    """{"spec": tree, "cache", "device"} -> {"rate"}: the rate of matrix products in the run's
    precision, in multiply-adds a second, which is kept in the cache. See `matmul_rate`."""
    run, device = build_run(question["spec"]), resume_check.set_up(question["device"])
    numerics.choose(run, device).use()
    precision = run.train.precision
    cache = Path(question["cache"])
    return {"rate": matmul_rate(precision, numerics.DTYPES[precision], device, cache)}


def answer_kernel(question: dict[str, Any], progress: Progress) -> dict[str, str | None]:
    """{"device"} -> {"why"}: a line that says why nothing can be computed on it; null where it
    works."""
    try:
        for place in range(max(1, torch.cuda.device_count())):  # of a run on several: on each
            device = question["device"]
            if place:
                device = f"{device}:{place}"
            matrix = torch.ones(64, 64, device=device)
            total = float((matrix @ matrix).sum())
            if total != 64**3:
                return {"why": f"a product of 64 x 64 ones is {total:g} in all"}
    except Exception as error:
        return {"why": faults.line(error)}
    return {"why": None}


ANSWERS = {
    "kernel": answer_kernel,
    "describe": answer_describe,
    "rehearse": answer_rehearse,
    "prepare": answer_prepare,
    "beside": answer_beside,
    "check_resume": answer_check_resume,
    "compare_own": answer_compare_own,
    "deterministic": answer_deterministic,
    "settle": answer_settle,
    "rate": answer_rate,
    "load": answer_load,
    "timm": answer_timm,
}


def answer(
    verb: str, question: dict[str, Any], progress: Progress, importing: Importing | None = None
) -> dict[str, Any]:
    """Answer a question by one of the functions above. Raises UserError for the user's mistakes,
    NoRoom where the disk is full, Failure for anything else, with one line each. `importing` makes
    the context in which each part of the user's own is imported, given a text that names the
    part."""
    plugin.importing = importing or plugin.importing
    try:
        return ANSWERS[verb](question, progress)
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL_ERRORS:
            line = f"{error.filename or 'the store'}: {os.strerror(errno.ENOSPC)}"
            raise NoRoom(line, getattr(error, "needed", 0)) from error
        raise Failure(f"worker {verb}: {faults.line(error)}") from error


def check_images(run: Run, images: int) -> None:
    """Raise UserError where the training split has fewer images than a batch."""
    if TASKS[run.task].trains and run.train.batch > images:
        raise UserError(
            f"train.batch: {run.train.batch} is more than the {images} training images of "
            f"data={run.data.name}; give at most {images}"
        )
