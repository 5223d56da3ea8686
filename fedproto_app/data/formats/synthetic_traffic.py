"""The embedded data set of traffic at sites of four types, which are the true groups.

A site's traffic is the daily and weekly rhythm of its type, with the site's own scale, clock and
growth. There are three disturbances: slow swings and sudden bursts, which sites of one type mostly
share, and the site's own noise. The type also sets how long noise and bursts last. So types differ
in shape, and also in how the next hour follows from the last ones. One model for all sites
therefore fits none of them well.

Every site is drawn from (seed, site number) and every type from (seed, type), so a site does not
depend on the number of sites.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedproto_app.data.format import Format, Source
from fedproto_app.data.series import ClientSeries
from fedproto_app.settings import DataSettings

Vector = NDArray[np.float64]

DAY_BEGINS = 4.0  # hour at which a day begins socially: 2 at night is still the day before
DECIMALS = 3  # few, so that the last bit of a machine's exp() does not matter


@dataclass(frozen=True)
class Peak:
    """A daily peak: its hour, width in hours, and height in units of the site's scale."""

    hour: float
    width: float
    height: float


@dataclass(frozen=True)
class SiteType:
    """The rhythm and the noise that sites of one type share."""

    name: str
    weekdays: tuple[Peak, ...]
    weekend: tuple[Peak, ...]
    weekend_days: tuple[int, ...]  # 0 = Monday
    persistence: float  # correlation of the noise in successive hours
    noise: float  # relative standard deviation
    bursts: float  # number per week
    burst_length: float  # hours until a burst has fallen to 1/e


SITE_TYPES = (
    SiteType(
        "office",
        weekdays=(Peak(10.5, 2.0, 1.0), Peak(15, 2.2, 0.9)),
        weekend=(Peak(13, 4.0, 0.12),),
        weekend_days=(5, 6),
        persistence=0.6,
        noise=0.07,
        bursts=1.5,
        burst_length=2.0,
    ),
    SiteType(
        "residential",
        weekdays=(Peak(7.5, 1.3, 0.4), Peak(20.5, 2.6, 1.0)),
        weekend=(Peak(11.5, 3.2, 0.7), Peak(20, 3.0, 0.9)),
        weekend_days=(5, 6),
        persistence=0.92,
        noise=0.12,
        bursts=1.0,
        burst_length=4.0,
    ),
    SiteType(
        "nightlife",
        weekdays=(Peak(20, 2.0, 0.35),),
        weekend=(Peak(20, 2.0, 0.45), Peak(24, 2.0, 1.0)),
        weekend_days=(3, 4, 5),
        persistence=0.75,
        noise=0.12,
        bursts=2.0,
        burst_length=3.0,
    ),
    SiteType(
        "transport",
        weekdays=(Peak(8, 0.9, 1.0), Peak(13, 2.5, 0.3), Peak(18, 1.2, 0.95)),
        weekend=(Peak(14, 3.5, 0.45),),
        weekend_days=(5, 6),
        persistence=0.1,
        noise=0.12,
        bursts=3.0,
        burst_length=0.7,
    ),
)


def load_synthetic_traffic(settings: DataSettings) -> Iterator[ClientSeries]:
    """Yield the sites, grouped by type, with ``settings.period`` samples a day from a Monday on."""
    for number in range(settings.synthetic.clients):
        yield _site(number, settings)


def _site(number: int, settings: DataSettings) -> ClientSeries:
    kind = number % len(SITE_TYPES)
    site_type, seed = SITE_TYPES[kind], settings.synthetic.seed
    site_rng = np.random.default_rng([seed, 1, number])
    type_rng = np.random.default_rng([seed, 0, kind])
    samples = settings.synthetic.days * settings.period
    hours = np.arange(samples, dtype=np.float64) * (24 / settings.period)

    rhythm = 0.15 + _rhythm(site_type, hours + site_rng.normal(0, 0.25))
    growth = 1 + site_rng.uniform(-0.1, 0.3) * hours / hours[-1]
    swings = np.exp(_swings(hours, type_rng) + 0.3 * _swings(hours, site_rng))
    noise = np.exp(_noise(site_type, 24 / settings.period, len(hours), site_rng))
    traffic = rhythm * swings * noise + _bursts(site_type, hours, type_rng, site_rng)
    scale = 500 * np.exp(site_rng.normal(0, 0.5))
    values = np.round(scale * growth * traffic, DECIMALS)

    late = _switch_on(settings.period, site_rng)
    _cut_gaps(values, settings.period, site_rng)
    name = f"{site_type.name}-{number // len(SITE_TYPES):02d}"
    return ClientSeries(name, values[late:], start=late, group=site_type.name)


