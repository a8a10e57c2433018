"""VTAB's data: its label rules, its slices by a key instead of a stored order, its 19 sets."""

from __future__ import annotations

import io
import itertools
import tarfile
from pathlib import Path

import numpy as np
import pytest
from conftest import DATA, REPOSITORY, refused
from PIL import Image
from pyarrow import parquet
from sklearn.datasets import load_digits
from support.data_sections import DIGITS, MNIST5K, describe, real
from support.images import folders, noise, png, write_parquet, write_plain

from ablate.data import bundled_sets, cache, source, stored_set
from ablate.planning.compose import resolve_data, resolve_run
from ablate.run.build import build_run
from ablate.run.schema import field_types
from ablate.run.sections import Data

# --- Rules --------------------------------------------------------------------------------------

# As VTAB's table has them: a value, and its class.
CLEVR = [(0.5, 0), (8, 0), (8.01, 1), (8.5, 1), (8.51, 2), (9, 2), (9.01, 3), (9.5, 3), (9.51, 4)]
CLEVR += [(10, 4), (10.01, 5), (14.0, 5)]
KITTI = [(-1.0, 0), (8, 0), (8.01, 1), (20, 1), (20.01, 2), (999, 2), (999.5, 3)]


@pytest.mark.parametrize(("z", "number"), CLEVR)
def test_the_closest_object_s_depth_is_in_the_interval_that_ends_with_it(z, number):
    far = 99.0
    for value in (
        [far, z],
        [[1.0, 2.0, z], [5.0, 0.0, far]],
        {"pixel_coords": [[1.0, 2.0, far], [5.0, 0.0, z]], "color": [3, 4]},
        [{"pixel_coords": [0.0, 0.0, z]}, {"pixel_coords": [0.0, 0.0, far]}],
    ):
        assert stored_set.clevr_distance(value) == number


@pytest.mark.parametrize(("z", "number"), KITTI)
def test_the_closest_vehicle_is_a_car_a_van_or_a_truck(z, number):
    places = [[0.0, 0.0, 1.0], [9.0, 9.0, z], [0.0, 0.0, 1e5]]
    for kind in (0, 1, 2):
        assert stored_set.kitti_distance({"type": [3, kind, 0], "location": places}) == number
        things = zip([3, kind, 0], places, strict=True)
        rows = [{"type": kind, "location": place} for kind, place in things]
        assert stored_set.kitti_distance(rows) == number
    assert stored_set.kitti_distance({"type": [3, 7], "location": [[0.0, 0.0, z]] * 2}) == 3
    assert stored_set.kitti_distance([]) == 3


def test_counts_places_and_angles():
    assert [stored_set.clevr_count(count) for count in (3, 10)] == [0, 7]
    assert stored_set.clevr_count([[0.0, 0.0, 9.0]] * 5) == 2
    assert stored_set.clevr_count({"color": [1] * 4, "pixel_coords": [[0, 0, 9]] * 4}) == 1
    assert [stored_set.dsprites_position(n) for n in range(32)] == [
        n for n in range(16) for _ in "12"
    ]
    sizes = itertools.islice(itertools.cycle((3, 2)), 16)
    angles = [number for number, size in enumerate(sizes) for _ in range(size)]
    assert [stored_set.dsprites_orientation(n) for n in range(40)] == angles
    assert angles == np.floor(np.arange(40) / 2.5).tolist()


BAD = {
    "clevr_count": [2, 11, True, 3.0, "3", None, [1.0, 2.0]],
    "clevr_distance": [[], [float("nan")], [[1.0, 2.0]], ["8"], 8.0, None, {"color": [1]}],
    "kitti_distance": [0, None, {"type": [0]}, [{"type": "Car", "location": [0.0, 0.0, 5.0]}]],
    "dsprites_position": [32, -1, 1.0, None],
    "dsprites_orientation": [40, -1, [3], None],
}


