"""How a batch is made of a step's number: what is drawn, in which order, shown how."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from ablate.data import batches, image_changes
from ablate.data.augment import layout
from ablate.data.augment.crop import centre_boxes, resize_area
from ablate.data.augment.randaugment import tf_layer, tf_randaugment
from ablate.data.augment.warp import shake
from ablate.data.batches import Batches, evaluation_batches
from ablate.data.draws import Draws
from ablate.data.image_changes import BLOCK, ImageView, changes_of, in_blocks, normalise, shake_once
from ablate.data.splits import Split
from ablate.run.sections import Augment

NONE = Augment(flip=False, crop_pad=0)
ALL = {"crop_area": 0.3, "flip": True, "crop_pad": 1, "rotate": 20.0, "jitter": 0.4, "randaug": 2}


def noise(n, size=12, aspects=None):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, size, size, 3), generator=generator).to(torch.uint8)
    return Split(images, torch.arange(n), torch.ones(n) if aspects is None else aspects)


def changed(split, view, step=3, seed=0, **settings):
    spec = dataclasses.replace(NONE, **settings)
    return in_blocks(split.images, changes_of(split.aspects, spec, view, Draws(seed), step))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("style", ["tf", "timm"])
def test_each_change_is_drawn_by_seed_and_step_for_itself(name, style):
    def shown(**where):
        return changed(noise(40), ImageView(12), **where, **{name: ALL[name]}, style=style)

    assert torch.equal(one := shown(), shown())
    assert (one.shape, one.dtype) == (noise(40).images.shape, torch.uint8)
    assert not torch.equal(one, shown(step=4))
    assert not torch.equal(one, shown(seed=1))


def test_turning_one_change_on_moves_no_other():
    """RandAugment comes last: it is that of the images as they would be without it."""
    split, view = noise(40, 16), ImageView(12)
    for key in ("crop_area", "flip", "rotate", "jitter"):
        first = changed(split, view, **{key: ALL[key]})
        both = changed(split, view, **{key: ALL[key]}, randaug=2)
        spec = dataclasses.replace(NONE, randaug=2)
        after = in_blocks(first, changes_of(torch.ones(40), spec, view, Draws(0), 3))
        assert torch.equal(both, after)


def test_randaugment_has_the_operators_of_its_style():
    split = noise(200)
    got = changed(split, ImageView(12), randaug=2)
    numbers = Draws(0).uniform("randaug", 3, 8, 200).view(2, 4, 200)
    expected = tf_randaugment(split.images, [tf_layer(some, (12, 12), 10.0) for some in numbers])
    assert torch.equal(got, expected)
    assert not torch.equal(got, changed(split, ImageView(12), randaug=2, style="timm"))


def test_a_stored_square_is_shown_as_the_centre_of_what_it_was(tmp_path):
    """Against Pillow on the photograph itself: shorter side to 64, then the central 56."""
    rows, columns = np.mgrid[0:120, 0:180]
    photo = np.stack(
        [rows * 2, columns * 1.4, 127 + 90 * np.sin(rows / 20) * np.cos(columns / 30)], -1
    )
    photo = Image.fromarray(photo.astype(np.uint8))
    stored = np.asarray(photo.resize((96, 96), Image.Resampling.BOX))
    wanted = photo.resize((96, 64), Image.Resampling.BOX).crop((20, 4, 76, 60))

    def off(aspect):
        split = Split(torch.tensor(stored)[None], torch.zeros(1), torch.tensor([aspect]))
        [(shown, _)] = evaluation_batches(split, 8, ImageView(56, crop=0.875))
        assert shown.shape == (1, 56, 56, 3)
        return 127.5 * (shown[0] - normalise(torch.tensor(np.asarray(wanted)))).abs()

    assert off(1.5).max() < 10
    assert off(1.5).mean() < 2
    assert off(1.0).max() > 20


def test_training_without_a_crop_sees_the_same_centre():
    split, view = noise(5, 16, torch.tensor([1.0, 2.0, 0.5, 1.2, 0.9])), ImageView(8, crop=0.5)
    centre = resize_area(split.images, centre_boxes(split.aspects, 0.5), 8)
    assert torch.equal(changed(split, view), centre)
    images, labels = Batches(split, 5, NONE, Draws(0), view).at(0)
    assert torch.equal(images, normalise(centre[labels]))


def test_what_eight_bits_become():
    levels = torch.tensor([[0, 128, 255]], dtype=torch.uint8)
    every = torch.arange(256, dtype=torch.uint8)
    torch.testing.assert_close(normalise(every), torch.arange(256) / 127.5 - 1)
    assert normalise(levels)[0, ::2].tolist() == [-1.0, 1.0]
    assert normalise(levels, "unit").tolist() == [[0, pytest.approx(128 / 255), 1]]
    wanted = [(0 - 0.485) / 0.229, (128 / 255 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    assert normalise(levels, "imagenet")[0].tolist() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_an_image_stands_in_a_batch_as_often_as_it_is_repeated(repeats):
    spec = dataclasses.replace(NONE, repeats=repeats, jitter=0.4)
    batches = Batches(noise(40), 10, spec, Draws(0))
    seen = []
    for step in range(4):
        images, labels = batches.at(step)
        number, counts = labels.unique(return_counts=True)
        assert counts.max() == repeats
        assert len(number) == -(-10 // repeats)
        assert not (labels == labels.roll(1)).any()  # a neighbour is another image: mixup's partner
        seen += number.tolist()
        if repeats > 1:
            copies = images[labels == labels[0]]
            assert not torch.equal(copies[0], copies[1])  # each changed otherwise
    assert len(seen) == len(set(seen))


def test_mixing_is_of_the_step_and_keeps_the_sum_of_the_targets():
    spec = dataclasses.replace(NONE, mixup=0.8, cutmix=1.0)
    batches = Batches(noise(40), 10, spec, Draws(0))
    images, labels = batches.at(0)
    targets = torch.nn.functional.one_hot(labels, 40).float()
    shares = set()
    for step in range(12):
        mixed, soft = batches.mixed(images, targets, step)
        again, _ = batches.mixed(images, targets, step)
        assert torch.equal(mixed, again)
        torch.testing.assert_close(soft.sum(1), torch.ones(10))
        own, partner = soft[0, labels[[0, -1]]].tolist()
        assert own + partner == pytest.approx(1)
        shares.add(own)
    assert len(shares) > 8
    assert torch.equal(batches.at(0)[0], images)  # nothing was changed in place


def test_erasing_is_in_what_the_model_sees():
    specs = NONE, dataclasses.replace(NONE, erase=1.0)
    plain, erased = (Batches(noise(40), 40, spec, Draws(0)).at(0)[0] for spec in specs)
    share = (plain != erased).any(-1).flatten(1).float().mean(1)
    assert (share > 0).all()
    assert 0.02 < share.mean() < 0.35
    assert erased.abs().max() > 1.2  # normal noise, not pixels


def test_a_set_shaken_once_hangs_on_the_place_of_its_images_alone():
    spec = Augment(flip=False, crop_pad=0, rotate=20.0, translate=0.2, zoom_out=0.2)
    whole = noise(BLOCK + 30, 8)
    shaken = shake_once(whole, spec)
    assert torch.equal(shaken.labels, whole.labels)
    assert (shaken.images != whole.images).flatten(1).any(1).float().mean() > 0.95
    part = shake_once(whole.take(slice(0, BLOCK + 7)), spec)
    assert torch.equal(part.images, shaken.images[: BLOCK + 7])
    numbers = Draws(0).uniform("evaluation", 0, 7, 3)
    assert torch.equal(shaken.images[:3], shake(whole.images[:3], numbers, 20.0, 0.2, 0.2))
    assert shake_once(whole, NONE).images.equal(whole.images)


@pytest.mark.parametrize(
    "spec",
    [
        Augment(True, 3, style="timm", randaug=2, mixup=0.2, cutmix=1.0, erase=0.5),
        Augment(True, 0, style="tf", randaug=3, mixup=0.5),
        Augment(False, 0, rotate=20.0, translate=0.2, zoom_out=0.4, jitter=0.3),
    ],
    ids=["timm", "tf", "mnist"],
)
def test_a_step_that_waits_for_nothing_shows_the_same_bits(spec, monkeypatch):
    """As on a GPU: all images through all operators, and masks."""

    def shown():
        batches, seen = Batches(noise(300, 16), 60, spec, Draws(0)), []
        for step in (0, 1, 7, 2):
            images, labels = batches.at(step)
            seen += batches.mixed(images, torch.nn.functional.one_hot(labels, 300).float(), step)
        return seen

    by_groups = shown()
    monkeypatch.setattr(layout, "by_groups", lambda images: False)
    assert all(map(torch.equal, by_groups, shown()))


@pytest.mark.parametrize(
    "spec",
    [
        Augment(True, 3, style="timm", crop_area=0.3, randaug=2, erase=0.5),
        Augment(True, 0, style="tf", crop_area=0.1, randaug=3),
        Augment(False, 0, rotate=20.0, translate=0.2, zoom_out=0.4, jitter=0.3),
    ],
    ids=["timm", "tf", "mnist"],
)
@pytest.mark.parametrize("grouped", [True, False], ids=["cpu", "as on a GPU"])
def test_a_batch_is_changed_in_blocks_of_rows_to_the_same_bits(spec, grouped, monkeypatch):
    """RandAugment of 16,384 photographs at once would take 60 GB."""
    monkeypatch.setattr(layout, "by_groups", lambda images: grouped)
    aspects = torch.linspace(0.5, 2, 60)
    seen, show = [], batches.normalise

    def shown(input):
        view = ImageView(12, input)
        some = Batches(noise(60, 16, aspects), 60, spec, Draws(0), view)
        return [some.at(step)[0] for step in (0, 5)]

    def counted(images, input):
        seen.append(len(images))
        return show(images, input)

    monkeypatch.setattr(batches, "normalise", counted)
    for input in ("range", "imagenet"):
        monkeypatch.setattr(image_changes, "AT_ONCE", 1 << 26)
        whole = shown(input)
        monkeypatch.setattr(image_changes, "AT_ONCE", 16 * 16 * 3 * 25)
        parts = shown(input)
        assert all(map(torch.equal, whole, parts))
    assert seen == 2 * [60, 60, *2 * [25, 25, 10]]
