"""The commands: what they accept, what they say, how they end."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnid import __main__ as command
from attnid.training.experiments import CASES, PRESETS, Job
from attnid.training.records import read_record

PREFIX = "python -m attnid"
CASES_FOLDER = Path(__file__).parent / "cases"


def call(monkeypatch, capsys, *words):
    """Exit status, standard output and standard error of a command, run in this process."""
    monkeypatch.setattr(sys, "argv", ["attnid", *map(str, words)])
    try:
        status = command.main()
    except SystemExit as end:
        status = end.code
    return status, *capsys.readouterr()


@pytest.mark.parametrize(
    "words, complaint",
    [
        ("train --preset huge --case sgd", "preset='huge': must be one of"),
        ("train --preset smoke --case adam", "case='adam': must be one of"),
        ("train --preset smoke --case sgd --seed -1", "seed=-1: must be"),
        ("train --preset smoke --case sgd --rate 0", "learning_rate=0.0: must be above 0"),
        ("train --preset smoke --case sgd --rate nan", "learning_rate=nan: must be above 0"),
        ("train --preset smoke --case sgd --rate 1e30", "loss=nan: is not finite, at step=1"),
        ("train --preset smoke --case sgd --precision half", "precision='half': must be one of"),
        ("train --preset smoke --case sgd --device nowhere", "device='nowhere': "),
        ("sweep --preset smoke --cases sgd adam", "case='adam': must be one of"),
        ("sweep --preset smoke --cases sgd --rates 0.5 -1", "learning_rate=-1.0: must be above 0"),
        ("sweep --preset smoke --cases sgd --minutes 0", "minutes=0.0: must be above 0"),
        ("sweep --preset smoke --cases sgd --device nowhere", "device='nowhere': "),
        ("sweep --preset smoke --cases sgd --device meta", "device='meta': must be one of"),
    ],
)
def test_error_is_one_clear_line(monkeypatch, capsys, tmp_path, words, complaint):
    status, out, err = call(monkeypatch, capsys, *words.split(), "--results", tmp_path)
    assert (
        status == 2
        and out == ""
        and err.startswith(f"{PREFIX} {words.split()[0]}: {complaint}")
        and err.count("\n") == 1
    )


@pytest.mark.parametrize(
    "words, complaint",
    [
        ("train --case sgd", "required: --preset"),
        ("sweep --preset smoke", "required: --cases"),
        ("sweep --preset smoke --cases", "--cases: expected"),
        ("train --preset smoke --case sgd --seed x", "--seed: invalid int value: 'x'"),
        ("", "required: command"),
        ("sweep --preset smoke --cases sgd --seeds 0", "--seeds: invalid seeds value: '0'"),
        ("sweep --preset smoke --cases sgd --seeds 9-8", "--seeds: invalid seeds value: '9-8'"),
        ("learn", "invalid choice: 'learn'"),
    ],
)
def test_misspelt_command_is_explained(monkeypatch, capsys, words, complaint):
    status, out, err = call(monkeypatch, capsys, *words.split())
    assert (
        status == 2
        and out == ""
        and complaint in err.splitlines()[-1]
        and err.startswith("usage: ")
    )


def test_results_that_cannot_be_written_are_named(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").touch()
    status, _, err = call(
        monkeypatch,
        capsys,
        "train",
        "--preset",
        "smoke",
        "--case",
        "sgd",
        "--results",
        tmp_path / "file",
    )
    assert status == 2 and str(tmp_path / "file") in err and err.count("\n") == 1


@pytest.mark.parametrize("name", ["train", "sweep"])
def test_help_names_every_choice(monkeypatch, capsys, name):
    status, out, _ = call(monkeypatch, capsys, name, "--help")
    out = re.sub(r"-\n +", "-", out)  # a name broken at its hyphen
    words = set(out.replace(",", " ").replace(";", " ").split())
    assert status == 0 and set(CASES) | set(PRESETS) | {"float32", "cpu", "cuda", "mps"} <= words
    example = out[out.index("example: ") + len("example: ") :].split()
    assert example[:4] == ["python", "-m", "attnid", name]
    monkeypatch.setattr(command, "train_or_sweep", lambda arguments: 0)
    assert call(monkeypatch, capsys, *example[3:])[0] == 0  # the example is a command


def test_train_says_where_its_record_is(monkeypatch, capsys, tmp_path):
    words = (
        "train",
        "--preset",
        "smoke",
        "--case",
        "adamw",
        "--seed",
        3,
        "--rate",
        0.01,
        "--precision",
        "float32",
        "--results",
        tmp_path,
    )
    status, out, err = call(monkeypatch, capsys, *words)
    path = Job("smoke", "adamw", 3, 0.01, "float32").path(tmp_path)
    assert status == 0 and err == "" and out == f"{path}: {read_record(path).summary}\n"
    again, same, note = call(
        monkeypatch, capsys, *words, "--device", "cuda"
    )  # done before, elsewhere
    assert (again, same) == (status, out) and note.startswith(
        f"{path}: is there already and was not run again (made on cpu in float32, at "
    )
    assert (
        time.strftime("%Y-%m-%d %H:%M", time.localtime(path.stat().st_mtime)) in note
        and note.count("\n") == 1
    )


@pytest.mark.parametrize(
    "name, first",
    [
        ("train", ["preset", "case", "seed", "rate"]),
        ("sweep", ["preset", "cases", "seeds", "rates"]),
    ],
)
def test_help_begins_with_what_is_required(monkeypatch, capsys, name, first):
    _, out, _ = call(monkeypatch, capsys, name, "--help")
    options = re.findall(r"^  --(\w+)", out, re.MULTILINE)
    assert options[:4] == first and options[-4:] == ["precision", "device", "compile", "results"]


def test_sweep_goes_seed_by_seed_and_tells_failure(monkeypatch, capsys, tmp_path):
    from attnid.training import experiments

    seen = []
    monkeypatch.setattr(
        experiments,
        "sweep",
        lambda jobs, folder, **options: seen.append((jobs, options)) or jobs[:1],
    )
    status, *_ = call(
        monkeypatch,
        capsys,
        *"sweep --preset smoke --cases sgd adamw --seeds 2 --rates 0.5 0.25 --workers 3 --minutes 1".split(),
    )
    ((jobs, options),) = seen
    assert jobs == [
        Job("smoke", case, seed, rate)
        for seed in (0, 1)
        for case in ("sgd", "adamw")
        for rate in (0.5, 0.25)
    ]
    assert status == 1 and options == dict(workers=3, minutes=1.0, device="cpu", compiled=False)


def test_sweep_takes_a_range_of_seeds(monkeypatch, capsys):
    from attnid.training import experiments

    seen = []
    monkeypatch.setattr(experiments, "sweep", lambda jobs, *_, **__: seen.extend(jobs))
    words = "sweep --preset study --cases adamw --seeds 1000-1002"
    assert call(monkeypatch, capsys, *words.split())[0] == 0
    assert seen == [Job("study", "adamw", seed) for seed in (1000, 1001, 1002)]


def run_command(*words, **options):
    command = [sys.executable, "-m", "attnid", *map(str, words)]
    return subprocess.run(command, stderr=subprocess.PIPE, **options)


def test_a_path_that_standard_output_cannot_spell_is_written_as_escapes(tmp_path):
    """The work is done by then: no command may fail at its last line."""
    shutil.copy(CASES_FOLDER / "gpt2.json", tmp_path / "möd€l.json")
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    count = run_command("count", tmp_path / "möd€l.json", stdout=subprocess.PIPE, env=ascii_only)
    assert (count.returncode, count.stderr) == (0, b"")
    assert count.stdout.startswith(rb"m\xf6d\u20acl (gpt2), 12 attention layers")
    words = ("train", "--preset", "smoke", "--case", "sgd", "--results", tmp_path / "é")
    train = run_command(*words, stdout=subprocess.PIPE, env=ascii_only)
    assert train.returncode == 0 and rb"\xe9/smoke/sgd/seed-0.json.xz: " in train.stdout


@pytest.fixture
def gpts(tmp_path):
    """Small checkpoints: one, the same in another gauge, and another."""
    from attnid.models.examples import save_gpt

    options = {"one.pt": {}, "moved.pt": {"gauge": True}, "other.pt": {"seed": 1}}
    return [save_gpt(tmp_path, name, **chosen) for name, chosen in options.items()]


def test_compare_tells_by_its_status(monkeypatch, capsys, gpts):
    one, moved, other = gpts
    status, out, err = call(monkeypatch, capsys, "compare", one, moved)
    assert (status, err) == (0, "") and out.startswith("one.pt and moved.pt: one function")
    status, out, err = call(monkeypatch, capsys, "compare", one, other)
    assert (status, err) == (1, "") and "query-key of heads 0, 1" in out
    status, out, _ = call(monkeypatch, capsys, "compare", one, other, "--json")
    found = json.loads(out)
    assert status == 1 and not found["same"] and found["differences"][0]["accident"] is None
    assert call(monkeypatch, capsys, "compare", one, other, "--tolerance", 2)[0] == 0
    status, out, err = call(monkeypatch, capsys, "compare", one, "nowhere")
    assert (status, out) == (2, "") and err.startswith(f"{PREFIX} compare: path='nowhere': ")
    status, out, err = call(monkeypatch, capsys, "compare", one, other, "--tolerance", "nan")
    assert (status, out) == (2, "") and err.startswith(f"{PREFIX} compare: tolerance=nan: ")


def test_align_writes_what_compares_the_same(monkeypatch, capsys, gpts, tmp_path):
    one, moved, _ = gpts
    status, out, err = call(monkeypatch, capsys, "align", one, moved, tmp_path / "out.pt")
    assert (status, err) == (0, "") and out.startswith("moved.pt in the gauge of one.pt, 1 layers")
    status, out, _ = call(monkeypatch, capsys, "compare", one, tmp_path / "out.pt", "--json")
    assert status == 0 and json.loads(out)["moved"] == 0
    status, out, err = call(monkeypatch, capsys, "align", one, moved, tmp_path / "out.pt")
    assert (status, out) == (2, "") and "is there already" in err and err.count("\n") == 1


def test_fingerprint_prints_what_a_gauge_keeps(monkeypatch, capsys, gpts):
    one, moved, other = (call(monkeypatch, capsys, "fingerprint", path)[1] for path in gpts)
    heads = lambda out: out.splitlines()[2:5]
    assert heads(one) == heads(moved) != heads(other)
    status, out, _ = call(monkeypatch, capsys, "fingerprint", gpts[0], "--json")
    assert status == 0 and len(json.loads(out)["layers"][0]["query-key"]) == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_standard_output_that_is_full_is_named():
    with open("/dev/full", "wb") as full:
        count = run_command("count", CASES_FOLDER / "gpt2.json", stdout=full)
    line = f"{PREFIX} count: standard output: [Errno 28] No space left on device\n"
    assert (count.returncode, count.stderr.decode()) == (2, line)


def test_a_reader_that_leaves_is_no_error():
    read, write = os.pipe()
    os.close(read)
    count = run_command("count", CASES_FOLDER / "gpt2.json", stdout=write)
    os.close(write)
    assert (count.returncode, count.stderr) == (0, b"")


@pytest.mark.parametrize("name", ["count", "audit", "reduce"])
def test_a_configuration_that_is_nested_too_deeply_is_one_clear_line(
    monkeypatch, capsys, tmp_path, name
):
    (tmp_path / "config.json").write_text('{"a":' * 200_000 + "1" + "}" * 200_000)
    out = [tmp_path / "out"] if name == "reduce" else []
    status, text, err = call(monkeypatch, capsys, name, tmp_path, *out)
    path = tmp_path / "config.json"
    assert (status, text) == (2, "")
    assert err == f"{PREFIX} {name}: path='{path}': is nested too deeply to be read\n"


def members(group):
    """The processes of a group that are still there, those that have ended but wait for their parent not counted (Linux only)."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # it has just ended
            continue
        if int(its_group) == group and state != "Z":
            found.append(path.parent.name)
    return found


