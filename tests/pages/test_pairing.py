import nbformat
import pytest
from pairing import chapters, problems

HEADER = "# ---\n# jupyter:\n#   kernelspec:\n#     display_name: Python 3\n#     language: python\n#     name: python3\n# ---\n\n"
SOURCE = HEADER + "# %% [markdown]\n# # A title\n\n# %%\nprint(1 + 1)\n"


@pytest.fixture
def pair(tmp_path):
    """A sound pair, and a way to change one of its cells."""
    cells = [
        nbformat.v4.new_markdown_cell("# A title"),
        nbformat.v4.new_code_cell("print(1 + 1)", execution_count=1),
    ]
    notebook = nbformat.v4.new_notebook(
        cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    )
    notebook.cells[1].outputs = [nbformat.v4.new_output("stream", name="stdout", text="2\n")]
    (tmp_path / "01_pair.py").write_text(SOURCE)

    def write(change=lambda notebook: None):
        change(notebook)
        nbformat.write(notebook, tmp_path / "01_pair.ipynb")
        return problems("01_pair", tmp_path)

    return write


@pytest.mark.parametrize("chapter", chapters())
def test_the_pair_is_in_step(chapter):
    assert problems(chapter) == []


def test_there_are_chapters():
    assert chapters()


def test_a_sound_pair_passes(pair):
    assert pair() == []


@pytest.mark.parametrize(
    "change, problem",
    [
        (lambda n: n.cells[0].update(source="# Another title"), "cell 0: the source differs"),
        (lambda n: n.cells[1].update(source="print(2)"), "cell 1: the source differs"),
        (lambda n: n.cells[1].metadata.update(tags=["hide-input"]), "cell 1: the metadata differs"),
        (
            lambda n: n.cells.append(nbformat.v4.new_markdown_cell("more")),
            "2 cells in the .py, 3 in the .ipynb",
        ),
        (lambda n: n.cells[1].update(execution_count=None), "cell 1: it was never executed"),
        (lambda n: n.metadata.kernelspec.update(name="julia"), "the kernel is not python3"),
    ],
)
def test_a_drifted_pair_fails(pair, change, problem):
    assert problem in pair(change)


def test_a_cell_of_another_kind_fails(pair):
    def to_raw(notebook):
        notebook.cells[0] = nbformat.v4.new_raw_cell("# A title")

    assert pair(to_raw) == ["cell 0: the cell_type differs"]


@pytest.mark.parametrize(
    "text, what",
    [
        ("saved in /home/reader/book", "an absolute path"),
        ("<Thing at 0x7f3a5c0d2e10>", "an address"),
        ("x.py:3: UserWarning: careful", "a warning"),
        ("100%|#####| 3/3 [00:00<00:00, 5.1it/s]", "a progress bar"),
        ("Wall time: 3 s", "a timing"),
    ],
)
def test_a_noisy_output_fails(pair, text, what):
    assert pair(lambda n: n.cells[1].outputs[0].update(text=text)) == [
        f"cell 1: its output holds {what}"
    ]


def test_ratios_and_web_addresses_are_no_paths(pair):
    assert (
        pair(
            lambda n: (
                n.cells[1]
                .outputs[0]
                .update(text="11/12 of https://example.org/tmp/x, and 1 - 1/(2H)")
            )
        )
        == []
    )


def test_an_error_output_fails(pair):
    error = nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=[])
    assert pair(lambda n: n.cells[1].outputs.append(error)) == [
        "cell 1: its output is the error ValueError"
    ]


def test_a_wide_output_fails(pair):
    assert pair(lambda n: n.cells[1].outputs[0].update(text="x" * 89)) == [
        "cell 1: its output is wider than 88 columns"
    ]


def test_stderr_fails(pair):
    assert pair(lambda n: n.cells[1].outputs[0].update(name="stderr")) == [
        "cell 1: it writes to stderr"
    ]


@pytest.mark.parametrize(
    "source, problem",
    [
        ("x = 1\n" * 26, "it is longer than 25 lines"),
        (f"x = {'1' * 85}", "it is wider than 88 columns"),
        ("1 + 1;", "its last semicolon hides a value from Jupyter, but not from nbval"),
        ("# NBVAL_IGNORE_OUTPUT\nprint(1 + 1)", "it asks nbval to look away"),
    ],
)
def test_a_cell_that_escapes_review_fails(pair, source, problem):
    assert f"cell 1: {problem}" in pair(lambda n: n.cells[1].update(source=source))


@pytest.mark.parametrize(
    "gone, left", [("01_pair.py", "01_pair.ipynb"), ("01_pair.ipynb", "01_pair.py")]
)
def test_half_a_pair_fails(pair, tmp_path, gone, left):
    pair()
    (tmp_path / gone).unlink()
    assert (tmp_path / left).exists() and chapters(tmp_path) == ["01_pair"]
    assert problems("01_pair", tmp_path) == [f"{gone} is missing"]
