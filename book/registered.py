"""The plan of the confirming study as a page: what its file says, beside what the pilot's records say so far.

python book/registered.py writes book/registered.md.
"""

import math
import tomllib
from pathlib import Path

import numpy as np
from made import keep
from scipy import stats

from attnid.training.cases import CASES
from attnid.training.jobs import Job
from attnid.training.records import read_record, record_paths
from attnid.training.statistics import paired

BOOK = Path(__file__).resolve().parent
RESULTS = BOOK.parent / "notebooks" / "results"
PLAN = RESULTS / "registered.toml"

HEAD = """# Does identification matter: the plan

**{status}.** {question} This page is made from `notebooks/results/registered.toml` and from the records of the pilot,
whose seeds serve nothing else. Losses are in nats per token, on all windows of the first half of the validation text; n counts seeds.

"""


def plan(path=PLAN):
    """The plan, checked: each arm is a case, each contrast of two arms, and no seed serves twice."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    arms = found["arms"]
    named = [*arms, *found["assay"]["removed"]]
    named += [contrast[end] for contrast in found["contrasts"] for end in ("one", "other")]
    for name in named:
        if name not in CASES:
            raise ValueError(f"arm={name!r}: is no case")
    ranges = sorted((tuple(seeds), use) for use, seeds in found["seeds"].items())
    for ((_, last), one), ((first, _), other) in zip(ranges, ranges[1:]):
        if first <= last:
            raise ValueError(f"seeds.{other}={first}: serve {one} too")
    return found


def pilot(folder=RESULTS):
    """(preset, case, rate) -> {seed: Record} of all records of the pilot below a folder."""
    found = {}
    for path in record_paths(folder):
        job = Job.at(path)
        if job.preset.startswith("pilot"):
            rate = job.training().learning_rate
            found.setdefault((job.preset, job.case, rate), {})[job.seed] = read_record(path)
    return found


def least_detectable(spread, n, tests, alpha=0.05, power=0.8):
    """The least mean difference that n pairs with such a spread show with that power, at the level
    of the strictest of so many tests (Holm's first), by quantiles of Student's t.
    """
    t = stats.t(n - 1)
    return (t.ppf(1 - alpha / tests / 2) + t.ppf(power)) * spread / math.sqrt(n)


def comparison(runs, reference):
    """n, mean and spread over the seeds that both have of the difference of losses, and the mean over seeds
    of its standard error over windows; None without two such seeds.
    """
    seeds = sorted(set(runs) & set(reference))
    if len(seeds) < 2:
        return None
    loss = lambda records: {seed: records[seed].final_loss for seed in seeds}
    differences = paired(loss(runs), loss(reference))
    windows = [runs[seed].windows - reference[seed].windows for seed in seeds]
    errors = [d.std(ddof=1) / math.sqrt(len(d)) for d in windows]
    return len(seeds), differences.mean(), differences.std(ddof=1), float(np.mean(errors))


def pilot_rows(records, tests, n):
    """A line of the pilot's table for each preset, case and rate."""
    for (preset, case, rate), runs in sorted(records.items()):
        losses = [record.final_loss for record in runs.values()]
        spread = f"{np.std(losses, ddof=1):.4f}" if len(losses) > 1 else ""
        against = comparison(runs, records.get((preset, "adamw", rate), {}))
        cells = ["", "", ""]
        if against and case != "adamw":
            _, mean, sd, error = against
            cells = [f"{mean:+.4f} ({sd:.4f})", f"{error:.4f}"]
            cells.append(f"{least_detectable(sd, n, tests):.4f}")
        yield [preset, case, f"{rate:g}", len(losses), f"{np.mean(losses):.4f}", spread, *cells]


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def page(found, records):
    """The page as text."""
    n = 1 + found["seeds"]["confirming"][1] - found["seeds"]["confirming"][0]
    tests = len(found["contrasts"])
    text = HEAD.format(**found)
    text += "## Endpoint\n\n" + found["endpoint"]["what"] + ".\n\n## Arms\n\n"
    text += table(["Arm", "What it is"], ([f"`{k}`", v] for k, v in found["arms"].items()))
    text += "\n## Contrasts\n\n"
    contrasts = ([c["name"], f"`{c['one']}` - `{c['other']}`"] for c in found["contrasts"])
    text += table(["Name", "Difference"], contrasts) + "\n## Assay\n\n"
    text += f"It passes where {found['assay']['passes']}. Else {found['assay']['otherwise']}.\n"
    text += "\n## Analysis\n\n"
    text += "".join(f"- *{name}:* {said}\n" for name, said in found["analysis"].items())
    text += "\n## Seeds\n\n" + table(
        ["Use", "First", "Last"], ([use, *s] for use, s in found["seeds"].items())
    )
    text += "\n## The pilot so far\n\n"
    head = ["Preset", "Case", "Rate", "n", "Loss", "Spread", "Less plain (spread)", "Windows"]
    head.append(f"Detectable at n = {n}")
    return text + table(head, pilot_rows(records, tests, n))


if __name__ == "__main__":
    keep(BOOK / "registered.md", page(plan(), pilot()).encode())
