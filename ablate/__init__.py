"""`ablate`: does this change to a Vision Transformer help, and how sure are we?

import ablate

sweep = ablate.Sweep("stem=none,dpn", data="digits", seeds=5).train()
print(sweep.table())
frame = ablate.Store("runs").sweep("quickstart").to_pandas()
"""

from __future__ import annotations

from ablate.version import __version__ as __version__

TYPE_CHECKING = False  # typing is long to import, and no Ctrl-C is ours to hear before `ablate.cli`
if TYPE_CHECKING:
    from typing import Any

    from ablate.api import Design, Run, Store, Sweep, Table

__all__ = ["Design", "Run", "Store", "Sweep", "Table"]


def __getattr__(name: str) -> Any:
    """The nouns, imported once they are asked for: `import ablate` takes no time."""
    if name in __all__:
        from ablate import api

        return getattr(api, name)
    raise AttributeError(f"module 'ablate' has no attribute {name!r}")
