"""Low-rank matrix completion by SGD, with a progress bar."""
import argparse
import pathlib
import sys
import time

import numpy as np


def bar(step, total, loss, start, width=40):
    done = int(width * step / total)
    spent = time.time() - start
    eta = spent / step * (total - step)
    sys.stdout.write(f"\r{100 * step / total:5.1f}% |{'█' * done}{' ' * (width - done)}| "
                     f"{step}/{total} [{spent:.1f}s<{eta:.1f}s, {step / max(spent, 1e-9):7.1f}it/s, loss={loss:.6f}]")
    sys.stdout.flush()


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("out", type=pathlib.Path)
    ap.add_argument("-r", "--rank", type=int, default=6)
    ap.add_argument("-e", "--eta", type=float, default=0.05)
    ap.add_argument("-n", "--steps", type=int, default=16000)
    ap.add_argument("-s", "--seed", type=int, default=1)
    a = ap.parse_args()

    data = np.random.default_rng(99)
    truth = data.normal(size=(120, 4)) @ data.normal(size=(4, 80)) / 2
    rows, cols = np.nonzero(data.random(truth.shape) < 0.3)
    values = truth[rows, cols] + 0.1 * data.normal(size=len(rows))

    rng = np.random.default_rng(a.seed)
    U = 0.3 * rng.normal(size=(120, a.rank))
    V = 0.3 * rng.normal(size=(80, a.rank))
    running, start = 1.0, time.time()
    for step in range(1, a.steps + 1):
        k = rng.integers(len(rows), size=64)
        i, j = rows[k], cols[k]
        u, v = U[i], V[j]
        err = (u * v).sum(1) - values[k]
        np.add.at(U, i, -a.eta * (err[:, None] * v + 0.01 * u))
        np.add.at(V, j, -a.eta * (err[:, None] * u + 0.01 * v))
        running = 0.99 * running + 0.01 * float(np.mean(err ** 2))
        bar(step, a.steps, running, start)
    print()

    a.out.mkdir(parents=True, exist_ok=True)
    np.savez(a.out / "factors.npz", U=U, V=V)
    print(f"RESULT loss={np.mean((U @ V.T - truth) ** 2):.8f}")


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")
    main()
