"""Peak rates of the comparison's pre-trainings are those that its search chose, and every method was searched."""

from __future__ import annotations

from tespec.comparison.collected import collect
from tespec.comparison.rates import searches
from tespec.core.config import names, pretraining_settings
from tespec.core.paths import REPOSITORY
from tespec.core.registry import register_methods


def test_recipes_take_the_rates_that_the_search_chose():
    register_methods()
    records = collect(REPOSITORY / "results" / "sample-small").rates
    chosen = {each.method: each.chosen.rate for each in searches(records) if each.decides}
    assert chosen == {name: pretraining_settings(name, "small").optimisation.peak_lr for name in names("pretraining")}
