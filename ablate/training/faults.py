"""The source of an error: the device, its memory, or the run itself. One table, by type, code and
text.

Codes are those of `cudaError_t`, which torch.AcceleratorError has in `error_code`; texts are parts
of messages. Rows are tried from the top. An error in no row is the run's or, if a device raised it,
the device's: then the run is tried elsewhere, and two runs that fail on one device, or two devices
on which one run fails, show which of them is at fault.

Used by training/attempt.py and training/own/work.py where a run of `ablate sweep` fails, and by
training/calibrate.py. A new row also needs an error that reaches it in tests/test_fault_owners.py;
the table of errors in docs/command-line.md sums the rows up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ablate.run import (
    DEVICE_LOST,
    FAILED,
    NO_DEVICE,
    OOM,
    WRONG_UNIT,
)
from ablate.shared import short_error

# Codes are those of driver_types.h of CUDA 12.9, with the texts of its cudaGetErrorString;
# cuBLAS's and cuDNN's words are in ATen/cuda/Exceptions.h, TORCH_CUDABLAS_CHECK and AT_CUDNN_CHECK,
# names of cuDNN 8 and 9. Texts were looked up in the libraries of torch 2.13.0+cu130 (CUDA 13.0,
# cuDNN 9), too.


@dataclass(frozen=True)
class Fault:
    """A kind of error: how it is recognised, and the reason with which a worker leaves. `remedy`
    says what to do, where that is always the same."""

    reason: str
    texts: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    types: tuple[str, ...] = ()
    remedy: str = ""


FAULTS = (
    # --- Memory: the run is tried once more, alone on its device
    # c10/cuda/CUDACachingAllocator.cpp
    Fault(OOM, types=("OutOfMemoryError",)),
    # Python and numpy; c10/core/impl/alloc_cpu.cpp: the host's memory has no type of its own
    Fault(
        OOM,
        ("DefaultCPUAllocator: can't allocate memory",),
        types=("MemoryError",),
    ),
    # outside torch's allocator: as a context is created, or a graph captured
    Fault(OOM, ("CUDA error: out of memory",), (2,)),
    # A library's handle takes memory outside torch's. It is what "not initialized" nearly always
    # means, too: llama2.c#279, lm-evaluation-harness#1689 (cuBLAS), LLaVA#392 (cuDNN).
    Fault(
        OOM,
        (
            "CUBLAS_STATUS_ALLOC_FAILED",
            "CUBLAS_STATUS_NOT_INITIALIZED when calling",
            "CUDNN_STATUS_ALLOC_FAILED",
            "CUDNN_STATUS_NOT_INITIALIZED",
            "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
            "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        ),
    ),
    # --- No device: nothing can train there, and no run is to blame
    # torch/cuda/__init__.py _lazy_init
    Fault(
        NO_DEVICE,
        ("Torch not compiled with CUDA enabled",),
        remedy="install a CUDA build of torch, or give launcher.devices=cpu",
    ),
    # c10/cuda/CUDAFunctions.cpp device_count_impl
    Fault(
        NO_DEVICE,
        (
            "Found no NVIDIA driver",
            "The NVIDIA driver on your system is too old",
            "CUDA driver version is insufficient",
        ),
        (35, 803, 804),
        remedy="install the NVIDIA driver that this torch needs, or give launcher.devices=cpu",
    ),
    # There, too, and ATen/DeviceAccelerator.cpp
    Fault(
        NO_DEVICE,
        (
            "No CUDA GPUs are available",
            "no CUDA-capable device is detected",
            "CUDA driver initialization failed",
            "CUDA unknown error - this may be due to",
            "CUDA error: initialization error",
            "Cannot access accelerator device when none",
        ),
        (3, 100, 802),
    ),
    # A compute mode that lets one process in; older drivers say `all CUDA-capable`
    Fault(
        NO_DEVICE,
        ("devices are busy or unavailable", "device(s) is/are busy or unavailable"),
        (46,),
        remedy="another process may have the GPU for itself",
    ),
    # --- The device's own: the process can't go on, another device can
    # Errors that hardware reports of itself
    Fault(
        DEVICE_LOST,
        ("uncorrectable ECC error", "uncorrectable NVLink error", "or a hardware error"),
        (214, 220, 226),
    ),
    # nvmlErrorString NVML_ERROR_GPU_IS_LOST; Xid 79: a process that was on the GPU then hears
    # "unknown error" (proteneer/timemachine#1203).
    Fault(
        DEVICE_LOST,
        ("GPU is lost", "fallen off the bus", "CUDA error: unknown error"),
        (999,),
    ),
    # Either's: a kernel may have written where it must not, but under torch's own kernels it is as
    # often an unstable card or driver, hours into a training (pytorch/pytorch#74235).
    Fault(
        DEVICE_LOST,
        (
            "unspecified launch failure",
            "the launch timed out",
            "CUBLAS_STATUS_EXECUTION_FAILED",
            "CUBLAS_STATUS_INTERNAL_ERROR",
            "CUDNN_STATUS_EXECUTION_FAILED",
            "CUDNN_STATUS_INTERNAL_ERROR",
        ),
        (702, 719),
    ),
    # --- The run's own: the device is as good as before for the next process
    # A check in a kernel, as of an index
    Fault(FAILED, ("device-side assert",), (710,)),
    # A kernel's code or address is the program's (Xid 13 and 31 in NVIDIA's catalogue: restart and
    # check the application); memory that flips bits shows as ECC errors, above.
    Fault(
        FAILED,
        (
            "illegal memory access",
            "misaligned address",
            "illegal instruction",
            "hardware stack error",
            "invalid program counter",
            "global/shared address space",
            "too many resources requested for launch",
        ),
        (700, 701, 714, 715, 716, 717, 718, 721),
    ),
    # `run.own.check_range`: percents where the declaration of a metric says shares
    Fault(WRONG_UNIT, types=("WrongUnit",)),
    # A worker sees one device, its first: who asks for another is a class of the user's own.
    Fault(FAILED, ("invalid device ordinal",), (101,)),
    # Each device is tried with torch before the first run, so this is a user's own kernel.
    Fault(
        FAILED,
        ("no kernel image is available",),
        (209,),
        remedy="what raised it has no code for this GPU: install a build that has",
    ),
)


def fault(error: BaseException) -> Fault | None:
    """Return the row of the table that fits the error, or None."""
    types = {kind.__name__ for kind in type(error).__mro__}
    code = getattr(error, "error_code", None)
    text = str(error)
    for row in FAULTS:
        if types.intersection(row.types) or code in row.codes:
            return row
        if any(part in text for part in row.texts):
            return row
    return None


def reason_of(error: BaseException, device: str) -> str:
    """Return OOM, DEVICE_LOST, NO_DEVICE, WRONG_UNIT or FAILED for the error of a worker on
    `device`, cpu or cuda."""
    row = fault(error)
    if row is None and type(error).__name__ == "AcceleratorError":
        return DEVICE_LOST
    if row is None:
        return FAILED
    if row.reason == NO_DEVICE and device == "cpu":  # what asked for a GPU there is the run's own
        return FAILED
    return row.reason


# Of the message of torch's allocator, how much was wanted, how much there is and how much is free;
# three sentences on its own caching follow (c10/cuda/CUDACachingAllocator.cpp).
ALLOCATION = re.compile(r"OutOfMemoryError: .*?\bis free(?=\.)")


def line(error: BaseException) -> str:
    """Return the error's type, the first line of its message, and its remedy."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    allocation = ALLOCATION.match(text)
    if allocation is not None:
        text = allocation.group()
    return short_error(text) + remedy(error)


def remedy(error: BaseException) -> str:
    """Return "; " and what to do about the error; "" where that is not always the same."""
    row = fault(error)
    if row is None or not row.remedy:
        return ""
    return f"; {row.remedy}"
