import re

import pytest
from first_cell import with_first_cell
from notation import NOTATION, WORDS, find, fits, listed, tables, tokens
from pairing import chapters
from symbols import PAGES, code_problems, page_problems, problems, text_problems

from pages.test_pairing import HEADER

PAGE = NOTATION.read_text()
SYMBOLS = listed(PAGE)
*EXPLAINED, FORMS = tables(PAGE)


@pytest.mark.parametrize("chapter", chapters())
def test_a_symbol_keeps_its_meaning_in_the_chapter(chapter):
    assert problems(chapter) == []


@pytest.mark.parametrize("page", PAGES)
def test_a_symbol_keeps_its_meaning_on_the_page(page):
    assert page_problems(page) == []


# the tables


def written(rows):
    return [tokens(math) for row in rows for math in re.findall(r"\$(.+?)\$", row["Symbol"])]


def test_a_symbol_is_explained_once_and_has_its_forms_once():
    explained = written(row for table in EXPLAINED for row in table)
    forms = written(row for row in FORMS if row["In the text"] != "nothing")
    assert len(set(explained)) == len(explained) and len(set(forms)) == len(forms)
    assert set(explained) == set(forms)


@pytest.mark.parametrize("row", [row for table in EXPLAINED for row in table], ids=str)
def test_a_row_says_what_a_symbol_is(row):
    head = next(key for key in row if key.startswith(("Shape", "Range")))
    assert row["Symbol"] and row["Meaning"] and row[head]
    assert not re.search(r"\$[^$]*$", re.sub(r"\$[^$]+\$", "", "".join(row.values())))


@pytest.mark.parametrize("row", FORMS, ids=str)
def test_a_form_is_a_formula_an_expression_or_a_word_of_the_checker(row):
    for form in row["In the text"].split(";"):
        assert form.strip() in WORDS or re.fullmatch(r"\$[^$]+\$", form.strip()), form
    for form in row["In the code"].split(";"):
        words = {*WORDS, "a tensor"}
        assert form.strip() in words or re.fullmatch(r"`[^`]+`", form.strip()), form


def test_a_name_in_italics_or_in_the_code_belongs_to_one_symbol():
    names = [name for symbol in SYMBOLS for name in {*symbol.names} - {"Gram matrix"}]
    assert len(set(names)) == len(names) and "loss" in names and "tangent" in names
    code = [name for symbol in SYMBOLS for name in symbol.code_names if name.isidentifier()]
    assert len(set(code)) == len(code) and {"P_Q", "J", "W_O", "theta"} <= set(code)


def test_what_a_symbol_is_said_to_equal_fits_its_own_row():
    # M = W_K^T W_Q, beta = |P_Q - P_K|: a definition in the cell of the meaning is one of the forms
    for symbol, form in (
        ("M", r"W_K^\top W_Q"),
        ("M", r"W_K^\top R_\delta W_Q"),
        ("N", "W_O W_V"),
        (r"\Gamma", r"\partial\ell/\partial M"),
        ("P_Q", r"W_Q W_Q^\top"),
        ("P_K", r"W_K W_K^\top"),
        (r"\Omega", r"\begin{pmatrix} 0 & -1 \\ 1 & 0 \end{pmatrix}"),
        (r"\beta", r"\lVert P_Q - P_K \rVert_F"),
        (r"\tau", r"\operatorname{tr}(P_Q - P_K)"),
        (r"\mu", r"\lambda_{\min}(P_Q) + \lambda_{\min}(P_K)"),
    ):
        one, *_ = find(SYMBOLS, tokens(symbol))
        assert f"${form}$" in one.meaning or form in one.meaning, form
        assert fits(tokens(form), one.text), form


# texts


