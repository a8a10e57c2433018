"""The peaks of steps are those of tests/golden/step_peaks.json."""

from __future__ import annotations

import json
import subprocess
import sys

import step_peaks


def test_a_peak_is_what_the_file_says():
    """In a process of its own, which forks one a run before it uses the GPU."""
    words = [sys.executable, step_peaks.__file__, "--every", "6"]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    written = json.loads(step_peaks.FILE.read_text())
    peaks = json.loads(printed)
    assert len(peaks) >= 8
    assert peaks == {words: written[words] for words in peaks}, "step_peaks.py --reprint writes it"