@pytest.mark.parametrize(("rule", "value"), [(r, v) for r, values in BAD.items() for v in values])
def test_a_value_that_does_not_fit_a_rule_is_named_with_its_row(rule, value):
    classes = {"clevr_count": 8, "clevr_distance": 6, "kitti_distance": 4}.get(rule, 16)
    data = describe(hub="a/b", name="set", rule=rule, classes=classes)
    line = rf"^data\.label: row 3 of t\.parquet \(split 'train'\): data\.rule={rule} makes .*, got "
    with refused(line):
        source.class_number(data, "train", "row 3 of t.parquet", value)


def test_every_rule_has_a_name_among_the_settings():
    named = [*stored_set.RULES, *BAD]
    assert all(repr(name) in str(field_types(Data)["rule"]) for name in named)
    assert sorted(stored_set.RULES) == sorted(BAD)


def scenes(file: Path, depths: list[list[float]]) -> None:
    """As CLEVR's are stored: for each image the objects that it shows, field by field."""
    objects = [
        {"color": [1] * len(zs), "pixel_coords": [[10.0, 20.0, z] for z in zs]} for zs in depths
    ]
    write_plain(file, [png(noise(row)) for row in range(len(depths))], objects=objects)


def test_a_rule_makes_fewer_classes_than_the_column_names(tmp_path):
    places = [(7 * row) % 32 for row in range(30)]
    images = [png(noise(row)) for row in range(30)]
    write_parquet(tmp_path / "train.parquet", images, places, classes=32)
    slices = {"train": "train[:20]", "validation": "train[20:25]", "test": "train[25:]"}
    data = describe(path=tmp_path, rule="dsprites_position", classes=16, **slices)
    got = cache.prepare_cache(data, tmp_path / "cache").split("train").labels
    assert got.tolist() == [place // 2 for place in places[:20]]

    # TFDS's levels are 0 and 1, which would be black.
    black = [png(Image.fromarray(np.eye(8, dtype=np.uint8)))] * 30
    write_parquet(tmp_path / "train.parquet", black, places, classes=32)
    line = r"^data: row 0 of .*/train\.parquet: has levels 0 and 1 alone, .* with white as 255"
    for cached in ("decoded", "encoded"):
        data = describe(path=tmp_path, rule="dsprites_position", classes=16, cache=cached, **slices)
        with refused(line):
            cache.prepare_cache(data, tmp_path / "cache")


def test_classes_are_made_of_a_column_of_objects(tmp_path):
    draw = np.random.default_rng(1)
    depths = [draw.uniform(7, 12, draw.integers(3, 11)).tolist() for _ in range(60)]
    files = tmp_path / "files"
    scenes(files / "train.parquet", depths[:40])
    scenes(files / "test.parquet", depths[40:])
    slices = {"train": "train[:30]", "validation": "train[30:]", "cache": "encoded"}
    common = {"path": files, "label": "objects", "order": "keyed", **slices}
    count = describe(rule="clevr_count", classes=8, **common)
    distance = describe(rule="clevr_distance", classes=6, **common)
    stored = describe(rule="clevr_count", classes=8, **common | {"order": "stored"})
    assert len({count.fingerprint, distance.fingerprint, stored.fingerprint}) == 3
    of = {"train": depths[:40], "test": depths[40:]}
    cut = source.cut(count, {split: len(every) for split, every in of.items()})
    shown = {split: [of[there][row] for row in rows] for split, (there, rows) in cut.items()}
    bins = [8, 8.5, 9, 9.5, 10]
    for data, law in (
        (count, lambda zs: len(zs) - 3),
        (distance, lambda zs: int(np.digitize(min(zs), bins, right=True))),
    ):
        cached = cache.prepare_cache(data, tmp_path / "cache")
        for split, objects in shown.items():
            assert cached.split(split).labels.tolist() == list(map(law, objects))
    scenes(files / "test.parquet", [*depths[40:59], depths[0][:2]])
    with refused(r"row 19 of .*/test\.parquet \(split 'test'\): data\.rule="):
        cache.prepare_cache(describe(rule="clevr_count", classes=8, **common), tmp_path / "other")


# --- Order --------------------------------------------------------------------------------------

KEYED = {"hub": "a/b", "order": "keyed"}


def keyed(stored: int, **slices: str) -> dict[str, list[int]]:
    cut = source.cut(describe(**KEYED, **slices), {"train": stored, "test": 9})
    return {split: rows.tolist() for split, (_, rows) in cut.items()}


def test_keyed_slices_are_parts_of_one_permutation():
    parts = {"train": "train[:800]", "validation": "train[800:1000]", "test": "train[1000:]"}
    got = keyed(1880, **parts)
    assert [len(rows) for rows in got.values()] == [800, 200, 880]
    assert sorted(itertools.chain(*got.values())) == list(range(1880))
    assert all(rows == sorted(rows) for rows in got.values())
    # Golden: other rows here are other images than those of every result so far.
    assert got["train"][:6] == [5, 8, 9, 10, 11, 13]
    assert got["validation"][:6] == [0, 4, 27, 28, 32, 35]
    # The choice is spread evenly over the stored rows, and a smaller one is within a larger one.
    assert abs(np.mean(got["train"]) / 939.5 - 1) < 0.1
    fewer = keyed(1880, train="train[:400]", validation="train[1000:]", test="test")
    assert set(fewer["train"]) < set(got["train"])
    assert fewer["validation"] == got["test"]
    assert fewer["test"] == list(range(9))  # a whole split is what it is
    halves = keyed(1880, train="train[:940]", validation="train[940:]")
    assert keyed(1880, train="train[:50%]", validation="train[50%:]") == halves
    assert keyed(1881, **parts)["train"] != got["train"]  # it hangs on the number of rows


def test_slices_that_share_images_are_refused_in_either_order():
    for order in ("stored", "keyed"):
        for val, shared in (("train[700:900]", 100), ("train[700:]", 100), ("train[-1800:]", 720)):
            data = describe(hub="a/b", order=order, train="train[:800]", validation=val)
            line = rf"^data\.validation: .* share {shared} images of split 'train'"
            with refused(line):
                source.cut(data, {"train": 1880, "test": 9})


def test_folders_read_class_by_class_show_all_classes_by_a_key(tmp_path):
    folders(tmp_path / "images", "abcdef", 10)
    slices = {"train": "train[:40]", "validation": "train[40:50]", "test": "train[50:]"}
    common = {"path": tmp_path / "images", "classes": 6, **slices}
    with refused(r"^data\.train: folders are .* lacks 2 of the classes .*, or data\.order=keyed$"):
        cache.prepare_cache(describe(**common), tmp_path / "cache")
    enough = describe(**common | {"train": "train[:51]", "validation": "train[51:]", "test": 2})
    assert cache.prepare_cache(enough, tmp_path / "cache").counts["train"] == 49
    cached = cache.prepare_cache(describe(order="keyed", **common), tmp_path / "cache")
    assert cached.counts == {"train": 40, "validation": 10, "test": 10}
    assert len(set(cached.split("train").labels.tolist())) == 6
    # As few as that may lack some, as 800 images of SUN397's 397 classes do.
    few = {"train": "train[:4]", "validation": "train[4:50]"}
    cached = cache.prepare_cache(describe(order="keyed", **common | few), tmp_path / "cache")
    assert len(set(cached.split("train").labels.tolist())) <= 4


@pytest.mark.parametrize("folder", ["val", "validation"])
def test_the_usual_folder_of_imagenet_is_read_as_it_is(tmp_path, folder):
    """Tests on `val`, and slices of `train` that have all classes."""
    for split, number in (("train", 40), (folder, 2)):
        folders(tmp_path / "images" / split, "abcdef", number)
    words = ["data=imagenet1k", f"data.path={tmp_path / 'images'}", "data.classes=6"]
    tree, notes = resolve_data("imagenet1k", words[1:], tmp_path / "runs")
    data = Data(**tree["data"])
    assert (data.train, data.validation) == ("train[:99%]", "train[99%:]")
    assert (data.test, data.order) == (folder, "keyed")
    stored = [*words, "recipe=augreg", "model.arch=Ti/16", "data.order=stored"]
    assert build_run(resolve_run(stored, tmp_path / "runs")[0]).data.order == "stored"
    [said] = [note for note in notes if "keyed" in note]
    assert "train[:99%]" in said
    assert "VTAB" not in said
    cached = cache.prepare_cache(data, tmp_path / "cache")
    assert cached.counts == {"train": 238, "validation": 2, "test": 12}
    assert set(cached.split("train").labels.tolist()) == {*range(6)}
    assert np.bincount(cached.split("test").labels).tolist() == [2] * 6


def class_sizes(path: Path, **settings) -> dict[str, list[int]]:
    """The images of each class by split, as `source.cut` has them of class folders."""
    data = describe(order="keyed", path=path, **settings)
    opened = source.open_source(data)
    labels = {split: [label for _, label in part.labels()] for split, part in opened.parts.items()}
    return {
        split: np.bincount(np.array(labels[stored])[rows], minlength=data.classes).tolist()
        for split, (stored, rows) in source.cut(data, source.rows(data)).items()
    }


def test_keyed_shares_of_class_folders_are_cut_within_classes(tmp_path):
    sizes = {"a": 200, "b": 100, "c": 20, "d": 3}
    for name, number in sizes.items():
        folders(tmp_path / "images", name, number)
    common = {"path": tmp_path / "images", "classes": 4}
    cut = class_sizes(
        **common, train="train[:90%]", validation="train[90%:95%]", test="train[95%:]"
    )
    assert [sum(counts) for counts in cut.values()] == [291, 16, 16]  # as `plan` counts them
    for name, share in (("train", 0.9), ("validation", 0.05), ("test", 0.05)):
        expected = [share * number for number in sizes.values()]
        np.testing.assert_allclose(cut[name], expected, atol=1.5)
    shares = class_sizes(**common, train="train", validation=0.1, test=32)
    assert shares["validation"][:3] == [20, 10, 2]
    assert np.ptp(np.array(shares["test"][:3]) / [200, 100, 20]) < 0.06


@real
def test_real_images_are_chosen_by_a_key(tmp_path):
    """CIFAR-10's, by the parquet file as pyarrow reads it."""
    slices = {"train": "train[:80]", "validation": "train[80:100]", "test": "test[:50]"}
    settings = {"name": "cifar10", "path": DATA / "cifar10", "size": 32, "classes": 10}
    data = describe(order="keyed", **settings, **slices)
    cached, cut = (
        cache.prepare_cache(data, tmp_path),
        source.cut(data, {"train": 50_000, "test": 10_000}),
    )
    for split, (stored, rows) in cut.items():
        table = parquet.read_table(DATA / "cifar10" / f"{stored}.parquet", columns=["label"])
        expected = table["label"].to_numpy()[rows]
        np.testing.assert_array_equal(cached.split(split).labels, expected)


@pytest.mark.parametrize("order", ["stored", "keyed"])
@pytest.mark.parametrize("base", [DIGITS, MNIST5K], ids=["digits", "mnist5k"])
def test_bundled_sets_have_slices_too(tmp_path, base, order):
    ends = ("train[:800]", "train[800:1000]", "train[1000:]")
    slices = dict(zip(("train", "validation", "test"), ends, strict=True))
    data = describe(**base | slices | {"order": order})
    cached = cache.prepare_cache(data, tmp_path)
    stored = sum(cached.counts.values())
    assert cached.counts == {"train": 800, "validation": 200, "test": stored - 1000}
    assert stored == (1797 if base["name"] == "digits" else 4000)
    assert cached.counts == cache.count_examples(data, tmp_path / "other")
    if base["name"] == "digits":
        rows = source.cut(data, {"train": 1797})["validation"][1]
        assert cached.split("validation").labels.tolist() == load_digits().target[rows].tolist()
        assert (rows.tolist() == list(range(800, 1000))) == (order == "stored")


SEGMENT = ["task=segment", "recipe=segment", "model.arch=B/16", "data=ade20k"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["data=digits", "data.order=random"], "data.order: expected one of stored, keyed"),
        (["data=digits", "data.rule=clevr"], "data.rule: expected .*clevr_count, .*kitti_distance"),
        (["data=digits", "data.rule=clevr_count"], "data.rule: clevr_count makes classes .*digits"),
        (["data=coloured_digits", "data.label=colour"], "data.label: .* the label digit, .*colour"),
        (["data=imagetext", "data.path=.", "data.order=keyed"], "data.order: keyed is for images"),
        ([*SEGMENT, "data.rule=clevr_count"], "data.rule: is for images without masks"),
    ],
)
def test_what_does_not_go_together_is_refused(here, words, line):
    Path("train.csv").write_text("path,text\na.png,one\nb.png,two\n")
    texts = ["task=contrastive", "recipe=lit"] if "data=imagetext" in words else []
    with refused(f"^{line}"):
        resolve_run([*words, *texts], Path("store"))


