"""Planning 10,000 runs against what it would cost to compose them one by one.

python benchmarks/plan.py      about 10 s; aim: 1,000 variants x 10 seeds in under 20 composes' time

Three sweeps of 1,000 variants: rows that differ in values, in choices of groups, and a file that
writes every row out. The time is that of everything `ablate plan` does before the ledger: Hydra's
own start, reading the file, expansion, validation, ids. The compose is Hydra's, warm, of one run.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hydra import compose

from ablate.planning import expand
from ablate.planning.conf import hydra_on_conf
from ablate.shared import choices


def seconds(call: Callable[[], object], repeats: int) -> float:
    """The median of some calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def product(settings: dict[str, list[object]]) -> str:
    lists = ", ".join(f"{key}: [{', '.join(map(str, v))}]" for key, v in settings.items())
    return f"variants: [{{product: {{{lists}}}}}]\n"


def sweeps() -> dict[str, str]:
    """name -> a sweep file of 1,000 rows."""
    depths, rates = list(range(1, 26)), [n / 1000 for n in range(1, 41)]
    stub = choices.Choice("a stub", "-", "nowhere:Nothing")
    for table, kind in (
        (choices.NORMS, "norm"),
        (choices.STEMS, "stem"),
        (choices.BLOCKS, "block"),
    ):
        table.update({f"{kind}{n}": stub for n in range(10)})
    names = {kind: [f"{kind}{n}" for n in range(10)] for kind in ("norm", "stem", "block")}
    rows = [f"  - row {d} {r}: {{model.depth: {d}, optim.lr: {r}}}" for d in depths for r in rates]
    return {
        "values": product({"model.depth": [*depths], "optim.lr": [*rates]}),
        "groups": product({kind: [*options] for kind, options in names.items()}),
        "written out": "variants:\n" + "\n".join(rows) + "\n",
    }


def main() -> None:
    os.chdir(tempfile.mkdtemp())
    files = sweeps()
    with hydra_on_conf():
        one = seconds(lambda: compose("config", ["recipe=cifar", "stem=dpn"]), 15)
    print(f"one compose: {1000 * one:.0f} ms (median of 15)")
    for name, text in files.items():
        path = Path(f"{name}.yaml")
        path.write_text(text)

        def plan(path: Path = path) -> object:
            return expand.plan([str(path), "seeds=10"], store=Path("runs"))

        planned, _ = expand.plan([str(path), "seeds=10"], store=Path("runs"))
        took = seconds(plan, 5)
        runs = sum(1 for _ in planned.runs())
        print(
            f"{name}: {runs:,} runs of {len(planned.rows):,} variants in {took:.2f} s "
            f"= {took / one:.1f} composes"
        )


if __name__ == "__main__":
    main()