@pytest.mark.parametrize(
    "text",
    [
        "$J = H/G$",
        "$J = 1$",
        r"$J = \mathrm{diag}(I, -I)$",
        r"$P = I - \tfrac{1}{E} \mathbf{1}\mathbf{1}^\top$",
        r"$P = W_Q W_Q^\top$ and $K = W_K W_K^\top$",
        r"$P_Q = W_K W_K^\top$",
        r"$\dot P = 0$",
        r"$P = 2HDE$",
        r"weights $A P^h$",
        r"$T = S^\top S$",
        r"$$A = 1, \qquad T = S^\top S .$$",
        "$$\\begin{aligned} A &= 1 \\\\ T &= S^\\top S \\end{aligned}$$",
        r"$S^\top S = T$",
        r"$T' = S^\top S$",
        r"$\tilde T = S^\top S$",
        r"$T_1 = S^\top S$",
        "$T = 1024$ positions, $V + T - 1 < m$",
        "blocks of $T$ positions",
        "with $N$ layers",
        "let $T$ be nonsingular",
        "let $T$ be the projection onto a line",
        "Let $J$ be the quotient of $H$ and $G$",
        r"$N = 6 + n$, so $N \ge 2$",
        r"$G = \partial\ell/\partial M$",
        r"$G = \operatorname{diag}(\gamma)$",
        r"$W G^{-1}$",
        r"$\partial L / \partial W_Q$",
        "the loss $L$",
        "the gradient $G$",
        "the tangent $S$",
        r"$L \in \mathbb{R}^{r \times E}$",
        r"$C = W_Q A^\top$",
        r"$H = P/(2E)$",
        r"$K^\top Q$",
        r"$W_Q^\top = Q_Q A$",
        r"$x \to Q x$",
        r"$M = K^\top Q$",
        r"$R = \delta W_Q W_Q^\top - W_K\, \delta W_K^\top$",
        r"$S = G A - A G + \delta G$",
        r"$S \in \mathbb{R}^{E \times E}$",
        r"$\delta \in \mathbb{R}^n$",
        r"$\delta = (\delta W_Q, \delta W_K)$",
        r"$\Omega \in \mathbb{R}^{2E \times 2E}$",
        r"$\alpha_i = (\|k_i\| / \|q_i\|)^{1/2}$",
        r"$\beta = \sum_h W_O^h b_V^h + b_O$",
        r"$\theta_i = \text{base}^{-2i/D}$",
        r"$\Gamma = S^\top S$",
        r"$X \in \mathbb{R}^{D \times D}$",
        r"$\eta = S W_Q$",
        r"$\rho = S W_Q$",
        r"$\ell = W_O x$",
        r"$\dim N(\theta)$",
    ],
)
def test_a_text_that_binds_a_symbol_again_is_refused(text):
    assert list(text_problems(SYMBOLS, text))


@pytest.mark.parametrize(
    "text",
    [
        r"$H = 4$, $D \le E$, $D = C = E/H$ and $E_0 = \lceil E \sqrt{2 - 1/H} \rceil$",
        r"$W_Q \in \mathbb{R}^{D \times E}$, $\dot W_Q = -A$, $\bar W_Q = S W_Q$, $b_O' = b_O + W_O b_V$",
        r"$M = W_K^\top W_Q = U \Sigma V^\top$, $M_\delta = W_K^\top R_\delta W_Q$, $\dot M_h = 0$",
        r"$M_2 = -M_1$, $M = I$, $N_h = W_O^h W_V^h$ and $\dot N = \sum_h \dot N_h$",
        r"$S \in \mathbb{R}^{D \times D}$, $S = cI$, $S_{ij} = \pm 1$, $S = \mathrm{diag}(a)$",
        r"$T = u v^\top$, $T_1 = T_2$ and $T = \begin{pmatrix} 0 & 1 \\ 0 & 0 \end{pmatrix}$",
        r"$P_Q = W_Q W_Q^\top$, $P_Q - P_K$, $P_Q = P_K$, $\operatorname{tr}(P_Q - P_K)$",
        r"$Q(X) = W_Q X$ and $K(X)^\top Q(X)$",
        r"$U_Q$, $\Sigma_K$, $b_{V,O}$, $x_{P}$",
        r"$\delta = 0$, $\delta \in \mathbb{Z}$, $\delta = n - 1$",
        r"$\Gamma = \partial\ell/\partial M \in \mathbb{R}^{E \times E}$",
        r"$\theta \in \mathbb{R}^{\lvert\theta\rvert}$, $\lvert\theta\rvert = 2HDE$",
        r"$\rho = 0$, $\beta = \lVert P_Q - P_K \rVert_F$, $\beta_1 = 0.9$",
        "Let $R$ be the block-diagonal matrix that turns plane $i$ by $\\varphi_i$, and $\\dot N$ be its speed",
        "the gradient $A$, the rank $D$, the loss $\\ell$ of $J$",
        r"$\|x\|^2 = E$ and $\dim \mathcal{N}(\theta) = \lvert\theta\rvert - r$",
    ],
)
def test_a_text_that_keeps_to_the_notation_passes(text):
    assert list(text_problems(SYMBOLS, text)) == []


