"""The `data` section of a run, completed from its files.

Used by `planning/compose.py`, for `ablate prepare` and every command that makes a plan.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.run import (
    BUNDLED,
    MASKS,
    PICTURES,
    Data,
    Listing,
    class_folders,
    data_fingerprint,
    dataset,
    list_local,
    local_splits,
    parse_slice,
    read_section,
    select_splits,
    split_folder,
)
from ablate.shared import UserError, count_text

MOST_NAMED = 3  # most sets in one line, and most folders with a line of their own
USES = {"test": "tests", "validation": "validates"}
NOT_SEEN = "was not seen"  # in notes on a set whose files were missing
BEHIND = chr(ord(os.sep) + 1)  # the character after os.sep: ends a folder's part of the name order


def complete(
    data: Any,
    memo: Path | None,
    notes: list[str],
    tested: bool = False,
    allow_missing: bool = False,
    prefix: str = "",
) -> dict[str, Any]:
    """Return the `data` section with what its files say: path, classes, splits, fingerprint.

    `tested`: nothing is learnt from the set, and only its `test` is read. `allow_missing`: a set
    that has to be fetched by hand may be missing, where its group knows how large it is; `notes`
    says so. `prefix`: before the keys of the section on a command line.

    `notes` also reports splits of the hub's set that local files lack, and that are cut anew;
    images that are not read; and how the images of a folder are split. Raises UserError for wrong
    keys and types, and for missing data.
    """
    if not isinstance(data, Mapping):
        raise UserError(f"data: expected settings (key: value), got {data!r}")
    if "fingerprint" in data:
        raise UserError("data.fingerprint: is computed; leave it out")
    filled = {**data, "fingerprint": ""}
    if "classes" in data and data["classes"] is None:
        filled["classes"] = 2  # a stand-in: they are counted below
    read_section(Data, filled, "data")  # before any file is looked at
    data = dict(data)
    if data["train"] is None and not tested:
        raise UserError(
            f"data.train: is null, so data={data['name']} can only be tested on; name it in "
            f"eval.also, or give a split to train on"
        )
    if data["path"] is not None:
        if data["source"] != "datasets":
            raise UserError(f"data.path: data={data['name']} is bundled and takes no path")
        if not data["path"]:  # which is no way to say the working folder
            place = f"{data['name']}:FOLDER" if tested else "data.path=FOLDER"
            raise UserError(f"data.path: expected a folder, got ''; give {place}")
        data["path"] = os.path.abspath(os.path.expanduser(data["path"]))
    texts = data.get("text") is not None
    listing = None
    if data["path"] is not None:
        corruptions = data.get("corruptions") if tested else None
        name = "" if tested else data["name"]  # its place is in eval.also
        listing = list_local(Path(data["path"]), name, texts, corruptions)
    if listing is not None:
        listing.check_table(data["label"])
        if _has_class_folders(data, listing) and listing.label_table is not None:
            _check_label_sets(data, listing, tested)
            # A folder without a name is known by its file alone.
            data["label"] = listing.label_table
    if tested and listing is not None and _has_class_folders(data, listing):
        data["classes"] = None  # of those that are learnt it may have some only
    if data["classes"] is None and not texts:
        data["classes"] = _folder_class_count(_folder(data, listing, "classes"))
    present = BUNDLED.get(data["source"])  # None: known only once the set is fetched
    lacks = data["source"] == "datasets" and data["path"] is None and data["hub"] is None
    is_missing = allow_missing and lacks and bool(data.get("rows"))
    if listing is not None:
        present = local_splits(listing)
        data["rows"] = None  # they are counted
    elif tested and lacks and not is_missing:
        raise UserError(f"needs the folder with its files; give {data['name']}:FOLDER")
    elif is_missing:
        present = sorted(data["rows"])
        _say(notes, _missing_note(data, tested, prefix))
        if texts and data["classes"] is None:
            data["classes"] = data["rows"][data["train"]]
    if tested:
        data |= {"train": None, "validation": None, "test": _tested(data, present)}
    for key in ("validation", "test"):
        if data[key] == "auto":
            if present is None:
                _folder(data, listing, key)  # says why it can't be
            data[key] = key if key in (present or ()) else 0.1
    if listing is not None and listing.kind == "folder":
        data |= _folder_settings(data, listing, present or ())
        if tested and _has_class_folders(data, listing):
            _check_test_split(data, listing, present or ())
    splits = _split_names(data)
    if data["path"] is not None and data["hub"] is not None and present is not None:
        missing = sorted(set(splits.values()) - set(present))
        # Slices of a permutation have their paper's sizes, which cutting anew would change.
        if missing and len(present) == 1 and data.get("order", "stored") == "stored":
            shares = {key: 0.1 for key in ("validation", "test") if key in splits}
            data = {**data, "train": present[0], **shares}
            note = (
                f"data={data['name']}: {data['path']} has only split {present[0]!r}: "
                f"{' and '.join(shares)} are cut from it, a tenth each; not the published split"
            )
            _say(notes, note)
    if present is not None:
        select_splits(data, present)
    if listing is not None and texts:
        data = _with_classes(data, listing, present or (), notes)
    for line in () if listing is None else _folder_lines(data, listing, present or ()):
        _say(notes, line)
    return {**data, "fingerprint": data_fingerprint(data, memo, listing, is_missing)}


def _split_names(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the stored splits that the section names, whole or in part."""
    return {
        key: parse_slice(key, data[key]).split
        for key in ("train", "validation", "test")
        if isinstance(data[key], str)
    }


