"""Writes `store` beside this file: python tests/golden/write_store.py

Two rows of three seeds, all finished, their table read once. It has the one format that there is:
whoever changes that writes it again.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SWEEP = (
    *("block.attn=pre,post", "model.depth=1", "model.width=16", "model.heads=2"),
    *("train.steps=4", "train.batch=32", "seeds=3", "--as", "fixture"),
)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "ablate", "sweep", *SWEEP, "launcher=inline"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(HERE.parents[1])},
            check=True,
        )
        shutil.rmtree(HERE / "store", ignore_errors=True)
        (HERE / "store").mkdir()
        for name in ("ledger.db", "looks.jsonl", "runs", "sweeps"):  # without the digits, decoded
            shutil.move(Path(folder) / "runs" / name, HERE / "store" / name)


if __name__ == "__main__":
    main()
