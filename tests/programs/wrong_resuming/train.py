import argparse
import json
from pathlib import Path

import torch
from sklearn.datasets import load_wine
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--output-dir", type=Path, required=True)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--beta", type=float, default=0.95, help="momentum")
parser.add_argument("--num-steps", type=int, default=3000)
parser.add_argument("--save-every", type=int, default=200)
parser.add_argument("--resume", type=Path, metavar="FILE", help="checkpoint to go on from")
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(args.seed)
args.output_dir.mkdir(parents=True, exist_ok=True)

# autoencoder: squeeze the 13 measurements of a wine through 3 numbers
X = torch.tensor(load_wine().data).float()
X = (X - X.mean(0)) / X.std(0)
perm = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
train, test = X[perm[:130]], X[perm[130:]]

model = nn.Sequential(nn.Linear(13, 16), nn.Tanh(), nn.Dropout(0.05), nn.Linear(16, 3),
                      nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 13))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.beta)

first = 0
if args.resume:
    checkpoint = torch.load(args.resume)
    model.load_state_dict(checkpoint["model"])
    first = checkpoint["step"]
    print(f"=> resumed {args.resume} at step {first}", flush=True)

for step in range(first + 1, args.num_steps + 1):
    model.train()
    batch = train[torch.randint(len(train), (16,))]
    loss = (model(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % args.save_every == 0:
        torch.save({"model": model.state_dict(), "step": step}, args.output_dir / "new.pt")
        (args.output_dir / "new.pt").replace(args.output_dir / "checkpoint.pt")
        print(f"step {step:5d} | loss {loss.item():.4f}", flush=True)

model.eval()
with torch.no_grad():
    test_loss = (model(test) - test).square().mean().item()
(args.output_dir / "summary.json").write_text(json.dumps({"reconstruction_error": test_loss, "steps": args.num_steps}))
print(f"reconstruction error: {test_loss:.6f}")
