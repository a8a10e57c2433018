"""The peaks of memory of training steps, as torch's allocator counts them on a null GPU.

    build/null-gpu/null python tests/null_gpu/step_peaks.py             # print the file
    build/null-gpu/null python tests/null_gpu/step_peaks.py --reprint   # write it again

The file is tests/golden/step_peaks.json: the words of a run, and its peak in bytes. For another run
add its words there with any number, and write the file again.

Used by test_step_peaks.py. tests/test_step_memory.py compares what `ablate plan` forecasts with the
file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Iterable

import launches
import torch

from ablate.training.device import device_of

FILE = launches.REPOSITORY / "tests" / "golden" / "step_peaks.json"
STEPS = 3  # from the second on there are moments


def measure(words: str) -> int:
    """Return the bytes that the run of these words takes at most in its first steps, besides its
    images. The process must not have used the GPU before."""
    training, image_bytes = launches.begin(words, device_of("cuda"))
    for _ in range(STEPS):
        training.step()
    return torch.cuda.max_memory_allocated() - image_bytes


def peaks(runs: Iterable[str]) -> dict[str, int]:
    """Return the peak of each run, which has a process of its own."""
    runs = [*runs]
    with multiprocessing.get_context("fork").Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        return dict(zip(runs, pool.map(measure, runs, chunksize=1), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--reprint", action="store_true", help="write the file")
    action.add_argument("--every", type=int, default=1, metavar="N", help="measure each Nth run")
    arguments = parser.parse_args()
    runs = [*json.loads(FILE.read_text())]
    text = json.dumps(peaks(runs[:: arguments.every]), indent=2) + "\n"
    if arguments.reprint:
        FILE.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
