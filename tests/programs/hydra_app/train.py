import json
import logging
from pathlib import Path

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

log = logging.getLogger(__name__)


def build_model(cfg: DictConfig) -> nn.Module:
    m, d = cfg.model, cfg.data
    if m.name == "small":
        act = {"tanh": nn.Tanh, "relu": nn.ReLU}[m.activation]()
        return nn.Sequential(nn.Linear(d.n_features, m.hidden), act, nn.Linear(m.hidden, d.n_classes))
    layers, prev = [], m.input_dim
    for width in m.widths:
        layers += [nn.Linear(prev, width), nn.ReLU(), nn.Dropout(m.dropout)]
        prev = width
    return nn.Sequential(*layers, nn.Linear(prev, d.n_classes))


def build_optimizer(cfg: DictConfig, params):
    o = cfg.optim
    if o.name == "sgd":
        return torch.optim.SGD(params, lr=o.lr, momentum=o.momentum, nesterov=o.nesterov)
    return torch.optim.Adam(params, lr=o.lr, betas=tuple(o.betas), weight_decay=o.weight_decay)


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    log.info("run %s\n%s", cfg.run_name, OmegaConf.to_yaml(cfg, resolve=True))
    torch.set_num_threads(1)
    torch.manual_seed(cfg.seed)
    X, y = load_digits(return_X_y=True)
    Xtr, Xte, ytr, yte = train_test_split(X / 16.0, y, test_size=cfg.data.test_fraction, random_state=0)
    Xtr, Xte = torch.tensor(Xtr).float(), torch.tensor(Xte).float()
    ytr, yte = torch.tensor(ytr), torch.tensor(yte)
    model = build_model(cfg)
    opt = build_optimizer(cfg, model.parameters())
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(cfg.epochs):
        model.train()
        total = 0.0
        for idx in torch.randperm(len(Xtr)).split(cfg.batch_size):
            loss = loss_fn(model(Xtr[idx]), ytr[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item() * len(idx)
        log.info("epoch %2d  train loss %.4f", epoch + 1, total / len(Xtr))
    model.eval()
    with torch.no_grad():
        logits = model(Xte)
    results = {"test_loss": loss_fn(logits, yte).item(),
               "test_accuracy": (logits.argmax(1) == yte).float().mean().item(),
               "n_params": sum(p.numel() for p in model.parameters())}
    out = Path(HydraConfig.get().runtime.output_dir) / "results.json"
    out.write_text(json.dumps(results, indent=2))
    log.info("test accuracy %.4f, saved %s", results["test_accuracy"], out)


if __name__ == "__main__":
    main()
