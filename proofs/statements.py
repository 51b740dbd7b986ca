"""Read the formal statements out of the proof files, and write the file that asks the checker what each of them assumes.

python proofs/statements.py                 list the theorems
python proofs/statements.py orbit_is_fibre  show one: its words, the definitions it rests on, what its section declares, its formal statement
python proofs/statements.py --assumptions   print a file that asks for the assumptions of each theorem (`make -C proofs assumptions`)
"""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SAFE = "Closed under the global context"
MARK = "theorem: "
# what would let a statement through without a proof, anywhere in a source outside its comments
UNPROVED = re.compile(
    r"\b(Axioms?|Parameters?|Conjectures?|Admitted|admit|give_up|Abort|bypass_check|Unset\s+Guard\s+Checking"
    r"|Unset\s+Positivity\s+Checking|Unset\s+Universe\s+Checking|type-in-type|Declare\s+Module)\b"
)
DECLARES = re.compile(
    r"(Variables?|Hypothes[ie]s|Implicit Types?|Notation|Let)\b.*?\.(?=\s)", re.DOTALL
)


@dataclass(frozen=True)
class Statement:
    """One theorem: the file, the comment before it in words, what the open sections declare, and the text up to `Proof.`"""

    name: str
    file: str
    words: str
    context: str
    text: str
    definitions: tuple = ()  # the definitions that the statement rests on, in the order of the files

    @property
    def formal(self):
        """What a page shows: the declarations of the section, then the theorem."""
        return f"{self.context}\n\n{self.text}".strip()


def sources(folder=HERE):
    """The proof files, in the order in which they are checked."""
    return [
        folder / line.strip()
        for line in (folder / "_CoqProject").read_text().splitlines()
        if line.strip().endswith(".v")
    ]


def without_comments(text):
    """The text with every comment, nested ones too, replaced by spaces; so places stay what they were."""
    kept, depth, i = [], 0, 0
    while i < len(text):
        if text.startswith("(*", i):
            depth, i = depth + 1, i + 2
            kept.append("  ")
        elif depth and text.startswith("*)", i):
            depth, i = depth - 1, i + 2
            kept.append("  ")
        else:
            kept.append(text[i] if not depth or text[i] == "\n" else " ")
            i += 1
    return "".join(kept)


def _words(text, end):
    """The comment that ends just before the place `end`: its lines joined."""
    lines = []
    for line in reversed(text[:end].rstrip("\n").split("\n")):
        if not re.fullmatch(r"\s*\(\*.*\*\)\s*", line):
            break
        lines.append(line.strip()[2:-2].strip())
    return " ".join(reversed(lines)).strip()


def _context(code, end):
    """The declarations of the sections that are open at the place `end`."""
    open_sections = []
    for found in re.finditer(
        r"^(Section (\w+)\.|End (\w+)\.|(?:Local )?(?=Variable|Hypothes|Implicit Type|Notation))",
        code[:end],
        re.MULTILINE,
    ):
        if found[2]:
            open_sections.append([])
        elif found[3]:
            open_sections.pop()
        elif open_sections:
            declaration = DECLARES.match(code, found.end())
            open_sections[-1].append(" ".join(declaration[0].split()))
    return "\n".join(line for section in open_sections for line in section)


def defined(folder=HERE):
    """The text of each definition of the proof files, by name, in the order in which they are checked."""
    return {
        one[1]: one[0].strip()
        for path in sources(folder)
        for one in re.finditer(
            r"^Definition (\w+)\b.*?\.(?=\s)",
            without_comments(path.read_text()),
            re.DOTALL | re.MULTILINE,
        )
    }


def names(text, definitions):
    """The definitions that a text names; a name that the text binds itself, as a size or a weight, is not one."""
    binders = re.findall(
        r"[({]([\w' ]+):|(?:Variables?|Hypothes[ie]s|Implicit Types?) ([\w' ]+):|(?:forall|exists|let|fun) ([\w' ]+)",
        text,
    )
    bound = {word for binder in binders for part in binder for word in part.split()}
    used = set(re.findall(r"[\w']+", text.replace("^1T", " repeat_columns "))) - bound
    return used & set(definitions)


def rests_on(text, definitions):
    """The texts of the definitions that a statement names, and of those that these name in turn."""
    used, seen = names(text, definitions), set()
    while used - seen:
        name = min(used - seen)
        seen.add(name)
        used |= names(definitions[name], definitions)
    return tuple(definitions[name] for name in definitions if name in used)


def in_file(path, definitions=None):
    """The theorems of one file, by name."""
    text = path.read_text()
    definitions = defined(path.parent) if definitions is None else definitions
    code, found = without_comments(text), {}
    for theorem in re.finditer(r"^Theorem (\w+)\b.*?(?=^Proof\b)", code, re.DOTALL | re.MULTILINE):
        name = theorem[1]
        if name in found:
            raise ValueError(f"{path.name}: two theorems are called {name}")
        formal, context = theorem[0].strip(), _context(code, theorem.start())
        found[name] = Statement(
            name,
            path.name,
            _words(text, theorem.start()),
            context,
            formal,
            rests_on(f"{context}\n{formal}", definitions),
        )
    return found


def theorems(folder=HERE):
    """All theorems of the proof files, by name."""
    found, definitions = {}, defined(folder)
    for path in sources(folder):
        for name, statement in in_file(path, definitions).items():
            if name in found:
                raise ValueError(f"{path.name}: {found[name].file} has a theorem {name} as well")
            found[name] = statement
    return found


def listed(folder=HERE):
    """theorems.json: what each theorem says in words, the items of the book that it is the twin of, and what it leaves out of them."""
    return json.loads((folder / "theorems.json").read_text())


def unproved(folder=HERE):
    """The places in the sources where something is taken for granted, as (file, line, word)."""
    return [
        (path.name, code.count("\n", 0, found.start()) + 1, found[0])
        for path in sorted(folder.glob("*.v"))
        for code in [without_comments(path.read_text())]
        for found in UNPROVED.finditer(code)
    ]


def assumptions_file(folder=HERE):
    """A file that makes the checker print, for each theorem, its name and then what it assumes."""
    found = theorems(folder).values()
    lines = [f"From attnid Require {path.stem}." for path in sources(folder)]
    for statement in found:
        lines += [
            f'Goal True. idtac "{MARK}{statement.name}". exact I. Qed.',
            f"Print Assumptions {statement.file.removesuffix('.v')}.{statement.name}.",
        ]
    return "\n".join(lines) + "\n"


def read_assumptions(output):
    """What the checker printed for each theorem: `SAFE`, or the axioms."""
    parts = re.split(rf"^{MARK}(\w+)$", output, flags=re.MULTILINE)
    return {name: " ".join(said.split()) for name, said in zip(parts[1::2], parts[2::2])}


if __name__ == "__main__":
    if sys.argv[1:] == ["--assumptions"]:
        print(assumptions_file(), end="")
    elif sys.argv[1:]:
        for one in map(theorems().__getitem__, sys.argv[1:]):
            print(
                "\n\n".join((f"{one.file}\n{one.words}", *one.definitions, one.formal)), end="\n\n"
            )
    else:
        for one in theorems().values():
            print(f"{one.file:24} {one.name}")
