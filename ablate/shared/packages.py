"""Packages that only one feature needs, and the command that installs one beside what is there:
without constraints pip may replace the torch that all else was tried with."""

from __future__ import annotations

EXTRAS = {  # of pyproject.toml, but for `dev`: what needs it, and the packages
    "slurm": ("launcher=slurm", "submitit>=1.5.4"),
    "timm": ("model=timm:NAME", "timm>=1.0"),
    "text": ("texts by byte-pair encoding", "tokenizers>=0.20"),
    "tensorboard": ("logger=tensorboard", "tensorboard>=2.18"),
    "wandb": ("logger=wandb", "wandb>=0.22"),
    "mlflow": ("logger=mlflow", "mlflow-skinny>=3.9"),
}


def installing(extra: str) -> str:
    """Return the shell command that installs the packages of an extra."""
    return installing_package(EXTRAS[extra][1])


def installing_package(need: str) -> str:
    """Return the shell command that installs a package; `need`: as pip takes it."""
    return f"pip install -c \"$(ablate doctor --constraints)\" '{need}'"
