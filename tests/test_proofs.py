"""The proofs that a machine has checked: all are there, none takes anything for granted, and the list of them is complete."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROOFS = ROOT / "proofs"
sys.path.insert(0, str(PROOFS))

import statements  # noqa: E402


def run(*command, folder):
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )


def missing():
    """Why the proofs cannot be checked here; empty if they can."""
    absent = [tool for tool in ("coqc", "coq_makefile", "make") if not shutil.which(tool)]
    if absent:
        return f"the proofs were NOT checked: {', '.join(absent)} not found (Debian: apt-get install coq libcoq-mathcomp-algebra)"
    where = run("coqc", "-where", folder=ROOT).stdout.strip()
    if not (Path(where) / "user-contrib" / "mathcomp" / "algebra").is_dir():
        return "the proofs were NOT checked: Mathematical Components not found (Debian: apt-get install libcoq-mathcomp-algebra)"
    return ""


WHY_NOT = missing()
checker = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


def copy_of_sources(folder):
    folder.mkdir()
    for path in [
        *PROOFS.glob("*.v"),
        PROOFS / "_CoqProject",
        PROOFS / "Makefile",
        PROOFS / "statements.py",
        PROOFS / "theorems.json",
    ]:
        shutil.copy(path, folder)
    return folder


def assumptions(folder):
    """Let the checker print what each theorem of the checked files assumes."""
    (folder / "all_assumptions.v").write_text(statements.assumptions_file(folder))
    done = run("coqc", "-Q", ".", "attnid", "all_assumptions.v", folder=folder)
    (folder / "all_assumptions.v").unlink()
    assert done.returncode == 0, done.stderr
    return statements.read_assumptions(done.stdout)


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """A folder in which all proofs have been checked from nothing."""
    folder = copy_of_sources(tmp_path_factory.mktemp("proofs") / "checked")
    done = run("make", folder=folder)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder


@checker
def test_every_theorem_assumes_nothing(checked):
    said = assumptions(checked)
    assert set(said) == set(statements.listed())
    assert {name: what for name, what in said.items() if what != statements.SAFE} == {}


@checker
@pytest.mark.parametrize("proof, caught", [("Axiom", "anything"), ("Admitted", "invariance")])
def test_what_is_taken_for_granted_is_caught(checked, tmp_path, proof, caught):
    """Plant an axiom, or a proof that was given up: the source shows it, and so does the checker."""
    folder = tmp_path / "planted"
    shutil.copytree(checked, folder)
    path = folder / "ch02_invariance.v"
    start, end = re.search(
        r"^Theorem invariance .*?^(Proof\..*?Qed\.)", path.read_text(), re.DOTALL | re.MULTILINE
    ).span(1)
    text = path.read_text()
    if proof == "Admitted":
        text = text[:start] + "Proof. Admitted." + text[end:]
    else:
        text = text[:start] + "Proof. by case: anything. Qed." + text[end:]
        text = text.replace(
            "Section Invariance.", "Axiom anything : False.\n\nSection Invariance.", 1
        )
    path.write_text(text)
    assert [word for name, _, word in statements.unproved(folder) if name == path.name] == [proof]
    assert run("coqc", "-Q", ".", "attnid", path.name, folder=folder).returncode == 0
    (folder / "all_assumptions.v").write_text(
        "From attnid Require ch02_invariance.\nPrint Assumptions ch02_invariance.invariance.\n"
    )
    printed = run("coqc", "-Q", ".", "attnid", "all_assumptions.v", folder=folder).stdout
    assert printed.startswith("Axioms:") and caught in printed and statements.SAFE not in printed


def test_no_source_takes_anything_for_granted():
    assert statements.unproved() == []


@pytest.mark.parametrize(
    "line, found",
    [
        ("Axiom a : False.", ["Axiom"]),
        ("Parameter x : nat.", ["Parameter"]),
        ("Proof. admit. Admitted.", ["admit", "Admitted"]),
        ("(* Axiom, Admitted (* and admit *) are words here *) Lemma admits : True.", []),
        ("Unset Guard Checking.", ["Unset Guard Checking"]),
    ],
)
def test_the_search_of_the_sources_sees_what_it_should(tmp_path, line, found):
    (tmp_path / "a.v").write_text(line)
    assert [word for *_, word in statements.unproved(tmp_path)] == found


def test_every_file_is_checked():
    assert {path.name for path in statements.sources()} == {
        path.name for path in PROOFS.glob("*.v")
    }


def test_the_list_is_complete_and_says_what_the_files_say():
    """Each theorem is listed, with its file and the words of the comment before it; nothing else is listed."""
    found, listed = statements.theorems(), statements.listed()
    assert set(found) == set(listed)
    for name, entry in listed.items():
        assert set(entry) == {"file", "words", "items", "missing"}
        assert (entry["file"], entry["words"]) == (found[name].file, found[name].words) and entry[
            "words"
        ]


def test_the_list_names_items_of_the_book():
    labels = set(
        re.findall(
            r"^# :label: (\S+)$",
            "\n".join(path.read_text() for path in (ROOT / "notebooks").glob("[01]*.py")),
            re.MULTILINE,
        )
    )
    assert {
        item for entry in statements.listed().values() for item in entry["items"]
    } - labels == set()


def test_a_statement_comes_with_the_declarations_of_its_section():
    orbit = statements.theorems()["orbit_is_fibre"]
    assert orbit.context.startswith(
        "Variables (F : fieldType) (D m n : nat).\nImplicit Types (W_Q :"
    )
    assert orbit.text.startswith("Theorem orbit_is_fibre W_Q W_K") and orbit.text.endswith(
        "W_K' = invmx S^T *m W_K]."
    )
    assert "Proof" not in orbit.formal and orbit.words.startswith("The orbit is the whole fibre.")


def test_a_statement_comes_with_the_definitions_that_it_rests_on():
    def of(name):
        return [
            re.match(r"Definition (\w+)", one)[1] for one in statements.theorems()[name].definitions
        ]

    assert of("invariance") == []
    assert of("null_directions_have_dimension") == ["dproduct", "nullity"]
    assert of("key_bias_is_idle") == [
        "repeat_columns",
        "scores",
        "softmax",
        "exponential",
        "attention",
    ]
    assert of("commutant_of_planes") == ["quarter_turn", "turn", "mirror", "rotation", "block"]
