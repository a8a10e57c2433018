"""Planning 10,000 runs against what it would cost to compose them one by one, and planning on a
folder of 100,000 images against planning on one of 100.

python benchmarks/plan.py      about a minute
    aims: 1,000 variants x 10 seeds in under 20 composes' time; the folder again in under 2 CPU s

Three sweeps of 1,000 variants: rows that differ in values, in choices of groups, and a file that
writes every row out. The time is that of everything `ablate plan` does before the ledger: Hydra's
own start, reading the file, expansion, validation, ids. The compose is Hydra's, warm, of one run.

The folders are planned on by whole commands, in turns, whose CPU time counts, user and system: the
first reads every file (here of a few bytes), the later ones ask whether it is still the same.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from checks import COMMAND, HERE, cpu_s
from hydra import compose

from ablate.planning import expand
from ablate.planning.conf import hydra_on_conf
from ablate.run import choices


def seconds(call: Callable[[], object], repeats: int) -> float:
    """The median of some calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


IMAGES, FEW = 100_000, 100
AGAIN = 7


def folder_of_images(path: Path, number: int) -> None:
    """Files that planning can't tell from pictures: it hashes and does not decode them."""
    for split, classes in (("train", 90), ("test", 10)):
        for name in range(classes):
            folder = path / split / f"class{name:02d}"
            folder.mkdir(parents=True)
            for n in range(number // 100):
                (folder / f"image_{n:06d}.jpg").write_text(f"{split} {name} {n}")


def images() -> None:
    words = ["plan", "data=imagefolder", "data.size=8", "stem=none,dpn", "seeds=2"]

    def once(number: int) -> float:
        place = [f"data.path={Path(f'images-{number}').absolute()}", "--store", f"runs-{number}"]
        return cpu_s(HERE, COMMAND, *words, *place, folder=Path.cwd())

    took: dict[int, list[float]] = {}
    for number in (FEW, IMAGES):
        folder_of_images(Path(f"images-{number}"), number)
        time.sleep(3)  # what was written a moment ago is not remembered
        took[number] = []
        print(f"the first plan on {number:,} images: {once(number):.2f} s of CPU", flush=True)
    for _ in range(AGAIN):
        for number in (FEW, IMAGES):
            took[number].append(once(number))
    few, many = (statistics.median(took[number]) for number in (FEW, IMAGES))
    print(
        f"planning again: {few:.2f} s of CPU on {FEW:,} images, {many:.2f} s on {IMAGES:,}: "
        f"{many - few:.2f} s more (medians of {AGAIN}, least {min(took[IMAGES]):.2f} s, "
        f"most {max(took[IMAGES]):.2f} s; aim: 2)"
    )


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
    files = sweeps()
    with hydra_on_conf():
        one = seconds(lambda: compose("config", ["recipe=cifar", "stem=dpn"]), 15)
    print(f"one compose: {1000 * one:.0f} ms (median of 15)")
    for name, text in files.items():
        path = Path(f"{name}.yaml")
        path.write_text(text)

        def plan(path: Path = path) -> object:
            return expand.plan_from_words([str(path), "seeds=10"], store=Path("runs"))

        planned, _ = expand.plan_from_words([str(path), "seeds=10"], store=Path("runs"))
        took = seconds(plan, 5)
        runs = sum(1 for _ in planned.runs())
        print(
            f"{name}: {runs:,} runs of {len(planned.rows):,} variants in {took:.2f} s "
            f"= {took / one:.1f} composes"
        )
    images()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        main()
