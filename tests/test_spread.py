"""The spread of gains: its definition in the slowest way, and exact facts."""

import math

import numpy as np
import pytest
from scipy import stats as oracle
from simulation import family

from ablate.analysis import stats
from ablate.analysis.stats import ImageFlips

# --- The definition, by hand ---------------------------------------------------------------------


def by_hand(y, x):
    """docs/statistics.md, step by step, for one table y (R, n), x (R, n, N): v, df, and which rows
    are judged by their own spread, by row; whether the baseline is out of line."""
    rows, n, size = x.shape
    unit, everyone = (100 / size) ** 2, range(rows)
    z = [[x[r, s] - sum(x[r, t] for t in range(n)) / n for s in range(n)] for r in everyone]
    m = np.zeros((rows, rows))
    for r in everyone:
        for q in everyone:
            m[r, q] = sum(float(z[r][s] @ z[q][s]) for s in range(n)) / (n - 1)
            m[r, q] = unit * (m[r, q] + (0.25 if r == q else 0))
    f, d, shift, few = (np.zeros(rows) for _ in range(4))
    own_flips = [np.var(x[r], axis=0, ddof=1) for r in everyone]
    for r in everyone:
        flips = np.var(x[r] - x[0], axis=0, ddof=1)
        f[r] = unit * (flips.sum() + 0.25)
        d[r] = 2 * (flips.sum() + 0.25) ** 2 / (sum(flips**2) + 1 / 16)
        shift[r] = 100 * (own_flips[r].sum() + 0.25) / size
        total = own_flips[r].sum() + own_flips[0].sum()
        few[r] = total**2 < 4 * (sum(own_flips[r] ** 2) + sum(own_flips[0] ** 2))
    w = np.zeros((rows, rows))
    for r in everyone:
        for q in everyone:
            kappa = min(max(m[r, q] / math.sqrt(m[r, r] * m[q, q]), 0), 1)
            w[r, q] = shift[r] * shift[q] * (1 if r == q else 1 - (1 - kappa) ** 2)
    wide = [max(0, w[r, r] + w[0, 0] - 2 * w[r, 0]) for r in everyone]
    c = np.cov(y)

    def of(some):
        """A, u2, V, the variance of u2 and df, by the squares of these rows."""
        weights = np.array([(r in some) / m[r, r] for r in everyone])
        a = np.diag(weights) - np.outer(weights, weights) / weights.sum()
        u2 = max(0, (np.trace(a @ c) - np.trace(a @ m)) / np.trace(a @ w))
        v = m + u2 * w
        squares = np.trace(a @ v @ a @ v)
        error = 2 * squares / ((n - 1) * np.trace(a @ w) ** 2)
        return a, u2, v, error, (n - 1) * np.trace(a @ v) ** 2 / squares

    a, _, v, _, df = of(everyone)
    ratios = [(a @ c @ a)[r, r] / (a @ v @ a)[r, r] for r in everyone]
    own = {r for r in everyone if r and ratios[r] > oracle.f.ppf(0.95, n - 1, df)}
    left = {r for r in everyone if r and ratios[r] > oracle.f.ppf(0.999, n - 1, df)}
    kept = [r for r in everyone if r and r not in left]
    _, u2_v, v, error_v, df = of(kept)
    b = np.array([1 if not r else -(r in kept) / m[r, r] for r in everyone])
    b[1:] /= sum(1 / m[r, r] for r in kept)
    seen, expected = b @ c @ b, b @ v @ b
    level = 0.90 if n < 5 else 0.95
    tripped = len(kept) >= 2 and seen > oracle.f.ppf(level, n - 1, df) * expected
    _, u2, _, error, _ = of([0, *kept])
    more = more_0 = 0.0
    if tripped:
        u2, error, more, more_0 = u2_v, error_v, max(0, seen - expected), seen
    plain = plain_by_hand(y)
    found = []
    for r in range(1, rows):
        total = f[r] + u2 * wide[r] + more
        noise = 2 * f[r] ** 2 / d[r] + wide[r] ** 2 * error + 2 * more_0**2 / (n - 1)
        degrees = 2 * total**2 / noise
        if few[r]:
            found.append(plain[r - 1])
        elif r in own or degrees < n - 1:
            found.append((max(np.var(y[r] - y[0], ddof=1), f[r]), n - 1, True))
        else:
            found.append((total, degrees, False))
    return found, tripped, few


