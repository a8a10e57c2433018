"""One-hidden-layer MLP on the digits data, plain numpy."""
import argparse
import csv
import json
import os

import numpy as np
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--outdir", required=True)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--hidden", type=int, default=48)
parser.add_argument("--epochs", type=int, default=200)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--l2", type=float, default=1e-4)
parser.add_argument("--no-bias", action="store_true", help="leave the bias terms at zero")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

os.makedirs(args.outdir, exist_ok=True)
X, y = load_digits(return_X_y=True)
X = X / 16.0
order = np.random.default_rng(1234).permutation(len(X))   # the split is the same for every seed
tr, va, te = order[:1000], order[1000:1300], order[1300:]

rng = np.random.default_rng(args.seed)
W1 = rng.normal(0, np.sqrt(2 / 64), (64, args.hidden))
W2 = rng.normal(0, np.sqrt(2 / args.hidden), (args.hidden, 10))
b1, b2 = np.zeros(args.hidden), np.zeros(10)


def forward(x):
    h = np.maximum(x @ W1 + b1, 0)
    z = h @ W2 + b2
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return h, e / e.sum(axis=1, keepdims=True)


with open(os.path.join(args.outdir, "log.csv"), "w", newline="") as f:
    writer = csv.writer(f)
    writer.writerow(["epoch", "train_loss", "val_acc"])
    for epoch in range(1, args.epochs + 1):
        losses = []
        for batch in np.array_split(rng.permutation(tr), len(tr) // args.batch_size):
            x, t = X[batch], y[batch]
            h, p = forward(x)
            losses.append(-np.log(p[np.arange(len(t)), t] + 1e-12).mean())
            p[np.arange(len(t)), t] -= 1
            p /= len(t)
            dh = (p @ W2.T) * (h > 0)
            W2 -= args.lr * (h.T @ p + args.l2 * W2)
            W1 -= args.lr * (x.T @ dh + args.l2 * W1)
            if not args.no_bias:
                b2 -= args.lr * p.sum(0)
                b1 -= args.lr * dh.sum(0)
        val_acc = (forward(X[va])[1].argmax(1) == y[va]).mean()
        writer.writerow([epoch, f"{np.mean(losses):.6f}", f"{val_acc:.4f}"])
        f.flush()
        if epoch % 20 == 0:
            print(f"[{epoch:3d}/{args.epochs}] loss={np.mean(losses):.4f} val_acc={val_acc:.4f}", flush=True)

correct = forward(X[te])[1].argmax(1) == y[te]
np.save(os.path.join(args.outdir, "correct.npy"), correct)
with open(os.path.join(args.outdir, "final.json"), "w") as f:
    json.dump({"lr": args.lr, "hidden": args.hidden, "seed": args.seed,
               "train_loss": float(np.mean(losses)), "val_acc": float(val_acc), "test_acc": float(correct.mean())}, f, indent=1)
print("test acc:", round(float(correct.mean()), 4))
