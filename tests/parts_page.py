"""Writes the drawing and the table of parts in docs/extending.md, from `parts.PART_KINDS`:
`python tests/parts_page.py`, with `.` and `tests` on the path."""

from __future__ import annotations

from dataclasses import dataclass

from conftest import REPOSITORY

from ablate.run.parts import PART_KINDS, PartKind

PAGE = "docs/extending.md"
BEGIN = "<!-- Written by tests/parts_page.py from the table of parts. -->"
END = "<!-- The end of what it writes. -->"
WIDTH = 92  # columns of the drawing
MARK = "▸"  # before the key of each door
KINDS = {kind.name: kind for kind in PART_KINDS}


@dataclass(frozen=True)
class Box:
    """A part that holds others."""

    name: str
    held: tuple[Box | str, ...]
    note: str = ""


# From image to weights: names of kinds, boxes, and steps that are no doors (with a colon).
LAYOUT: tuple[Box | str, ...] = (
    "images: of a training batch",
    "augmentation",
    Box(
        "model",
        (
            "stem",
            "posemb",
            "tokens: the class token and registers join the patches",
            Box(
                "block",
                (
                    "norm",
                    "attention branch: dense layers to q, k, v, and from the contexts",
                    "attention",
                    "MLP branch: two dense layers, and between them",
                    "activation",
                    "residuals: each branch is added to its input",
                ),
                "model.depth times",
            ),
            "head: last LayerNorm, pooling, dense to logits (B, classes)",
        ),
    ),
    "loss",
    "schedule",
    "optimizer",
    "probe",
)


def contract(kind: PartKind) -> str:
    """The call and its result in short: "(q, k, v) -> contexts (B, H, N, d) of the shape of q"."""
    return f"({kind.called}) -> {kind.returns.partition(';')[0]}"


def drawn(layout: tuple[Box | str, ...], width: int) -> list[str]:
    """The lines of a layout, each of this width."""
    lines = []
    for place in layout:
        if isinstance(place, Box):
            lines += framed(place, width)
        elif ":" in place:
            lines.append(f"  {place}")
        else:
            kind = KINDS[place]
            lines.append(f"{MARK} {kind.key:<17}{contract(kind)}")
    assert max(map(len, lines)) <= width, max(lines, key=len)
    return [f"{line:<{width}}" for line in lines]


def framed(box: Box, width: int) -> list[str]:
    """A box with its key and contract in its upper edge."""
    kind = KINDS[box.name]
    note = f", {box.note}" if box.note else ""
    edge = f"╭─ {MARK} {kind.key}{note}  {contract(kind)} "
    inner = drawn(box.held, width - 4)
    upper = f"{edge:─<{width - 1}}╮"
    return [upper, *(f"│ {line} │" for line in inner), f"╰{'─' * (width - 2)}╯"]


def drawing() -> str:
    """The way from image to weights, with the key of each door where it sits."""
    return "\n".join(line.rstrip() for line in drawn(LAYOUT, WIDTH))


def table() -> str:
    """A row for each kind, in the order of the drawing."""
    keys = {kind.key: kind for kind in PART_KINDS}
    marked = [word.partition(" ")[0].rstrip(",") for word in drawing().split(f"{MARK} ")[1:]]
    lines = [
        "| key | a class is built with | called as | returns | `ablate new` |",
        "|---|---|---|---|---|",
    ]
    for key in marked:
        kind = keys[key]
        given = [kind.built, *(name for name, _ in kind.passed)]
        built = f"`{', '.join(given)}`" if kind.built else "settings alone"
        call = f"`({kind.called})`" if kind.function else f"`{kind.method}({kind.called})`"
        anchor = kind.page.partition("#")[2]
        columns = (f"[`{key}`](#{anchor})", built, call, kind.returns, f"`{kind.name}`")
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines)


def written(page: str) -> str:
    """The page with the drawing and the table anew."""
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n```text\n{drawing()}\n```\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    path = REPOSITORY / PAGE
    path.write_text(written(path.read_text()))
