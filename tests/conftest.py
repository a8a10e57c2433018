"""Fixtures that several files of tests share."""

import importlib

import pytest
import torch


@pytest.fixture(scope="session")
def oracle():
    """Imports a test-only package, or skips: `oracle("timm.models.vision_transformer")`.

    timm imports torchvision, whose wheel declares its operators in a compiled file that only loads
    beside the torch build it was made for. Elsewhere two declarations are all that it misses.
    """
    libraries = []

    def load(module: str):
        try:
            importlib.import_module("torchvision")
        except ImportError:
            pass
        except RuntimeError:
            libraries.append(torch.library.Library("torchvision", "DEF"))
            for name in ("nms", "qnms"):
                schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                libraries[0].define(name + schema)
        return pytest.importorskip(module)

    return load
