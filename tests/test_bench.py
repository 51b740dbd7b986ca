"""The benchmarks of what training measures: each side runs, and the lines say what it measured."""

import pytest

from attnid import bench


def test_both_ways_give_the_same_metrics():
    times = bench.metrics_times(rounds=1)
    assert times.pop("apart") < 1e-10
    assert set(times) == {"batched", "loop", "eigh", "products"} and min(times.values()) > 0


def test_a_step_and_its_measurement_are_timed():
    times = bench.recorder_times(rounds=2)
    assert times["every"] == 10 and times["step"] > 0 and times["measurement"] > 0


def test_the_lines_hold_the_numbers(monkeypatch, capsys):
    sides = {
        "metrics": dict(apart=1e-14, batched=0.020, loop=0.030, eigh=0.012, products=0.005),
        "recorder": dict(step=0.050, measurement=0.008, every=10),
        "checkpoint": dict(audit=3.0, reduce=12.0, compare=9.0, same=True),
    }
    monkeypatch.setattr(bench, "measured_apart", lambda side: sides[side])
    bench.compare_metrics()
    bench.compare_recorder()
    bench.compare_checkpoint()
    printed = capsys.readouterr().out
    assert (
        "30.0 ms, 1.5 times as long" in printed
        and "12.0 ms" in printed
        and "every 10 steps it adds 1.6% to a step" in printed
        and "audit 3.0 s, reduce 12.0 s, compare 9.0 s" in printed
    )


def test_what_is_on_its_way_is_said_beforehand(monkeypatch, capsys):
    for name in ("ranks", "metrics", "recorder", "checkpoint"):
        monkeypatch.setattr(bench, f"compare_{name}", lambda name=name: print(name))
    bench.main()
    printed, said = capsys.readouterr()
    assert printed.split() == ["ranks", "metrics", "recorder", "checkpoint"]
    assert [line.split(":")[0] for line in said.splitlines()] == [
        "4 parts, about three minutes in all on two cores",
        *(f"part {number} of 4" for number in (1, 2, 3, 4)),
    ]


def test_metrics_that_differ_are_an_error(monkeypatch):
    monkeypatch.setattr(
        bench,
        "measured_apart",
        lambda side: dict(apart=1e-3, batched=1, loop=1, eigh=1, products=1),
    )
    with pytest.raises(SystemExit, match="metrics differ by a relative 1.0e-03"):
        bench.compare_metrics()


def test_a_reduced_model_that_is_another_is_an_error(monkeypatch):
    found = dict(audit=1, reduce=1, compare=1, same=False)
    monkeypatch.setattr(bench, "measured_apart", lambda side: found)
    with pytest.raises(SystemExit, match="not the same function"):
        bench.compare_checkpoint()
