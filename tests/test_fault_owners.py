"""Whose an error is: torch's own errors as far as a machine without a GPU can raise them, and those
of CUDA by the codes and texts that its runtime gives them."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import pytest
import torch

from ablate.run.own import WrongUnit
from ablate.run.rundir import DEVICE_LOST, FAILED, NO_DEVICE, OOM, WRONG_UNIT, RunDir
from ablate.shared.errors import Failure
from ablate.training import answers, faults, worker
from ablate.training.faults import FAULTS, line, reason_of

# As cudaGetErrorString of CUDA 12.9 says them.
CODES = {
    2: ("out of memory", OOM),
    3: ("initialization error", NO_DEVICE),
    35: ("CUDA driver version is insufficient for CUDA runtime version", NO_DEVICE),
    46: ("CUDA-capable device(s) is/are busy or unavailable", NO_DEVICE),
    100: ("no CUDA-capable device is detected", NO_DEVICE),
    101: ("invalid device ordinal", FAILED),
    209: ("no kernel image is available for execution on the device", FAILED),
    214: ("uncorrectable ECC error encountered", DEVICE_LOST),
    220: ("uncorrectable NVLink error detected during the execution", DEVICE_LOST),
    226: ("Invalid access of peer GPU memory over nvlink or a hardware error", DEVICE_LOST),
    700: ("an illegal memory access was encountered", FAILED),
    701: ("too many resources requested for launch", FAILED),
    702: ("the launch timed out and was terminated", DEVICE_LOST),
    710: ("device-side assert triggered", FAILED),
    714: ("hardware stack error", FAILED),
    715: ("an illegal instruction was encountered", FAILED),
    716: ("misaligned address", FAILED),
    717: ("operation not supported on global/shared address space", FAILED),
    718: ("invalid program counter", FAILED),
    719: ("unspecified launch failure", DEVICE_LOST),
    999: ("unknown error", DEVICE_LOST),
}
HINT = """
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below
might be incorrect. For debugging consider passing CUDA_LAUNCH_BLOCKING=1"""


@pytest.mark.parametrize(("code", "told"), CODES.items())
def test_an_error_of_the_runtime_by_its_code_or_by_its_text(code, told):
    text, owner = told
    error = torch.AcceleratorError(f"CUDA error: {text}{HINT}")  # its code is set by torch's C++
    assert reason_of(error, "cuda") == owner
    assert reason_of(RuntimeError(f"CUDA error: {text}{HINT}"), "cuda") == owner  # older torch
    coded = torch.AcceleratorError("CUDA error: in words of tomorrow")
    coded.error_code = code
    assert reason_of(coded, "cuda") == owner


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch is built without CUDA")
def test_codes_and_texts_are_those_of_the_runtime_that_torch_uses():
    (library,) = Path(torch.__file__).parent.parent.glob("nvidia/*/lib/libcudart.so.*")
    runtime = ctypes.CDLL(str(library))
    runtime.cudaGetErrorString.restype = ctypes.c_char_p
    said = {code: runtime.cudaGetErrorString(code).decode() for code in CODES}
    assert said == {code: text for code, (text, _) in CODES.items()}


BUILT = "Torch not compiled with CUDA enabled"
TEXTS = [
    ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", OOM),
    ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", OOM),
    ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`", DEVICE_LOST),
    ("CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm(...)`", FAILED),
    ("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", OOM),
    ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", OOM),
    ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", OOM),
    ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", DEVICE_LOST),
    ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", DEVICE_LOST),
    ("cuDNN error: CUDNN_STATUS_BAD_PARAM", FAILED),
    ("Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU", NO_DEVICE),
    ("The NVIDIA driver on your system is too old (found version 11040).", NO_DEVICE),
    ("No CUDA GPUs are available", NO_DEVICE),
    ("CUDA error: all CUDA-capable devices are busy or unavailable", NO_DEVICE),
    (
        "Unable to determine the device handle for GPU0: GPU is lost.  Reboot the system",
        DEVICE_LOST,
    ),
    ("mat1 and mat2 shapes cannot be multiplied (4x8 and 4x8)", FAILED),
]


@pytest.mark.parametrize(("text", "owner"), TEXTS)
def test_an_error_of_a_library_by_its_text(text, owner):
    assert reason_of(RuntimeError(text), "cuda") == owner


def test_errors_that_this_torch_raises_itself():
    with pytest.raises(RuntimeError) as host:
        torch.empty(1 << 60)
    assert reason_of(host.value, "cpu") == OOM
    assert (
        reason_of(MemoryError(), "cpu") == reason_of(torch.OutOfMemoryError("CUDA"), "cuda") == OOM
    )
    if torch.version.cuda is None:
        with pytest.raises(AssertionError) as built:
            torch.ones(1, device="cuda")
        assert reason_of(built.value, "cuda") == NO_DEVICE
        told = f"{BUILT}; install a CUDA build of torch, or give launcher.devices=cpu"
        assert line(built.value) == f"AssertionError: {told}"
        assert reason_of(built.value, "cpu") == FAILED  # a class of the user's own asked for one


def test_what_no_row_knows_is_the_runs_or_the_devices_that_raised_it():
    assert reason_of(ValueError("no"), "cuda") == FAILED
    assert reason_of(torch.AcceleratorError("CUDA error: of tomorrow"), "cuda") == DEVICE_LOST
    assert line(torch.AcceleratorError(f"CUDA error: x{HINT}")) == "AcceleratorError: CUDA error: x"


def test_memory_that_is_not_there_is_named_without_advice_on_torchs_caching(tmp_path):
    full = (
        "CUDA out of memory. Tried to allocate 592.00 MiB. GPU 0 has a total capacity of 24.00 GiB"
    )
    full += " of which 61.16 MiB is free"
    more = (
        ". Of the allocated memory 23.29 GiB is allocated by PyTorch. If reserved but unallocated "
    )
    more += "memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert line(torch.OutOfMemoryError(full + more)) == f"OutOfMemoryError: {full}"
    assert line(torch.OutOfMemoryError("CUDA out of memory.")).endswith(": CUDA out of memory.")
    rundir = RunDir(tmp_path)
    for micro_batch, remedy in (
        (None, worker.LESS_MEMORY),
        (64, worker.LESS_MEMORY),
        ("auto", worker.LESS_THAN_AUTO),
    ):
        rundir.run.write_text(json.dumps({"spec": {"train": {"micro_batch": micro_batch}}}))
        said = worker.error_line(torch.OutOfMemoryError(full + more), rundir)
        assert said.endswith(f" is free; {remedy}")
    assert "micro_batch=auto" not in worker.LESS_THAN_AUTO
    assert worker.error_line(ValueError("no"), rundir) == "ValueError: no"


def test_a_question_that_a_device_fails_is_answered_by_its_first_line(monkeypatch):
    """torch adds lines of advice, and an empty one."""

    def fail(question, progress):
        raise torch.AcceleratorError(f"CUDA error: devices are busy or unavailable{HINT}\n\n")

    monkeypatch.setitem(answers.ANSWERS, "describe", fail)
    with pytest.raises(Failure) as raised:
        answers.answer("describe", {}, lambda done, total: None)
    assert str(raised.value) == (
        "worker describe: AcceleratorError: CUDA error: devices are busy or unavailable; "
        "another process may have the GPU for itself"
    )


def test_every_row_of_the_table_is_reached():
    texts = [f"CUDA error: {text}" for text, _ in CODES.values()] + [text for text, _ in TEXTS]
    others = MemoryError(), torch.OutOfMemoryError("CUDA"), AssertionError(BUILT), WrongUnit("50")
    reached = {faults.fault(error) for error in (*map(RuntimeError, texts), *others)}
    assert reached - {None} == set(FAULTS)
    assert {row.reason for row in FAULTS} == {OOM, DEVICE_LOST, NO_DEVICE, WRONG_UNIT, FAILED}
