"""Train a small tanh network on two spirals. Start it again with the same folder to go on after a crash."""
import os
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
import argparse, json, pickle, sys, time

import numpy as np


def write_atomically(path, data: bytes):
    with open(path + ".tmp", "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    os.replace(path + ".tmp", path)


def spirals(n, rng):
    label = rng.integers(2, size=n)
    r = rng.random(n) * 3 + 0.3
    angle = 2 * r + np.pi * label
    return np.stack([r * np.cos(angle), r * np.sin(angle)], 1) / 2 + 0.05 * rng.normal(size=(n, 2)), label * 2.0 - 1


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--folder", required=True)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--step-size", type=float, default=0.05)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--updates", type=int, default=30000)
opt = parser.parse_args()
settings = {k: v for k, v in vars(opt).items() if k != "folder"}

data_rng = np.random.default_rng(5)
(X, y), (X_test, y_test) = spirals(600, data_rng), spirals(400, data_rng)
os.makedirs(opt.folder, exist_ok=True)
ckpt = os.path.join(opt.folder, "checkpoint.pkl")
rng = np.random.default_rng(opt.seed)
if os.path.exists(ckpt):
    saved = pickle.load(open(ckpt, "rb"))
    if saved["settings"] != settings:
        sys.exit(f"{ckpt} was made with other settings: {saved['settings']}")
    step, P, M, curve, rng.bit_generator.state = (saved[k] for k in ("step", "P", "M", "curve", "rng"))
    print("continuing at update", step, flush=True)
else:
    step, curve = 0, []
    P = [rng.normal(size=(2, 40)), np.zeros(40), rng.normal(size=40) / 6, np.zeros(1)]
    M = [np.zeros_like(p) for p in P]
last = time.monotonic()
while step < opt.updates:
    b = rng.integers(len(X), size=32)
    h = np.tanh(X[b] @ P[0] + P[1])
    e = (h @ P[2] + P[3] - y[b]) / len(b)
    dh = np.outer(e, P[2]) * (1 - h * h)
    for p, m, g in zip(P, M, (X[b].T @ dh, dh.sum(0), h.T @ e, e.sum(keepdims=True))):
        m *= opt.momentum
        m -= opt.step_size * g
        p += m
    step += 1
    if step % 1000 == 0:
        curve.append(float(np.mean((np.tanh(X @ P[0] + P[1]) @ P[2] + P[3] - y) ** 2)))
        print(f"update {step} mse {curve[-1]:.5f}", flush=True)
    if time.monotonic() - last > 0.1 or step == opt.updates:
        state = {"settings": settings, "step": step, "P": P, "M": M, "curve": curve, "rng": rng.bit_generator.state}
        write_atomically(ckpt, pickle.dumps(state))
        last = time.monotonic()
out = np.tanh(X_test @ P[0] + P[1]) @ P[2] + P[3]
result = {"test_mse": float(np.mean((out - y_test) ** 2)), "test_acc": float(np.mean(np.sign(out) == y_test)), "curve": curve}
write_atomically(os.path.join(opt.folder, "result.json"), json.dumps(result).encode())
print("test mse", result["test_mse"])
