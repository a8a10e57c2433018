"""What the constructor of a class of the user's own gives its parameters: values by seed and place.

Where the class stands in the model is known only once that is built. So an instance remembers how
it was made, and is made once more under a seed of its own; a norm added elsewhere moves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ablate.data.draws import key

AGAIN = "made_again_by"  # an attribute: makes an instance like this one


def remember(cls: Any, settings: Mapping[str, Any], *given: Any) -> Any:
    """An instance that remembers how it was made: `cls(*given, **settings)`."""
    again = partial(cls, *given, **settings)
    instance = again()
    if isinstance(instance, nn.Module):
        object.__setattr__(instance, AGAIN, again)
    return instance


class Constructed:
    """The values that constructors give to what is below each such instance of a model."""

    def __init__(self, model: nn.Module, seed: int) -> None:
        modules = model.named_modules()
        self.paths = {path: getattr(each, AGAIN) for path, each in modules if hasattr(each, AGAIN)}
        self._seed = seed
        self._fresh: dict[str, dict[str, Tensor]] = {}

    def value(self, name: str) -> Tensor | None:
        """What the constructor of the innermost such instance leaves in a parameter or buffer; None
        where there is no such instance, or it leaves memory as it finds it."""
        inside = [path for path in self.paths if name.startswith(f"{path}.")]
        if not inside:
            return None
        path = max(inside, key=len)
        if path not in self._fresh:
            self._fresh[path] = state(self.paths[path], key(self._seed, "init", path))
        value = self._fresh[path].get(name.removeprefix(f"{path}."))
        return None if value is None or bool(value.isnan().any()) else value


def state(again: Any, seed: int) -> dict[str, Tensor]:
    """Parameters and buffers of a new instance, on the CPU, after `reset_parameters()` if the class
    has one of its own. What nobody fills is NaN."""
    with torch.random.fork_rng([]), torch.device("cpu"), nan_where_empty():
        torch.manual_seed(seed)
        instance = again()
        lineage = type(instance).__mro__
        own = [
            cls for cls in lineage if cls.__module__.partition(".")[0] not in ("torch", "ablate")
        ]
        if any("reset_parameters" in vars(cls) for cls in own):
            torch.manual_seed(seed)
            instance.reset_parameters()
    tensors = (*instance.named_parameters(), *instance.named_buffers())
    return {name: tensor.detach() for name, tensor in tensors}


@contextmanager
def nan_where_empty() -> Iterator[None]:
    """Inside, `torch.empty` gives NaN: torch's own aid for finding what nobody fills."""
    mode, how = torch.get_deterministic_debug_mode(), torch.utils.deterministic
    fills = how.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.set_deterministic_debug_mode("warn")  # see numerics.deterministic_algorithms
    how.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        how.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