# --- Coloured digits ----------------------------------------------------------------------------


@pytest.mark.whole
def test_coloured_digits_are_a_set_of_ten_classes_by_their_digit(tmp_path):
    slices = {"train": "train[:800]", "validation": "validation[:200]", "test": "seen"}
    common = {"name": "coloured_digits", "source": "coloured", **slices, "order": "keyed"}
    by_digit = describe(label="digit", classes=10, **common)
    by_caption = describe(classes=100, **common)
    assert by_digit.fingerprint != by_caption.fingerprint
    ours, theirs = (cache.prepare_cache(data, tmp_path) for data in (by_digit, by_caption))
    assert ours.class_names == list(bundled_sets.NUMBERS)
    assert (ours.counts["train"], ours.counts["validation"]) == (800, 200)
    shown = load_digits().target
    names = ("train", "validation", "seen")
    places = {split: bundled_sets.rows(split, shown) for split in names}
    chosen = source.cut(by_digit, {split: len(rows) for split, rows in places.items()})
    for split, (stored, rows) in chosen.items():
        digits = [shown[places[stored][row][0]] for row in rows]
        assert ours.split(split).labels.tolist() == digits
        captions = [theirs.class_names[number] for number in theirs.split(split).labels.tolist()]
        assert [bundled_sets.NUMBERS.index(text.split()[-1]) for text in captions] == digits
        assert (ours.split(split).images == theirs.split(split).images).all()
    with refused(r"data\.classes: 100, but .* has 10 classes: zero"):
        source.open_source(describe(label="digit", classes=100, **common))


