"""The quick start's table is whole and says each of its words, each row by the spread that its
predictions tell; and again it trains nothing."""

import json
import subprocess
import sys
import time

WORDS = {
    "Dual PatchNorm": "helps",
    "RMSNorm in the blocks": "same within 2.5",
    "patch whitening": "hurts",
}

store = sys.argv[1]
ablate = [sys.executable.replace("python", "ablate")]


def run(*words: str) -> str:
    command = [*ablate, *words, "--store", store]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


before = run("table", "quickstart", "--format", "json")
[column] = json.loads(before)["columns"]
entries = column["entries"]
least, most = column["spreads"]  # told by predictions
assert 0.8 < least < most < 1.6, column["spreads"]
means = {entry["row"]: entry["accuracy"]["mean"] for entry in entries}
assert 89.0 <= means["plain ViT"] <= 96.0, means
assert all(80.0 <= mean <= 97.0 for mean in means.values()), means
words = {entry["row"]: entry["verdict"] for entry in entries if entry["row"] != "plain ViT"}
assert words == WORDS, words
begun = time.monotonic()
again = run("sweep", "quickstart")
assert "finished:" not in again, again
assert "Dual PatchNorm helps (+" in again, again
assert run("table", "quickstart", "--format", "json") == before
print(f"quick start: {means}; the second time took {time.monotonic() - begun:.1f} s")
