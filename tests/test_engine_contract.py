"""What every launcher owes the driver, on each engine that a test can have: Slurm, Grid Engine and
workstations by ssh."""

from collections.abc import Iterator

import pytest
from conftest import wait_for
from launcher_contract import settings
from support.pilots import PilotContract, offer_slots
from support.sites import SITES, Site, started_site

from ablate.running.launchers import make_launcher
from ablate.running.launchers.pilots import PilotLauncher

pytestmark = pytest.mark.cluster


# Grid Engine and ssh share their launcher; test_sites.py has both.
RARE = [pytest.param(name, marks=[pytest.mark.slow] * (name == "sge")) for name in SITES]


@pytest.fixture(scope="module", params=RARE)
def site(request) -> Iterator[Site]:
    with started_site(request.param) as made:
        yield made


class TestEngine(PilotContract):
    @pytest.fixture(scope="class")
    @classmethod
    def launcher(cls, store, site) -> Iterator[PilotLauncher]:
        with pytest.MonkeyPatch.context() as patch:
            for key, value in site.environment.items():
                patch.setenv(key, value)
            given = settings(site.engine, gpus=0, cpus=2, **site.settings)
            made = make_launcher(given, store.root / "cache")
            yield offer_slots(made)
            made.free()
            wait_for(lambda: not site.jobs_of(store.root))