# --- The 19 sets --------------------------------------------------------------------------------

# VTAB's table: classes, slices of TFDS's splits, test images; and our hub copies where they differ.
SETS: dict[str, tuple[int, str, str, str, int]] = {
    "caltech101": (102, "train[:800]", "train[2754:2954]", "test", 6084),
    "cifar100": (100, "train[:800]", "train[45000:45200]", "test", 10_000),
    "dtd": (47, "train[:800]", "validation[:200]", "test", 1880),
    "flowers102": (102, "train[:800]", "validation[:200]", "test", 6149),
    "pets": (37, "train[:800]", "train[2944:3144]", "test", 3669),
    "sun397": (397, "train[:800]", "validation[:200]", "test", 21_750),
    "svhn": (10, "train[:800]", "train[65931:66131]", "test", 26_032),
    "camelyon": (2, "train[:800]", "validation[:200]", "test", 32_768),
    "eurosat": (10, "train[:800]", "train[16200:16400]", "train[21600:]", 5400),
    "resisc45": (45, "train[:800]", "train[18900:19100]", "train[25200:]", 6300),
    "retinopathy": (5, "train[:800]", "train[800:1000]", "test", 42_670),  # no validation split
    "clevr_count": (8, "train[:800]", "train[63000:63200]", "test", 15_000),  # its validation
    "clevr_distance": (6, "train[:800]", "train[63000:63200]", "test", 15_000),
    "dmlab": (6, "train[:800]", "validation[:200]", "test", 22_735),
    "kitti": (4, "train[:800]", "validation[:200]", "test", 711),
    "dsprites_position": (16, "train[:800]", "train[589824:590024]", "train[663552:]", 73_728),
    "dsprites_orientation": (16, "train[:800]", "train[589824:590024]", "train[663552:]", 73_728),
    "smallnorb_azimuth": (18, "train[:800]", "test[:200]", "test[50%:]", 12_150),
    "smallnorb_elevation": (9, "train[:800]", "test[:200]", "test[50%:]", 12_150),
}


