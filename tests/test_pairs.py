"""The command that trains pairs and measures them."""

from attnid.models.interpolation import read_pairs
from attnid.pairs import main, persons_of


def test_pairs_are_trained_and_measured_once(tmp_path, capsys):
    words = [
        str(tmp_path / "work"),
        "--results",
        str(tmp_path / "records"),
        "--pairs",
        "2",
        "--preset",
        "smoke",
        "--steps",
        "2",
    ]
    main(words)
    records = read_pairs(tmp_path / "records")
    assert [len(found) for found in records.values()] == [2, 2]
    origin = records["independent"][1].provenance
    assert [(p["parent"], p["child"], p["seed"]) for p in origin["trained"]] == [
        (1, 0, 101),
        (0, 1, 200),
    ]
    assert origin["steps"] == 2 and origin["data"] == "embedded" and len(origin["date"]) == 10
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    main(words)
    assert before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    assert len(capsys.readouterr().out.splitlines()) == 8


def test_no_model_is_in_two_pairs_of_a_kind():
    for kind in ("children", "independent"):
        persons = [person for pair in range(10) for person in persons_of(kind, pair, 10)]
        assert len(set(persons)) == 20
    assert all(
        a.parent != b.parent for a, b in (persons_of("independent", n, 10) for n in range(10))
    )
