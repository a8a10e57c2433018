"""What is drawn at random: by a published generator, the same however it is asked for."""

from __future__ import annotations

import itertools
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from scipy import stats

from ablate.data import draws as keyed
from ablate.data.draws import MASK, Draws, draw_key, philox, uniform_of
from ablate.training.device import device_of
from ablate.training.model.drop import StepKey

# Random123, examples/kat_vectors of its 1.14: counter, key, the four words. (NumPy's Philox is
# 4x64 with another schedule, so no oracle for this one.)
PUBLISHED = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "secret", "expected"), PUBLISHED)
def test_philox_gives_the_published_words(counter, secret, expected):
    for shape in ((), (3,), (2, 5)):
        at = tuple(torch.full(shape, word) for word in words(counter))
        before = [word.clone() for word in at]
        for keys in (words(secret), [torch.full(shape, word) for word in words(secret)]):
            for got, wanted in zip(philox(at, tuple(keys)), words(expected), strict=True):
                assert got.shape == shape
                assert (got == wanted).all()
        assert all(map(torch.equal, at, before))


def one(purpose: str, block: int, row: int, step: int) -> list[int]:
    """The oracle of places: the counter spelled out, in Python's whole numbers."""
    c, (k0, k1) = [block, row, step, 0], (draw_key(7, purpose) & MASK, draw_key(7, purpose) >> 32)
    for _ in range(10):
        p, q = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(q >> 32) ^ c[1] ^ k0, q & MASK, (p >> 32) ^ c[3] ^ k1, p & MASK]
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c


def test_a_draw_hangs_on_its_place_alone():
    draws = Draws(7)
    got = draws.words("some", 5, range(2, 5), 6, steps=2)
    for i, row in itertools.product(range(2), range(3)):
        expected = [word for block in (0, 1) for word in one("some", block, 2 + row, 5 + i)]
        assert got[i, :, row].tolist() == expected[:6]
    lanes = draws.lanes("some", 5, range(2, 5), 21)
    for row in range(3):
        blocks = [one("some", block, 2 + row, 5) for block in range(3)]
        whole = [block[word] for word in range(4) for block in blocks]
        halves = [half for word in whole for half in (word & 0xFFFF, word >> 16)]
        signed = [half - (half >> 15 << 16) for half in halves]
        assert lanes[row].tolist() == signed[:21]


def test_the_order_is_that_of_64_bit_words():
    halves = [one("order", block, 0, 3) for block in range(5)]
    pairs = [h[:2] for h in halves] + [h[2:] for h in halves]
    signed = [(((a << 32) | b) ^ 1 << 63) for a, b in pairs][:9]
    assert Draws(7).order(3, 9).tolist() == sorted(range(9), key=signed.__getitem__)


def sites(masks: StepKey, *elements: str, **rates: float) -> StepKey:
    """The same, which has heard of sites of dropout and of stochastic depth."""
    for site in elements:
        masks.meet(site)
    for site, rate in rates.items():
        masks.meet(site, rate)
    return masks


def test_how_much_is_drawn_at_once_changes_no_draw(monkeypatch):
    def seen():
        draws = Draws(1)
        masks = sites(StepKey(draws, 12), "a", b=0.3)
        made = []
        for masks.step in (0, 1, 2, 300, 4, 3):
            made += [draws.uniform("crop", masks.step, 5, 12), draws.order(masks.step, 100)]
            made += [masks.dropped("a", (12, 3, 7), 9000), masks.kept("b")]
        return made

    first = seen()
    for chunk in (1, 7, 50):
        monkeypatch.setitem(keyed.CHUNK, "cpu", chunk)
        assert all(map(torch.equal, first, seen()))
    monkeypatch.setattr(keyed, "STEPS", 1)
    assert all(map(torch.equal, first, seen()))


def test_rows_of_a_batch_are_drawn_for_themselves():
    """A micro-batch makes its own share of a mask, and it is the whole one's."""
    masks = sites(StepKey(Draws(0), 10), "here", here=0.5)
    whole = masks.dropped("here", (10, 5, 6), 30_000)
    depth = masks.kept("here")
    for masks.rows in (slice(0, 4), slice(4, 8), slice(8, 12)):
        part = whole[masks.rows]
        assert torch.equal(masks.dropped("here", tuple(part.shape), 30_000), part)
        assert torch.equal(masks.kept("here"), depth[masks.rows])


def test_uniform_numbers_are_24_bits_below_one():
    got = uniform_of(torch.tensor([0, 255, 256, 0xFFFFFFFF]))
    assert got.tolist() == [0.0, 0.0, 2.0**-24, 1 - 2.0**-24]
    precise = Draws(0).precise("mix", 0, 1000)
    assert precise.dtype == torch.float64
    assert stats.kstest(precise[0], "uniform").pvalue > 0.01
    assert (precise * 2**53 == (precise * 2**53).floor()).all()