def test_vtab_has_nineteen_sets():
    shipped = REPOSITORY / "conf" / "data"
    assert {path.stem for path in shipped.glob("vtab_*.yaml")} == {f"vtab_{name}" for name in SETS}


@pytest.mark.parametrize("name", SETS)
def test_a_set_of_vtab_plans_offline_and_says_whose_choice_its_images_are(name, tmp_path):
    classes, *slices, tested = SETS[name]
    tree, notes = resolve_data(f"vtab_{name}", [], tmp_path)
    data = Data(**tree["data"])
    assert [data.classes, data.train, data.validation, data.test] == [classes, *slices]
    assert (data.size, data.channels, data.cache, data.order) == (224, 3, "encoded", "keyed")
    assert data.rule in (None, *stored_set.RULES)
    assert cache.count_examples(data, tmp_path) == {"train": 800, "validation": 200, "test": tested}
    [said] = notes
    assert said.startswith(f"data.order=keyed: which images of vtab_{name} are learnt from and ")
    assert "VTAB" in said

    (files := tmp_path / "files").mkdir()
    for split in {text.partition("[")[0] for text in slices}:
        (files / f"{split}.parquet").write_bytes(split.encode())  # read for their hash alone
    there, notes = resolve_data(f"vtab_{name}", [f"data.path={files}"], tmp_path)
    assert notes == [said]
    same = {**there["data"], "path": None, "fingerprint": ""}
    assert same == {**tree["data"], "fingerprint": "", "rows": None}  # counted in the files


