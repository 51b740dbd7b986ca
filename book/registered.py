"""The plan of the confirming study as a page: what its file says, beside what the pilot's records say so far.

python book/registered.py writes book/registered.md.
"""

import tomllib
from pathlib import Path

import numpy as np
from made import keep

from attnid.training.cases import CASES
from attnid.training.contrasts import contrast, least_detectable
from attnid.training.jobs import Job
from attnid.training.records import read_record, record_paths

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


def pilot_rows(records, tests, n):
    """A line of the pilot's table for each preset, case and rate, with what n seeds will detect."""
    for (preset, case, rate), runs in sorted(records.items()):
        plain = records.get((preset, "adamw", rate), {})
        both = sorted(runs.keys() & plain.keys())
        cells = ["", "", ""]
        if case != "adamw" and len(both) > 1:
            found = contrast(*({seed: arm[seed] for seed in both} for arm in (runs, plain)))
            mean, low, high, _ = found.estimate
            least = least_detectable(found.spread, n, tests)
            cells = [f"{mean:+.4f}", f"{low:+.4f} to {high:+.4f}", f"{least:.4f}"]
        losses = [record.final_loss for record in runs.values()]
        yield [preset, case, f"{rate:g}", len(losses), f"{np.mean(losses):.4f}", *cells]


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
    head = ["Preset", "Case", "Rate", "n", "Loss", "Less plain", "95 %", f"Detectable at n = {n}"]
    return text + table(head, pilot_rows(records, tests, n))


if __name__ == "__main__":
    keep(BOOK / "registered.md", page(plan(), pilot()).encode())
