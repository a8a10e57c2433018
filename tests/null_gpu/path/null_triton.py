"""A stand-in for Triton, whose kernels do nothing and are counted with those of CUDA.

Used by sitecustomize.py for `ablate.data.philox_kernel` alone: torch looks for the real Triton, and
shall not find one.
"""

import contextlib
import ctypes
import sys
import types

language = types.ModuleType("triton.language")  # names of it are in the kernels' bodies alone


class Kernel:
    """A function that Triton would compile: `kernel[grid](...)` launches it."""

    def __init__(self, function):
        self.__name__ = function.__name__

    def __getitem__(self, grid):
        return lambda *arguments, **constants: ctypes.CDLL("libcudart.so.13").null_gpu_launch()


def jit(function=None, **options):
    """Stand in for `triton.jit`, with options or without."""
    return Kernel if function is None else Kernel(function)


def cdiv(number, divisor):
    """Return the quotient, rounded up."""
    return -(-number // divisor)


@contextlib.contextmanager
def importable():
    """Let `import triton` import this module, within the block."""
    names = {"triton": sys.modules[__name__], "triton.language": language}
    sys.modules.update(names)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