def _folder_settings(
    data: Mapping[str, Any], listing: Listing, present: Sequence[str]
) -> dict[str, Any]:
    """Return the settings with which a data group fits a folder: `val` is what many call the
    folder of `validation`, and slices of class folders, which are read class by class, are taken
    of a permutation unless the section has an order."""
    settings: dict[str, Any] = {}
    splits = _split_names(data)
    for key, split in splits.items():
        if split == "validation" and split not in present and "val" in present:
            settings[key] = "val" + data[key].removeprefix(split)
    is_cut = any(data[key] != split for key, split in splits.items())
    if is_cut and "order" not in data and not (listing.path / MASKS).is_dir():
        settings["order"] = "keyed"
    return settings


def _check_test_split(data: Mapping[str, Any], listing: Listing, present: Sequence[str]) -> None:
    """Raise UserError where a folder that is only tested on has splits, and not the one to test."""
    split = parse_slice("test", data["test"]).split
    if split not in present:
        raise UserError(
            f"no split {split!r}, present: {', '.join(present)}; give the folder of a split, such "
            f"as {split_folder(listing.path, present[-1])}"
        )


def _has_class_folders(data: Mapping[str, Any], listing: Listing) -> bool:
    return listing.kind == "folder" and data.get("labels", "classes") == "classes"


def _folder_class_count(listing: Listing) -> int:
    """Return the number of classes of an image folder. Raises UserError for fewer than two."""
    classes_by_file = listing.classes_by_file()
    names = [*{*classes_by_file.values()}] if classes_by_file else class_folders(listing.path)
    if len(names) < 2:
        raise UserError(
            f"data.path: {listing.path}: expected a folder for each of at least two classes, found "
            f"{', '.join(names) or 'no folder'}"
        )
    return len(names)


def _check_label_sets(data: Mapping[str, Any], listing: Listing, tested: bool) -> None:
    """Raise UserError for a set whose images have several classes where it is learnt from, and
    where its table is not one of ReaL."""
    if not tested:
        raise UserError(
            f"data.path: {data['path']}: {listing.label_table} gives images several classes, so "
            f"they can only be tested on; name the folder in eval.also, or move the table out of it"
        )
    listing.label_sets()


def _with_classes(
    data: Mapping[str, Any], listing: Listing, present: Sequence[str], notes: list[str]
) -> dict[str, Any]:
    """Return the section of a set of images and texts, with its classes counted."""
    splits = select_splits(data, present)
    data = {"classes": None, "test_classes": None, **data}
    if data["classes"] is None:
        data["classes"] = _class_count(data, dataset.caption_classes(listing, splits, data["text"]))
    if data["test_classes"] is None:
        data["test_classes"] = dataset.test_classes(listing, data)
    if data["test_classes"] is None:
        _say(
            notes,
            f"data={data['name']}: test images are cut from the training table, so each is "
            f"classified among all {data['classes']:,} texts of the set; with a table test*.csv, "
            f"among the texts of that table",
        )
    return data


def _missing_note(data: Mapping[str, Any], tested: bool, prefix: str) -> str:
    rows = ", ".join(f"{number:,} of {split}" for split, number in data["rows"].items())
    place = f"eval.also=[{data['name']}:FOLDER]" if tested else f"{prefix}data.path=FOLDER"
    return f"data={data['name']} {NOT_SEEN}: its size is taken as {rows}; to train, give {place}"


