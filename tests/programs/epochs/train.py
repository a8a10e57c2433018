"""Logistic regression that is trained too fast, so that its last epoch is rarely its best. It logs
an epoch a line, in the form of --log: csv, jsonl, tensorboard, lightning, nested or stderr."""

import argparse
import json
import os
import pickle
import sys
import time
from pathlib import Path

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path)
parser.add_argument("--log")
parser.add_argument("--lr", type=float, default=0.5)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--pause", type=float, default=0.0)
parser.add_argument("--resume", type=Path)
args = parser.parse_args()

draws = np.random.default_rng(args.seed)
x = draws.normal(size=(900, 12))
y = (x @ draws.normal(size=12) + draws.normal(scale=2, size=900)) > 0
parts = {"train": slice(0, 100), "val": slice(100, 500), "test": slice(500, 900)}


def append(name, text):
    with open(args.out / name, "a") as file:
        file.write(text)


def accuracy(w, part):
    return float(np.mean((x[parts[part]] @ w > 0) == y[parts[part]]))


w, first = np.zeros(12), 1
if args.resume is not None:
    w, first = pickle.loads(args.resume.read_bytes())
elif args.log == "csv":
    append("metrics.csv", "epoch,train_loss,val_acc,test/acc\n")
if args.log == "lightning":
    append("metrics.csv", "epoch,train_loss,val_acc,test/acc\n")
if args.log == "tensorboard":
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(args.out / "tb"))
for epoch in range(first, args.epochs + 1):
    for n in np.random.default_rng([args.seed, epoch]).integers(100, size=60):
        w = w + args.lr * (y[n] - 1 / (1 + np.exp(-np.clip(x[n] @ w, -30, 30)))) * x[n]
    loss = float(np.mean(np.log1p(np.exp(-np.clip((2 * y[:100] - 1) * (x[:100] @ w), -30, 30)))))
    val, test = accuracy(w, "val"), accuracy(w, "test")
    if args.log == "csv":
        append("metrics.csv", f"{epoch},{loss},{val},{test}\n")
    elif args.log == "lightning":  # a line for training, another for validation
        append("metrics.csv", f"{epoch},,{val},\n{epoch},{loss},,\n")
    elif args.log == "jsonl":
        line = {"epoch": epoch, "val": {"acc": val}, "test": {"acc": test}}
        append("metrics.jsonl", json.dumps(line) + "\n")
    elif args.log == "tensorboard":
        writer.add_scalar("val/acc", val, epoch)
        writer.add_scalar("test/acc", test, epoch)
        writer.flush()
    elif args.log == "stderr":
        print(f"epoch {epoch}: loss {loss:.4f}", flush=True)
        print(f"[INFO] test acc: {test:.6f}", file=sys.stderr, flush=True)
    (args.out / "new").write_bytes(pickle.dumps((w, epoch + 1)))
    os.replace(args.out / "new", args.out / "last.pkl")
    time.sleep(args.pause)
if args.log == "lightning":
    append("metrics.csv", f"{args.epochs + 1},,,{test}\n")
if args.log == "nested":
    (args.out / "result.json").write_text(json.dumps({"test": {"acc": test}, "test/loss": loss}))