def plain_by_hand(y):
    """Without images: v, df, own, by variant."""
    rows, n = y.shape
    s = [np.var(row, ddof=1) for row in y]
    own, left = set(), set()
    for r in range(1, rows):
        others = np.mean([s[q] for q in range(rows) if q != r])
        for level, some in ((0.90, own), (0.999, left)):
            if s[r] > oracle.f.ppf(level, n - 1, (rows - 1) * (n - 1)) * others:
                some.add(r)
    kept = [s[r] for r in range(1, rows) if r not in left]
    k, level = len(kept), 0.90 if n < 5 else 0.95
    v, df = 2 * (sum(kept) + s[0]) / (k + 1), (k + 1) * (n - 1)
    if k and s[0] > oracle.f.ppf(level, n - 1, k * (n - 1)) * np.mean(kept):
        v = s[0] + np.mean(kept)
        df = v**2 / (s[0] ** 2 / (n - 1) + np.mean(kept) ** 2 / (k * (n - 1)))
    return [
        (np.var(y[r] - y[0], ddof=1), n - 1, True) if r in own else (v, df, False)
        for r in range(1, rows)
    ]


def flipped(rng, rows, n, size=200, chance=0.9):
    """Which of its images a run gets right, (rows, n, size): some of them by chance."""
    easy = np.clip(rng.normal(chance, 0.2, (rows, 1, size)), 0, 1)
    return (rng.random((rows, n, size)) < easy).astype(float)


def alike(rng, n):
    return flipped(rng, 7, n)


def near_copies(rng, n):
    x = flipped(rng, 6, n)
    x[1], x[2, :, :190] = x[0], x[0, :, :190]
    x[3, :, :150] = x[2, :, :150]
    return x


def noisy_baseline(rng, n):
    x = flipped(rng, 6, n)
    x[0, 0, :60] = 0
    return x


def noisy_rows(rng, n):
    """One is out, one is only judged by itself."""
    x = flipped(rng, 8, n)
    x[1, 0], x[2, 0, :15] = 0, 0
    return x


def short_rows(rng, n):
    x = flipped(rng, 6, n)
    x[3:] = flipped(rng, 3, n, chance=0.6)
    return x


def few_images(rng, n):
    """Two of the rows."""
    x = np.ones((5, n, 200))
    x[:, ::2, 0] = 0
    x[3:, :, 1:] = flipped(rng, 2, n, 199)
    x[0, 1, 1] = 0
    return x


def three_rows(rng, n):
    return flipped(rng, 3, n)


CASES = alike, near_copies, noisy_baseline, noisy_rows, short_rows, few_images, three_rows


@pytest.mark.parametrize("n", [2, 3, 4, 8])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_fit_is_the_definition_by_hand(case, n):
    for seed in range(5):
        x = case(np.random.default_rng(seed), n)
        y = 100 * x.mean(-1) + np.random.default_rng(seed).normal(0, 0.3, x.shape[:2])
        expected, tripped, few = by_hand(y, x)
        method = family(len(y), spread="images")
        found = stats.fit(y, method, ImageFlips.from_right(x.astype(bool)))
        # The definition's quantiles are of whole df; a table's are of df to 2 or 3 decimals.
        assert found.variances.tripped == tripped or few.all()
        assert found.variances.is_own[1:].tolist() == [own for *_, own in expected]
        assert found.variances.v[1:] == pytest.approx([v for v, *_ in expected], rel=1e-9)
        assert found.variances.df[1:] == pytest.approx([df for _, df, _ in expected], rel=1e-9)
        assert found.gain[1:] == pytest.approx(y[1:].mean(1) - y[0].mean(), rel=1e-9)
        for half, (v, df, _) in zip(found.half[1:], expected, strict=True):
            t = oracle.t.ppf(1 - 0.05 / (2 * (len(y) - 1)), np.round(df, 3))
            assert half == pytest.approx(t * math.sqrt(v / n), rel=1e-9)
        if case is noisy_baseline:
            assert tripped
        plain = plain_by_hand(y)
        without = stats.fit(y, family(len(y)))
        assert without.variances.v[1:] == pytest.approx([v for v, *_ in plain], rel=1e-9)
        assert without.variances.df[1:] == pytest.approx([df for _, df, _ in plain], rel=1e-9)
        assert without.variances.is_own[1:].tolist() == [own for *_, own in plain]


def test_the_tables_by_hand_are_of_every_kind():
    """Else the test above would not see a screen that is gone."""
    seen = set()
    for case in CASES:
        for n in (4, 8):
            for seed in range(5):
                x = case(np.random.default_rng(seed), n)
                y = 100 * x.mean(-1) + np.random.default_rng(seed).normal(0, 0.3, x.shape[:2])
                by = stats.fit(
                    y, family(len(y), spread="images"), ImageFlips.from_right(x.astype(bool))
                ).variances
                seen |= {
                    name for name in ("is_own", "out", "vague", "few") if getattr(by, name).any()
                }
                seen |= {"tripped"} if by.tripped else set()
                seen |= {"only own"} if (by.is_own & ~by.out & ~by.vague).any() else set()
    assert seen == {"is_own", "out", "vague", "few", "tripped", "only own"}


# --- Exact facts ---------------------------------------------------------------------------------


def drawn(seed=0, tables=50, rows=6, n=4, size=300):
    right = np.random.default_rng(seed).random((tables, rows, n, size)) < 0.9
    return 100 * right.mean(-1), right