def _folder_lines(
    data: Mapping[str, Any], listing: Listing, present: Sequence[str]
) -> Iterator[str]:
    """Yield notes on the images of a folder.

    They say which images are not read; how many there are to train, validate and test on, cut as
    `data.source.cut` does; and which other folders there are that no key names.
    """
    if listing.unread_note:
        yield f"data={data['name']}: {data['path']}: {listing.unread_note}"
    if listing.kind != "folder" or None in (data["train"], data["validation"]):
        return  # the worker counts; or the set is only tested on, or refused
    stored = {split: _images_in(listing, split) for split in present}
    names = {key: data[key] for key in ("train", "validation", "test")}
    slices = {key: parse_slice(key, name) for key, name in names.items() if isinstance(name, str)}
    counts = {key: len(part.rows(stored[part.split])) for key, part in slices.items()}
    total = counts["train"]
    for key, share in names.items():
        if key not in slices:
            counts[key] = share if isinstance(share, int) else max(1, round(share * total))
            counts["train"] -= counts[key]
    if (fraction := data.get("fraction", 1.0)) < 1:
        counts["train"] = max(1, round(fraction * counts["train"]))
    train, validation, test = (f"{counts[key]:,}" for key in names)
    yield (
        f"data={data['name']}: {data['classes']:,} classes; images: {train} to train on, "
        f"{validation} to validate on, {test} to test on"
    )
    used = {part.split for part in slices.values()}
    free = [key for key in USES if key not in slices] or [*USES]
    for split in [split for split in present if stored[split] and split not in used][:MOST_NAMED]:
        does = ", ".join(f"data.{key}={split} {USES[key]} on it" for key in free)
        yield (
            f"data={data['name']}: no key names the folder {split} ({stored[split]:,} images): "
            f"{does}"
        )


def _images_in(listing: Listing, split: str) -> int:
    """Return the number of images of a split, by bisection: the files are in name order."""
    masked = (listing.path / MASKS).is_dir()
    folder = listing.path / PICTURES / split if masked else split_folder(listing.path, split)
    start, stop = (bisect_left(listing.files, f"{folder}{end}") for end in (os.sep, BEHIND))
    return stop - start


def _class_count(data: Mapping[str, Any], texts: Sequence[str]) -> int:
    """Return the number of classes, which the texts are.

    Raises UserError for fewer than two, which leave nothing to tell apart.
    """
    if len(texts) < 2:
        raise UserError(
            f"data.text: each text is a class, and all rows of {data['path']} have the same "
            f"({texts[0]!r}); give two texts or more"
            if texts
            else f"data.text: {data['path']}: the tables have no rows"
        )
    return len(texts)


def _say(notes: list[str], note: str) -> None:
    if note not in notes:
        notes.append(note)


def ours(sets: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line on the sets of VTAB whose images are chosen by us (`data.order=keyed`), and one
    on other sets with such slices; [] without any.

    `sets`: `data` sections.
    """
    slices: dict[str, str] = {}  # one of each set
    for data in sets:
        names = [str(data[key]) for key in ("train", "validation", "test")]
        cuts = [name for name in names if "[" in name]
        if cuts and data.get("order", "stored") == "keyed":
            slices.setdefault(data["name"], cuts[0])
    lines = []
    if vtab := [name for name in slices if name.startswith("vtab_")]:
        lines.append(
            f"data.order=keyed: which images of {_some(vtab)} are learnt from and tested on is our "
            f"choice; VTAB takes slices of the order in which TFDS stores them"
        )
    if plain := [name for name in slices if name not in vtab]:
        lines.append(
            f"data.order=keyed: slices of {_some(plain)}, such as {slices[plain[0]]}, are of a "
            f"fixed permutation, so not the images of published slices, which are of the order of "
            f"their files"
        )
    return lines


def _some(names: Sequence[str]) -> str:
    rest = len(names) - MOST_NAMED
    suffix = f" and {count_text(rest, 'more set')}" if rest > 0 else ""
    return ", ".join(names[:MOST_NAMED]) + suffix


def _tested(data: Mapping[str, Any], present: Sequence[str] | None) -> str:
    """Return the split to test on: the set's own, or all images of a set that has none apart."""
    test = "test" if data["test"] == "auto" else data["test"]
    if not isinstance(test, str):  # cut from the training split, from which nothing is learnt
        return str(data["train"])
    if present is not None and parse_slice("test", test).split not in present:
        return present[0] if len(present) == 1 else test
    return test


def _folder(data: Mapping[str, Any], listing: Listing | None, key: str) -> Listing:
    if listing is None:
        data_fingerprint(dict(data))  # raises where files are needed in any case
        raise UserError(f"data.{key}: planning does not ask the hub; give data.{key}=VALUE")
    if key == "classes" and listing.kind != "folder":
        raise UserError(
            f"data.classes: {listing.path} holds no class folders to count; give data.classes=N"
        )
    return listing
