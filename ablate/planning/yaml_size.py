"""A YAML file, looked at before it is loaded."""

from __future__ import annotations

from pathlib import Path

from ablate.planning.overrides import MOST
from ablate.shared.errors import UserError

DEEP = 50  # levels of a file


def check_yaml(path: Path, place: str) -> None:
    """Raises UserError where loading the file would fill the memory or the stack: its aliases
    (`*name`) counted as what they stand for. Other mistakes are left to whoever loads it."""
    import yaml

    sizes: dict[str | None, int] = {}  # of whole nodes, by anchor
    open_nodes: list[tuple[str | None, int]] = [(None, 0)]
    try:
        for event in yaml.parse(path.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if isinstance(event, yaml.CollectionStartEvent):
                open_nodes.append((event.anchor, 1))
            elif isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
                anchor, size = getattr(event, "anchor", None), 1
                if isinstance(event, yaml.CollectionEndEvent):
                    anchor, size = open_nodes.pop()
                elif isinstance(event, yaml.AliasEvent):
                    if any(anchor == other for other, _ in open_nodes):
                        raise UserError(
                            f"{place}: the alias *{anchor} is inside its own anchor &{anchor}"
                        )
                    size = sizes.get(anchor, 1)
                sizes[anchor] = size
                above, so_far = open_nodes.pop()
                open_nodes.append((above, so_far + size))
            if len(open_nodes) > DEEP or open_nodes[-1][1] > MOST:
                raise UserError(
                    f"{place}: more than {MOST:,} values or {DEEP} levels, aliases (*name) expanded"
                )
    except (yaml.YAMLError, OSError):
        return
