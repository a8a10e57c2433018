"""Build a null GPU: the CUDA build of torch, without a GPU, in an environment of its own.

    python3.12 tests/null_gpu/build.py FOLDER
    python3.12 tests/null_gpu/build.py --fetch   # its wheels alone; exit code 1: there is none

About two minutes and 2.5 GB; needs gcc, nm and pip. FOLDER/null COMMAND then runs a command with a
null GPU: dispatch, autograd, autocast, the allocator, the choice of an attention kernel, forks and
running out of memory are torch's own; kernels do nothing and are counted. So launches, waits,
copies, peaks of memory, start-up, control flow and crashes are those of a GPU, while no time and no
number that a kernel computes means anything. cuDNN's engines, NCCL, torch.profiler and compiled
steps are not there.

The wheels of torch and of CUDA's headers are kept in ~/.cache/ablate-null-gpu.

Used by `make null-gpu` and .ci/run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import stand_ins

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
sys.path.append(str(REPOSITORY / ".ci"))
from environment import PIP, make_environment  # noqa: E402

TORCH = "2.11.0"  # the oldest that ablate allows; its build on PyPI is CUDA 13.0
OF_TORCH = ["filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec"]
OF_TORCH += ["setuptools<82"]
HEADERS = ["nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88"]
TESTS = ["pytest", "pytest-timeout", "pytest-xdist"]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "ablate-null-gpu")

COMMAND = """#!/bin/sh
# null COMMAND: run it with a null GPU. See {here}/build.py
export LD_LIBRARY_PATH={folder}/lib
export PYTHONPATH="{here}/path:{repository}${{PYTHONPATH:+:$PYTHONPATH}}"
export PATH="{here}/path:{folder}/venv/bin:$PATH"
export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-1}}"
export PYTHONPYCACHEPREFIX={folder}/bytecode # or each process compiles torch's modules: seconds
unset CUDA_VISIBLE_DEVICES PYTHONDONTWRITEBYTECODE
exec "$@"
"""


def wheels() -> list[str]:
    """Return the paths of the wheels of torch and of CUDA's headers for this Python, in this order.
    Those that the cache lacks are fetched; raises CalledProcessError where that can't be."""
    CACHE.mkdir(parents=True, exist_ok=True)
    tags = {f"torch=={TORCH}": f"cp{sys.version_info.major}{sys.version_info.minor}"}
    tags |= dict.fromkeys(HEADERS, "py3")
    paths = []
    for need, tag in tags.items():
        name, _, version = need.replace("-", "_").partition("==")
        pattern = f"{name}-{version}-{tag}-*.whl"
        if not [*CACHE.glob(pattern)]:
            fetch = ["download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(CACHE), need]
            subprocess.run([sys.executable, *PIP, *fetch], check=True)
        paths += map(str, CACHE.glob(pattern))
    return paths


def build(folder: Path) -> None:
    """Build the environment, the stand-ins of CUDA's libraries, and the command `null`."""
    torch_wheel, *header_wheels = wheels()
    python = make_environment(folder / "venv", [*OF_TORCH, *TESTS], "--no-compile")
    install = [python, *PIP, "install", "-q", "--no-compile", "--no-deps"]
    headers = folder / "headers"
    subprocess.run([*install, "--target", str(headers), *header_wheels], check=True)
    # The last, or pip remarks on what it needs of NVIDIA's.
    subprocess.run([*install, torch_wheel], check=True)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", where], check=True, capture_output=True, text=True)
    torch_folder = Path(packages.stdout.strip(), "torch", "lib")
    stand_ins.build(torch_folder, headers / "nvidia" / "cu13" / "include", folder)
    command = folder / "null"
    text = COMMAND.format(here=HERE, folder=folder, repository=REPOSITORY)
    command.write_text(text)
    command.chmod(0o755)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("folder", nargs="?", type=Path)
    place.add_argument("--fetch", action="store_true", help="fetch the wheels, and build nothing")
    arguments = parser.parse_args()
    if arguments.folder:
        return build(arguments.folder.resolve())
    try:
        wheels()
    except subprocess.CalledProcessError:  # pip has said why
        sys.exit(f"no wheel of torch {TORCH} and of CUDA's headers for {sys.executable}")


if __name__ == "__main__":
    main()
