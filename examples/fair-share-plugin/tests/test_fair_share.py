"""What every policy must hold to, and what this one promises."""

from inflightd_fair_share import FairShare, FairShareOptions

from inflightd.schedulers.api import Limits
from inflightd.schedulers.model import ModelLoop, ModelRequest
from inflightd.schedulers.registry import build
from inflightd.schedulers.testing import conformance, swap_conformance


def make() -> FairShare:
    return FairShare(FairShareOptions())


def test_it_keeps_the_contract() -> None:
    conformance(make)


def test_it_can_be_swapped_in_and_out() -> None:
    swap_conformance(lambda: build("throughput-max"), make)
    swap_conformance(make, lambda: build("throughput-max"))


def test_a_flood_of_one_tenant_leaves_half_of_the_batch_to_the_other() -> None:
    flood = [ModelRequest(8, 50, 50, tenant="loud") for _ in range(40)]
    quiet = [ModelRequest(8, 50, 50, tenant="quiet") for _ in range(4)]
    loop = ModelLoop([*flood, *quiet], limits=Limits(8, 256, 16, 512), blocks_total=1000)
    loop.take_step(make().plan(loop.view))
    assert sorted(sequence.tenant for sequence in loop.view.running) == ["loud"] * 4 + ["quiet"] * 4
