"""The quick start's table is whole, its baseline is good, and again it trains nothing."""

import csv
import io
import subprocess
import sys
import time

store = sys.argv[1]
ablate = [sys.executable.replace("python", "ablate")]


def run(*words: str) -> str:
    command = [*ablate, *words, "--store", store]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


before = run("table", "quickstart", "--format", "csv")
facts = list(csv.DictReader(io.StringIO(before)))
means = {f["row"]: float(f["value"]) for f in facts if f["quantity"] == "top1"}
assert len(means) == 10, means
assert means["pre/pre"] >= 97.0, means
begun = time.monotonic()
again = run("sweep", "quickstart")
assert "finished:" not in again, again
assert run("table", "quickstart", "--format", "csv") == before
print(f"quick start: {means}; the second time took {time.monotonic() - begun:.1f} s")