@pytest.mark.parametrize("name", ["dtd", "pets"])
def test_files_in_tfds_order_are_another_set_and_lacking_splits_are_not_cut_anew(name, tmp_path):
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.parquet").write_bytes(split.encode())
    words = [f"data.path={tmp_path}"]
    keyed, _ = resolve_data(f"vtab_{name}", words, tmp_path)
    stored, notes = resolve_data(f"vtab_{name}", [*words, "data.order=stored"], tmp_path)
    assert notes == []
    assert stored["data"]["fingerprint"] != keyed["data"]["fingerprint"]
    (tmp_path / "test.parquet").unlink()
    (tmp_path / "validation.parquet").unlink()
    with refused(rf"no split '\w+' in data=vtab_{name}; present: train"):
        resolve_data(f"vtab_{name}", words, tmp_path)


def test_the_hub_s_tar_files_are_read(tmp_path, monkeypatch):
    """By `datasets`, as vtab_retinopathy has them; in a folder of ours they are not."""
    import datasets

    files = {split: str(tmp_path / f"{split}-0.tar") for split in ("train", "test")}
    for split, number in (("train", 9), ("test", 4)):
        with tarfile.open(files[split], "w") as tar:
            for row in range(number):
                for suffix, content in (("webp", png(noise(row))), ("cls", b"%d" % (row % 5))):
                    entry = tarfile.TarInfo(f"s{row:04}.{suffix}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))
    stored = datasets.load_dataset("webdataset", data_files=files, cache_dir=str(tmp_path / "hf"))
    monkeypatch.setattr(datasets, "load_dataset", lambda name, revision: stored)
    slices = {"train": "train[:6]", "validation": "train[6:]", "label": "cls"}
    data = describe(hub="a/b", classes=5, cache="encoded", **slices)
    cached = cache.prepare_cache(data, tmp_path / "cache")
    assert cached.split("train").labels.tolist() == [0, 1, 2, 3, 4, 0]
    assert cached.split("test").labels.tolist() == [0, 1, 2, 3]
    with refused("holds neither"):
        describe(path=tmp_path)
