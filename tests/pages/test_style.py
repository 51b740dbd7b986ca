import pytest
from first_cell import with_first_cell
from pairing import chapters
from style import problems

from pages.test_pairing import HEADER

CHAPTER = with_first_cell(
    HEADER
    + """\
# %% [markdown]
# # A title
#
# *Assumed: nothing.*
#
# ## The question
#
# ## The claim

# %%
import math
from fractions import Fraction as F

print(math.pi, F(1, 2))

# %% [markdown]
# ## Break it
#
# ## What it means
#
# ## Exercises

# %% [markdown]
# **Next:** another.
"""
)


@pytest.fixture
def chapter(tmp_path):
    """Write a chapter and see what is wrong with it."""

    def check(text):
        (tmp_path / "01_chapter.py").write_text(text)
        return problems("01_chapter", tmp_path)

    return check


@pytest.mark.parametrize("name", chapters())
def test_the_chapter_has_the_frame(name):
    assert problems(name) == []


def test_a_sound_chapter_passes(chapter):
    assert chapter(CHAPTER) == []


@pytest.mark.parametrize(
    "old, new, problem",
    [
        (
            "*Assumed: nothing.*",
            "Much is assumed.",
            'it does not begin with a title and a line "*Assumed: …*"',
        ),
        ("## Break it", "## Broken", 'it has no section "Break it"'),
        ("## Exercises", "### Exercises", 'it has no section "Exercises"'),
        ("**Next:** another.", "The end.", 'its last cell has no line that begins with "Next"'),
        ("print(math.pi,", "print(", "the import math is not used"),
        ("F(1, 2)", "1", "the import F is not used"),
        (
            "import math\n",
            "import math\n" + "math.pi\n" * 25,
            "a cell has 29 lines, 25 are allowed",
        ),
        (
            "import os, subprocess, sys",
            "import subprocess, sys",
            "its first cell is not the one of notebooks/first_cell.py",
        ),
        (
            'tags=["remove-cell"]',
            'tags=["hide-cell"]',
            "its first cell is not the one of notebooks/first_cell.py",
        ),
    ],
)
def test_an_unsound_chapter_fails(chapter, old, new, problem):
    assert old in CHAPTER and problem in chapter(CHAPTER.replace(old, new))


def test_sections_out_of_order_fail(chapter):
    swapped = (
        CHAPTER.replace("## Break it", "## X")
        .replace("## What it means", "## Break it")
        .replace("## X", "## What it means")
    )
    assert chapter(swapped) == [
        "its sections are out of order: The question, The claim, What it means, Break it, Exercises"
    ]