@pytest.mark.parametrize(
    "send, sign, status",
    [
        (os.killpg, signal.SIGINT, 130),  # as Ctrl-C does
        (os.kill, signal.SIGTERM, 130),
        (os.kill, signal.SIGKILL, -signal.SIGKILL),
        (os.kill, signal.SIGHUP, -signal.SIGHUP),
    ],
)
def test_stopped_sweep_leaves_no_worker_behind(tmp_path, send, sign, status):
    words = "sweep --preset smoke --cases sgd adamw --seeds 40 --workers 2 --results".split()
    process = subprocess.Popen(
        [sys.executable, "-m", "attnid", *words, tmp_path],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    done = lambda: list(tmp_path.rglob("*.json.xz"))
    while not done():
        assert process.poll() is None
        time.sleep(0.02)
    assert len(members(process.pid)) > 1 or not Path("/proc").exists()
    send(process.pid, sign)
    out, err = process.communicate(timeout=120)
    assert process.returncode == status and "0 of 80 runs are done" in out
    give_up = time.monotonic() + 20  # who still imports sees the end of its parent after that
    while members(process.pid) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert members(process.pid) == []
    assert all(read_record(path).final_loss > 0 for path in done())
    if status == 130:
        assert err.endswith(f"{PREFIX} sweep: interrupted; repeat the command to go on\n")
        assert not list(tmp_path.rglob("*.tmp"))


def test_path_that_standard_output_cannot_show_fails_nothing(monkeypatch, tmp_path):
    written = io.BytesIO()
    words = ["train", "--preset", "smoke", "--case", "sgd", "--results", tmp_path / "é→"]
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setattr(sys, "argv", ["attnid", *map(str, words)])
    assert command.main() == 0
    sys.stdout.flush()
    place = rb"\xe9\u2192/smoke/sgd/seed-0.json.xz: validation loss "
    assert place in written.getvalue()


def test_a_count_needs_no_pytorch_and_answers_at_once(tmp_path):
    config = dict(model_type="llama", hidden_size=64, num_attention_heads=4, num_hidden_layers=2)
    (tmp_path / "config.json").write_text(json.dumps(config))
    program = """
import sys
from attnid.__main__ import main
sys.argv = ["attnid", "count", sys.argv[1]]
main()
assert "torch" not in sys.modules
"""
    start, busy = time.perf_counter(), os.times().children_user
    subprocess.run([sys.executable, "-c", program, tmp_path], check=True, capture_output=True)
    assert min(time.perf_counter() - start, os.times().children_user - busy) < 0.5
