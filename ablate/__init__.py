"""`ablate`: does this change to a Vision Transformer help, and how sure are we?

import ablate

sweep = ablate.Sweep("stem=none,dpn", data="digits", seeds=5).train()
print(sweep.table())
frame = ablate.Store("runs").sweep("quickstart").to_pandas()
"""

from __future__ import annotations

from ablate.version import __version__ as __version__

# Typing is long to import, and no Ctrl-C is ours to hear before `ablate.cli`. This is a call, since
# jedi, which completes names in notebooks, ignores a block under a constant False.
TYPE_CHECKING = bool(0)
if TYPE_CHECKING:
    from typing import Any

    from ablate.api import Design, Run, Store, Sweep, Table
    from ablate.shared import Failure, UserError

_ERRORS = ["Failure", "UserError"]
__all__ = ["Design", "Failure", "Run", "Store", "Sweep", "Table", "UserError"]


def __getattr__(name: str) -> Any:
    """The nouns, imported once they are asked for: `import ablate` takes no time."""
    if name in _ERRORS:
        from ablate import shared

        return getattr(shared, name)
    if name in __all__:
        from ablate import api

        api.explain_in_scripts()
        return getattr(api, name)
    raise AttributeError(f"module 'ablate' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The names that a shell completes."""
    return [*__all__, "__version__"]