# code


@pytest.mark.parametrize(
    "code",
    [
        "P = scores.softmax(-1)",
        "P = torch.eye(E) - 1 / E",
        "P_Q = W_K @ W_K.mT",
        "P, K = W_Q @ W_Q.mT, W_K @ W_K.mT",
        "K, Q = factors",
        "def f(K, Q):\n    return K.mT @ Q",
        "f = lambda Q: Q.mT",
        "J = H // G",
        "J = 3",
        "for J in range(3):\n    print(7 // J)",
        "G = torch.func.grad(loss)(W_K.mT @ W_Q)",
        "G = normal(4, 3)",
        "for G in matrices:\n    print(G.mT)",
        "def power(G, n):\n    return G @ G",
        "H, T = 12, 1024",
        "E_, H, n, T = 768, 12, 12, 1024",
        "T = positions\nfor t in range(T):\n    pass",
        "L = torch.linalg.cholesky(A)",
        "C = np.array([[2.0, -1.0], [1.0, 0.5]])",
        "N = spaces['generators']",
        "N = 6",
        "M = normal(3, 3) + 1",
        "R = torch.linalg.qr(S).R",
        "R = dQ @ W_Q.mT - W_K @ dK.mT",
        "S = 3",
        "W_Q = 5",
        "beta = p['b_O'] + 1",
        "theta = ladder(1e4, 8)",
        "alpha = size.sqrt()",
        "if (K_h := f(x)) > 1:\n    pass",
        "[P for P in parts]",
    ],
)
def test_code_that_binds_a_name_again_is_refused(code):
    assert list(code_problems(SYMBOLS, code))


@pytest.mark.parametrize(
    "code",
    [
        "E, H, G, D = 8192, 64, 8, 128",
        "D, E_0 = W_Q.shape[-2:]",
        "D = E // H",
        "C = layer.C",
        "for D in (1, 2, 4):\n    print(D * E)",
        "M, N = W_K.mT @ W_Q, p['W_O'] @ p['W_V']",
        "M = M * (E / D) ** 0.5",
        "P_Q, P_K = W_Q @ W_Q.mT, W_K @ W_K.mT",
        "S, T = normal(4, 4, seed=0), normal(4, 4, seed=1)",
        "J = torch.func.jacrev(outputs)(theta)",
        "R = rotation(angles, D)",
        "def f(S, W_Q, W_K):\n    return S @ W_Q",
        "Phi = Nu = A = B = U = 1",
        "q, k, v = project(layer, p, x)",
        "theta = layer.random_parameters(seed=0)",
    ],
)
def test_code_that_keeps_to_the_notation_passes(code):
    assert list(code_problems(SYMBOLS, code)) == []


# a chapter

CHAPTER = with_first_cell(
    HEADER
    + """\
# %% [markdown]
# # A title
#
# The score product is $M = W_K^\\top W_Q$.

# %% mystnb={"figure": {"caption": "A head of width $D = 4$.", "name": "fig"}}
D = 4
"""
)


@pytest.mark.parametrize(
    "old, new, count",
    [
        ("", "", 0),
        (r"$M = W_K^\\top W_Q$".replace("\\\\", "\\"), "$M = 3 W_Q$", 1),
        ("width $D = 4$", r"width $D = S^\\top$", 1),
        ("D = 4\n", "D = normal(4)\n", 1),
    ],
)
def test_text_captions_and_code_of_a_chapter_are_read(tmp_path, old, new, count):
    assert old in CHAPTER
    (tmp_path / "01_chapter.py").write_text(CHAPTER.replace(old, new))
    assert len(problems("01_chapter", tmp_path)) == count