def test_draws_are_even_and_apart():
    draws = Draws(0)
    numbers = draws.uniform("crop", 0, 3, 30_000)
    joint = (numbers * 8).long()
    counts = (joint[0] * 64 + joint[1] * 8 + joint[2]).bincount(minlength=512)
    assert stats.chisquare(counts).pvalue > 0.01
    more = torch.stack([numbers[0], draws.uniform("crop", 1, 3, 30_000)[0],
                        draws.uniform("flip", 0, 3, 30_000)[0],
                        Draws(1).uniform("crop", 0, 3, 30_000)[0], numbers[0].roll(1)])  # fmt: skip
    assert (more.corrcoef() - torch.eye(5)).abs().max() < 4 / 30_000**0.5


def test_masks_are_even_over_elements_rows_sites_and_steps():
    masks, share = sites(StepKey(Draws(0), 512), "a", "b"), 6554
    shape = (512, 40, 3)
    first = masks.dropped("a", shape, share)
    others = [masks.dropped("b", shape, share)]
    masks.step = 1
    others.append(masks.dropped("a", shape, share))
    others += [first.roll(shift, axis) for shift, axis in ((1, 0), (1, 2), (2, 1), (1, 1))]
    expected = share / 65536
    for other in others:  # all four ways that two decisions can fall out
        both = (first.long() * 2 + other).flatten().bincount(minlength=4)
        p = torch.tensor([(1 - expected) ** 2, *[expected * (1 - expected)] * 2, expected**2])
        assert stats.chisquare(both, p.double().numpy() / p.sum().item() * first.numel(),
                               sum_check=False).pvalue > 0.002  # fmt: skip
    for axis in (0, 1, 2):  # no row, no place is dropped more often than others
        kept = first.movedim(axis, 0).flatten(1).sum(1).double()
        each = first.numel() // shape[axis]
        chi2 = ((kept - each * expected) ** 2).sum() / (each * expected * (1 - expected))
        assert stats.chi2(shape[axis]).sf(chi2.item()) > 0.002


@pytest.mark.parametrize("n", [1, 2, 5])
def test_every_order_is_as_likely(n):
    draws = Draws(0)
    seen = [tuple(draws.order(epoch, n).tolist()) for epoch in range(600)]
    counts = [seen.count(order) for order in itertools.permutations(range(n))]
    assert sum(counts) == 600
    assert stats.chisquare(counts).pvalue > 0.01 if n > 1 else counts == [600]


def drawn(device: torch.device) -> list[torch.Tensor]:
    """Some of all that can be drawn."""
    draws = Draws(3, device)
    made = [draws.order(2, 1000)]
    for dtype in (torch.float32, torch.bfloat16):
        masks = sites(StepKey(draws, 300, dtype), "a", b=0.3)
        for masks.step in (0, 1, 700):
            made += [draws.uniform("crop", masks.step, 5, 300), draws.precise("mix", masks.step, 9)]
            made += [draws.lanes("noise", masks.step, range(7, 250), 3000)]
            for masks.rows in (slice(None), slice(100, 200)):
                rows = len(range(300)[masks.rows])
                made += [masks.dropped("a", (rows, 5, 64), 9000), masks.kept("b")]
                x = torch.linspace(-3, 3, rows * 5 * 63, device=device).to(dtype).view(rows, 5, 63)
                x.requires_grad_()
                dropped = masks.dropout("a", x, 9000)
                dropped.square().sum().backward()
                made += [dropped.detach(), x.grad]
    return [one.cpu() for one in made]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch can use no GPU")
def test_a_gpu_draws_the_same_bits():
    """Its chunks are larger, and it divides otherwise."""
    assert all(map(torch.equal, drawn(torch.device("cpu")), drawn(device_of("cuda"))))


@pytest.mark.parametrize("change", ["none", "bits", "missing"])
def test_a_kernel_is_taken_if_its_bits_are_those_of_the_operations(change, monkeypatch):
    """The first use of a process decides; here the kernel is a stand-in, on a CPU."""

    def lanes(*place):
        if change == "missing":
            raise RuntimeError("no gcc")
        return Draws(0).lanes_by_operations(*place) ^ (change == "bits")

    stand_in = SimpleNamespace(lanes=lanes)
    monkeypatch.setitem(sys.modules, "ablate.data.philox_kernel", stand_in)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kernel = keyed.kernel_on.__wrapped__(torch.device("cpu"))
    assert kernel is (stand_in if change == "none" else None)
    assert len(caught) == (change != "none")
    if change == "missing":
        assert "no gcc" in str(caught[0].message)