def _rhythm(site_type: SiteType, hours: Vector) -> Vector:
    """Return the undisturbed rhythm of day and week, [T]."""
    social = hours - DAY_BEGINS
    weekend = np.isin(social // 24 % 7, site_type.weekend_days)
    of_the_day = social % 24 + DAY_BEGINS  # 4 ... 28
    return np.where(
        weekend, _peaks(site_type.weekend, of_the_day), _peaks(site_type.weekdays, of_the_day)
    )


def _peaks(peaks: tuple[Peak, ...], hour: Vector) -> Vector:
    """Return the height of the day's bell-shaped peaks at these hours of a day (4 ... 28), [T]."""
    height = np.zeros_like(hour)
    for peak in peaks:
        height += peak.height * np.exp(-0.5 * ((hour - peak.hour) / peak.width) ** 2)
    return height


def _swings(hours: Vector, rng: Generator) -> Vector:
    """Return the log of slow swings, [T]: a random walk pulled back to 0, one value per day."""
    days = int(hours[-1] // 24) + 2
    daily = _decaying_sums(rng.normal(0, 0.08, days), 0.7)
    return np.interp(hours, 24.0 * np.arange(days), daily)


def _noise(site_type: SiteType, step: float, length: int, rng: Generator) -> Vector:
    """Return the log of the site's noise, [T], with its type's persistence. step: in hours."""
    decay = site_type.persistence**step
    shocks = rng.normal(0, site_type.noise * np.sqrt(1 - decay**2), length)
    return _decaying_sums(shocks, decay)


def _decaying_sums(shocks: Vector, decay: float) -> Vector:
    """Return x_t = decay·x_{t-1} + shock_t, [T]."""
    return np.array(list(accumulate(shocks, lambda level, shock: decay * level + shock)))


def _bursts(site_type: SiteType, hours: Vector, type_rng: Generator, site_rng: Generator) -> Vector:
    """Return bursts in units of the scale, [T]. Each burst reaches most sites of the type."""
    number = int(type_rng.poisson(site_type.bursts * hours[-1] / (24 * 7)))
    begins = type_rng.uniform(0, hours[-1], number)
    heights = type_rng.uniform(0.2, 0.8, number)
    sizes = heights * site_rng.uniform(0.5, 1.5, number) * (site_rng.random(number) < 0.75)
    since = hours[:, None] - begins  # [T, bursts]
    shape = np.where(since >= 0, np.exp(-np.abs(since) / site_type.burst_length), 0.0)
    return shape @ sizes


def _switch_on(period: int, site_rng: Generator) -> int:
    """Return how many samples after the others a site starts: 0 for most sites."""
    late = int(site_rng.integers(1, 3 * period // 2, endpoint=True))
    return late if site_rng.random() < 0.2 else 0


def _cut_gaps(values: Vector, period: int, site_rng: Generator) -> None:
    """Set a few stretches of 2 to 12 hours to NaN, at about one site in four."""
    gappy = site_rng.random() < 0.25
    for _ in range(int(site_rng.integers(1, 3, endpoint=True)) if gappy else 0):
        length = max(1, int(site_rng.uniform(2, 12) * period / 24))
        first = int(site_rng.integers(0, max(1, len(values) - length)))
        values[first : first + length] = np.nan


FORMAT = Format((Source("synthetic-traffic", "series", load_synthetic_traffic, "no path"),))
