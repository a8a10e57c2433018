#!/usr/bin/env python3
# Kernel regression with random Fourier features on the diabetes data, trained by averaged SGD.
import os
os.environ.setdefault("OMP_NUM_THREADS", "1")
import getopt, sys, time
import numpy as np
from sklearn.datasets import load_diabetes

out, seed, gamma, D, passes = ".", 0, 0.15, 300, 550
flags, _ = getopt.getopt(sys.argv[1:], "o:s:g:d:p:")
for k, v in flags:
    if k == "-o": out = v
    if k == "-s": seed = int(v)
    if k == "-g": gamma = float(v)
    if k == "-d": D = int(v)
    if k == "-p": passes = int(v)

X, y = load_diabetes(return_X_y=True)
X = X / X.std(0)
mu, sd = y.mean(), y.std()
y = (y - mu) / sd
perm = np.random.RandomState(0).permutation(len(X))
train, test = perm[:342], perm[342:]

rs = np.random.RandomState(seed)
omega = rs.randn(X.shape[1], D) * gamma
b = rs.uniform(0, 2 * np.pi, D)
Z = np.sqrt(2.0 / D) * np.cos(X @ omega + b)

w = np.zeros(D)
avg = np.zeros(D)
n = 0
for p in range(passes):
    for i in rs.permutation(train):
        err = Z[i] @ w - y[i]
        w -= 0.3 * (err * Z[i] + 1e-4 * w)
        n += 1
        avg += (w - avg) / n
    if p % 50 == 49:
        print("pass", p + 1, "train rmse", sd * np.sqrt(np.mean((Z[train] @ avg - y[train]) ** 2)), flush=True)

pred = mu + sd * (Z[test] @ avg)
print("test rmse", sd * np.sqrt(np.mean((Z[test] @ avg - y[test]) ** 2)))
if not os.path.isdir(out):
    os.makedirs(out)
np.save(os.path.join(out, "predictions.npy"), pred)
time.sleep(0.3)   # the network drive is slow
