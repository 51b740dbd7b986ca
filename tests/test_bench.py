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
    }
    monkeypatch.setattr(bench, "measured_apart", lambda side: sides[side])
    bench.compare_metrics()
    bench.compare_recorder()
    printed = capsys.readouterr().out
    assert (
        "30.0 ms, 1.5 times as long" in printed
        and "12.0 ms" in printed
        and "every 10 steps it adds 1.6% to a step" in printed
    )


def test_what_is_on_its_way_is_said_beforehand(monkeypatch, capsys):
    for name in ("ranks", "metrics", "recorder"):
        monkeypatch.setattr(bench, f"compare_{name}", lambda name=name: print(name))
    bench.main()
    printed, said = capsys.readouterr()
    assert printed.split() == ["ranks", "metrics", "recorder"]
    assert [line.split(":")[0] for line in said.splitlines()] == [
        "3 parts, about two minutes in all on two cores",
        "part 1 of 3",
        "part 2 of 3",
        "part 3 of 3",
    ]


def test_metrics_that_differ_are_an_error(monkeypatch):
    monkeypatch.setattr(
        bench,
        "measured_apart",
        lambda side: dict(apart=1e-3, batched=1, loop=1, eigh=1, products=1),
    )
    with pytest.raises(SystemExit, match="metrics differ by a relative 1.0e-03"):
        bench.compare_metrics()