def test_rows_alike_with_uncorrelated_flips_are_the_two_way_fit():
    """v = 2 max(flips, mean square of the fit of row and seed), K (n - 1) df, where no screen is
    beyond its limit."""
    y, right = drawn()
    y, e = 3 * y, 0.5
    shape = right.shape[:2]
    images = ImageFlips(
        covariance=np.broadcast_to(e * np.eye(6), (*shape, 6)),
        gain=np.full(shape, 2 * e),
        gain_df=np.full(shape, 1e12),
        shift=np.full(shape, 3.0),
        few=np.zeros(shape, dtype=bool),
    )
    found = stats.by_images(y, images)
    residuals = y - y.mean(-1, keepdims=True) - y.mean(-2, keepdims=True)
    residuals += y.mean((-1, -2), keepdims=True)
    square = (residuals**2).sum((-1, -2)) / (5 * 3)
    plain = ~found.tripped & ~found.out.any(-1)
    assert 0.5 < plain.mean() < 1
    for v, df, own, s2 in zip(
        *(x[plain] for x in (found.v, found.df, found.is_own, square)), strict=True
    ):
        pooled = ~own
        pooled[0] = False
        assert v[pooled] == pytest.approx(2 * max(s2, e), rel=1e-12)
        if s2 > e:
            assert df[pooled] == pytest.approx(5 * 3, rel=1e-9)


@pytest.mark.parametrize("spread", ["images", "one way", "paired"])
def test_a_single_variant_has_scipys_paired_t(spread):
    """By images its variance is that of its flips, where these tell more."""
    y, right = drawn(tables=20, rows=2)
    found = stats.fit(y, family(2, spread=spread), ImageFlips.from_right(right))
    test = oracle.ttest_rel(y[:, 1], y[:, 0], axis=-1)
    interval = test.confidence_interval(0.95)
    own, v, n = (y[:, 1] - y[:, 0]).var(-1, ddof=1), found.variances.v[:, 1], y.shape[-1]
    flips = np.var(right[:, 1] * 1.0 - right[:, 0], axis=1, ddof=1).sum(-1) + 0.25
    flips = flips / 9 if spread == "images" else 0 * flips  # 300 images: (100 / 300)^2
    assert v == pytest.approx(np.maximum(own, flips), rel=1e-12)
    assert found.variances.df[:, 1].tolist() == [n - 1.0] * 20
    wider = np.sqrt(v / own)
    assert (wider > 1).any() == (spread == "images")
    assert (wider > 1 - 1e-12).all()
    half = wider * (interval.high - interval.low) / 2
    assert found.half[:, 1] == pytest.approx(half, rel=1e-12)
    t = found.gain[:, 1] / np.sqrt(v / n)
    p = stats.raw_p(found.gain[:, 1], v, found.variances.df[:, 1], n)
    assert p == pytest.approx(2 * oracle.t.sf(abs(t), n - 1))
    assert p[wider <= 1 + 1e-12] == pytest.approx(test.pvalue[wider <= 1 + 1e-12])


def test_a_gain_that_is_the_same_few_images_in_every_seed_is_not_told():
    """-3, -3 and -2 of 300 images: less than one image apart, while a hundred flip."""
    rng = np.random.default_rng(8)
    right = np.ones((2, 3, 300), dtype=bool)
    right[:, :, :100] = rng.random((2, 3, 100)) < 0.5
    for seed, lost in enumerate((3, 3, 2)):
        counts = right[:, seed].sum(-1)
        more = counts[1] - counts[0] + lost
        some = np.flatnonzero(right[1 if more > 0 else 0, seed, :100])[: abs(more)]
        right[1 if more > 0 else 0, seed, some] = False
    y = 100 * right.mean(-1)
    assert (300 * (y[1] - y[0]) / 100).round().tolist() == [-3, -3, -2]
    assert stats.column_gains(y, 0, family(2, spread="paired")).rows[1].gain.high < 0
    [_, row] = stats.column_gains(
        y, 0, family(2, spread="images"), None, stats.Flips((right,))
    ).rows
    assert row.gain.low < 0 < row.gain.high
    assert row.df == 2


def test_columns_combine_with_the_squares_of_their_weights():
    one, other = (ImageFlips.from_right(drawn(seed, 3)[1]) for seed in (2, 3))
    same = ImageFlips.combined([one], [1.0])
    for a, b in zip(same, one, strict=True):
        assert a == pytest.approx(b, rel=1e-12)
    made = ImageFlips.combined([one, other], [0.5, -2.0])
    assert made.covariance == pytest.approx(one.covariance / 4 + 4 * other.covariance)
    assert made.gain == pytest.approx(one.gain / 4 + 4 * other.gain)
    assert made.shift**2 == pytest.approx(one.shift**2 / 4 + 4 * other.shift**2)
    noise = one.gain**2 / 16 / one.gain_df + 16 * other.gain**2 / other.gain_df
    assert made.gain_df == pytest.approx(made.gain**2 / noise)
