"""The plan of the confirming study: it names what exists, and says what the records say."""

import pytest
import registered

from attnid.training.cases import PRESETS
from attnid.training.recall import line_length


def test_the_plan_is_of_the_pilots_regime():
    plan, pilot = registered.plan(), PRESETS["pilot"]
    assert plan["regime"]["model"] == pilot.model
    training = {name: plan["regime"]["training"][name] for name in ("steps", "batch_size")}
    assert training == {name: pilot.training[name] for name in training}
    assert plan["endpoint"]["tuned_on"] == pilot.half != plan["endpoint"]["half"]
    assert plan["endpoint"]["context"]["recall"] == line_length()


def test_no_seed_of_the_pilot_serves_otherwise():
    first, last = registered.plan()["seeds"]["pilot"]
    seeds = [seed for runs in registered.pilot().values() for seed in runs]
    assert seeds and first <= min(seeds) and max(seeds) <= last


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("tuning = [100, 102]", "tuning = [99, 102]", "^seeds.tuning=99: serve pilot too"),
        ('one = "spent"', 'one = "spend"', "^arm='spend': is no case"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(tmp_path, old, new, message):
    text = registered.PLAN.read_text()
    assert text.count(old) == 1
    (tmp_path / "plan.toml").write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=message):
        registered.plan(tmp_path / "plan.toml")


def test_the_page_shows_each_run_of_the_pilot_once():
    records = registered.pilot()
    page = registered.page(registered.plan(), records)
    assert "**draft: not registered.**" in page
    for (preset, case, rate), runs in records.items():
        line = f"| {preset} | {case} | {rate:g} | {len(runs)} |"
        assert page.count(line) == 1
