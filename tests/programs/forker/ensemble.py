"""Bagged logistic regressions on the breast cancer data, in two worker processes."""
import os
os.environ["OMP_NUM_THREADS"] = "1"      # the workers are the parallelism
import argparse, json, time
import multiprocessing as mp
import numpy as np
from sklearn.datasets import load_breast_cancer


def start_heartbeat(path, seconds=60):
    """Detached process; the lab's status page looks at the file."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)
    if os.fork():
        os._exit(0)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    end = time.time() + seconds
    with open(path, "w") as f:
        while time.time() < end:
            f.write(f"{os.getpid()} alive {time.time():.1f}\n")
            f.flush()
            time.sleep(0.5)
    os._exit(0)


def load():
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(0)) / X.std(0)
    perm = np.random.default_rng(0).permutation(len(X))
    return X[perm[:380]], y[perm[:380]], X[perm[380:]], y[perm[380:]]


def fit_one(job):
    member, seed, rate, rounds = job
    X, y, Xt, _ = load()
    rng = np.random.default_rng([seed, member])
    pick = rng.integers(len(X), size=len(X))
    w, c = 0.01 * rng.normal(size=X.shape[1]), 0.0
    for _ in range(rounds):
        b = rng.choice(pick, size=32)
        g = 1 / (1 + np.exp(-(X[b] @ w + c))) - y[b]
        w -= rate * (X[b].T @ g / len(b) + 1e-3 * w)
        c -= rate * g.mean()
    return member, 1 / (1 + np.exp(-(Xt @ w + c)))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--output", "-o", default="output")
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--rate", type=float, default=0.1)
    ap.add_argument("--rounds", type=int, default=6000)
    a = ap.parse_args()
    os.makedirs(a.output, exist_ok=True)
    start_heartbeat(os.path.join(a.output, "heartbeat.txt"))
    yt, probs = load()[3], {}
    with mp.Pool(2) as pool:
        for m, p in pool.imap_unordered(fit_one, [(m, a.seed, a.rate, a.rounds) for m in range(8)]):
            probs[m] = p
            print(f"member {m} done, accuracy {np.mean((p > 0.5) == yt):.4f}", flush=True)
    mean = np.mean([probs[m] for m in sorted(probs)], axis=0)
    nll = float(-np.mean(np.log(np.where(yt == 1, mean, 1 - mean) + 1e-12)))
    with open(os.path.join(a.output, "ensemble.json"), "w") as f:
        json.dump({"accuracy": float(np.mean((mean > 0.5) == yt)), "nll": nll}, f)
    print("ensemble nll", nll)
