"""Checks the data of a config, and that a stopped training resumes to the same bits.

Workers answer: the data is decoded and the model is trained. The training half's part is
`ablate.training.resume_check`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from ablate.audit.doctor import own_check
from ablate.audit.doctor.finding import Finding, Findings, Level, size
from ablate.audit.doctor.machine import free_memory
from ablate.report.live import view
from ablate.running.launchers import Ask, Slot
from ablate.running.launchers.decode import decode
from ablate.shared.errors import UserError
from ablate.shared.own import is_own, name_of
from ablate.shared.spec import trains
from ablate.store.store import Store

STEPS = 6
Spec = Mapping[str, Any]


def data(store: Store, specs: Sequence[Spec], ask: Ask) -> Findings:
    """Check each dataset of the specs. The dataset of the first spec is decoded if it is not yet.

    Raises UserError or Failure where it can't be decoded."""
    if is_own(specs[0]):
        yield Finding("ok", "data", f"{name_of(specs[0])} reads its data by itself")
        return
    first, *others = {spec["data"]["fingerprint"]: spec for spec in specs}.values()
    name, cache = first["data"]["name"], str(store.cache)
    with view() as watching:
        decode([first], store.root, watching, ask)
    yield Finding("ok", "data", f"data={name} is decoded")
    for spec in others:
        name = spec["data"]["name"]
        try:
            found = ask("prepare", {"data": spec["data"], "cache": cache, "look": True})
        except UserError as error:
            yield Finding("problem", "data", str(error))
            continue
        if found["whole"]:
            yield Finding("ok", "data", f"data={name} is decoded")
        elif found["examples"] is None:
            yield Finding(
                "warning",
                "data",
                f"data={name} is not downloaded yet; run `ablate data prepare {name}` with "
                f"network, or give data.path=FOLDER",
            )
        else:
            images = sum(found["examples"].values())
            text = f"data={name} is not decoded yet: {images:,} images, {found['size']}"
            yield Finding("ok", "data", f"{text}; `ablate sweep` decodes it first")


def resume(store: Store, slots: Sequence[Slot], label: str, spec: Spec, ask: Ask) -> Findings:
    """Compare a few steps without a stop with the same steps stopped midway and resumed by another
    process: checkpoints and metrics must be the same bits. On a GPU only deterministic algorithms
    promise this, so that they are compared, too, and timed."""
    if is_own(spec):
        yield from own_check.resume(slots[0], label, spec, ask)
        return
    device = slots[0].device
    if not trains(spec):
        yield Finding("ok", "resume", f"not tried: {label} takes no steps")
        return
    yield Finding(
        "...", "resume", f"training {STEPS} steps of {label} on {device}, with and without a stop"
    )
    promised = device == "cpu" or spec["train"]["deterministic"]
    yield from _compare_legs(store, slots, spec, ask, "problem" if promised else "warning")
    if device == "cpu":
        return
    strict = {**spec, "train": {**spec["train"], "deterministic": True}}
    if not promised:
        yield Finding("...", "resume", "training the same steps with train.deterministic=true")
        yield from _compare_legs(store, slots, strict, ask, "problem")
    ratio = ask("deterministic", {"spec": strict, "device": device})["ratio"]
    text = f"with train.deterministic=true a step takes {ratio:.2f} times as long"
    yield Finding("ok", "resume", text)


def _compare_legs(
    store: Store, slots: Sequence[Slot], spec: Spec, ask: Ask, otherwise: Level
) -> Findings:
    """`otherwise`: the level of the finding where the bits differ."""
    with tempfile.TemporaryDirectory(prefix="ablate-doctor-") as place:

        def leg(
            name: str, until: int, halfway: str | None = None, against: str | None = None
        ) -> dict[str, Any]:
            """Train in that folder until that step, in a process of its own."""
            question = {
                "spec": spec,
                "cache": str(store.cache),
                "device": slots[0].device,
                "folder": os.path.join(place, name),
                "until": until,
                "halfway": halfway and os.path.join(place, halfway),
                "against": against and os.path.join(place, against),
            }
            return ask("check_resume", question)

        straight = leg("straight", STEPS, halfway="stopped")
        last = straight["step"]
        yield _memory(slots, straight["peak_bytes"])
        if straight["diverged"] or last == 1:
            why = "diverges at once" if straight["diverged"] else "has one step"
            yield Finding("warning", "resume", f"not checked: this config {why}")
            return
        found = leg("stopped", last, against="straight")["compared"]
        if not found["differing"]:
            text = f"resume is bit-exact: {found['tensors']} tensors are equal after {last} steps, "
            text += f"with and without a stop after step {last // 2}"
            yield Finding("ok", "resume", text)
            return
        again = leg("again", last, against="straight")["compared"]
    by = "" if found["by"] is None else f", by up to {found['by']:.3g}"
    text = f"resume is not bit-exact: after {last} steps {found['first']} differs{by} "
    text += f"({found['differing']} parts differ; there are {found['tensors']} tensors): "
    text += (
        "a second training without a stop differs, too, so some layer draws random numbers or "
        "computes in a random order"
        if again["differing"]
        else "two trainings without a stop are equal, so the checkpoint lacks some state; keep it "
        "in a buffer (register_buffer)"
    )
    yield Finding(otherwise, "resume", text)


def _memory(slots: Sequence[Slot], peak: float) -> Finding:
    """Report the peak memory of a worker, and whether the machine has it for every slot."""
    text = f"a worker of this config takes up to {size(peak)}"
    if slots[0].device == "cpu" and len(slots) * peak > free_memory():
        text += (
            f", and {len(slots)} at once may not fit; give train.micro_batch=auto, or use fewer "
        )
        return Finding("warning", "memory", text + "cores (taskset)")
    return Finding("ok", "memory", text)
