"""The ledger: every numbered statement and figure of the paper, what it claims, how that is checked, and what came of it.

A row is more than its words: `verify` runs its evidence and compares every method's finding with what the claim expects.
The book's ledger and errata are made from these rows (`book/ledger.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import pi
from typing import Any

from ..layer.attention import Attention
from ..layer.latents import LatentAttention
from ..network.gpt import GPTConfig
from . import evidence, trained

STATUSES = (
    "confirmed",
    "confirmed with conditions",
    "corrected",
    "tested, not settled",
    "not yet run",
)
TOLERANCES = {
    "identity": 1e-10,
    "mean of 2,000 steps": 0.01,
}  # relative; counts are compared exactly
WHOLE, QUERY_KEY = "value-output maps", "query-key maps"


@dataclass(frozen=True)
class Claim:
    """One row. `items` are the labels of the statements in the book, `chapter` the page they are on; `methods` are what `evidence`
    returns and `expected` the counts that it must find. `where` lists notebook cells ("chapter#tag") and tests
    ("tests/file.py::name"). `printed` is what the paper has instead, for rows of the errata, `conditions` what it needs."""

    id: str
    paper: str
    claim: str
    status: str = "not yet run"
    items: tuple = ()
    chapter: str = ""
    methods: tuple = ()
    evidence: Callable | None = None
    expected: tuple = ()
    where: tuple = ()
    conditions: str = ""
    printed: str = ""

    @property
    def tolerance(self):
        """In words: counts are exact, identities hold to a relative tolerance."""
        bounds = [f"{TOLERANCES[m]:g}" for m in self.methods if m in TOLERANCES]
        return ", ".join((["exact"] if self.expected else []) + bounds)


class ClaimFails(AssertionError):
    """A method does not find what a claim says."""


def verify(claim):
    """Run the evidence of a row. ClaimFails where a method is missing, was not named, or finds something else."""
    found = claim.evidence()
    if set(found) != set(claim.methods):
        raise ClaimFails(
            f"{claim.id}: the row names {sorted(claim.methods)}, the evidence has {sorted(found)}"
        )
    for method, value in found.items():
        holds = (
            value < TOLERANCES[method]
            if method in TOLERANCES
            else list(value) == list(claim.expected)
        )
        if not holds:
            raise ClaimFails(
                f"{claim.id}: {method} finds {value}, expected {list(claim.expected) or 'below ' + str(TOLERANCES[method])}"
            )


FOUR = ("formula", "measured rank", "generators", "exact rank")
LLAMA: dict[str, Any] = dict(rotary=tuple(10000.0 ** (-2 * i / 128) for i in range(64)))


FLOW, BALANCE, RUNS = "11_gradient_flow_conserves", "12_rebalancing", "13_nanogpt"
LAPTOP_SIZE = "at the size of a laptop; records at the paper's own size are still to come"


def _counts(*descriptions):
    return lambda: evidence.four_counts(*descriptions)


def _number(found, method="formula"):
    return lambda: {method: [found()]}


THEORY = (
    Claim(
        "ex-4.1",
        "section 4.1",
        "With $E = 1$ the $2D$ query-key numbers act through one inner product: $2D - 1$ are unidentified.",
        "confirmed",
        ("ex-inner-product", "lem-two-products", "prop-count-r"),
        "01_what_is_identified",
        FOUR,
        _counts(*(Attention(1, 1, head_dim=D, value_dim=1) for D in (1, 3, 5))),
        (2, 6, 10),
        ("01_what_is_identified#claim-ex-4.1", "tests/layer/test_counting.py::test_cases"),
    ),
    Claim(
        "lemma-4.1",
        "Lemma 4.1",
        "$(S W_Q, S^{-\\top} W_K)$ gives the same scores for every nonsingular $S$; $D^2$ of $2DE$ numbers are unidentified.",
        "confirmed",
        ("lem-invariance", "prop-orbit", "cor-share"),
        "02_query_key_invariance",
        ("identity", *FOUR),
        evidence.invariance,
        (36,),
        (
            "02_query_key_invariance#claim-lemma-4.1",
            "tests/layer/test_directions.py::test_the_actions_leave_the_function_where_it_is",
        ),
    ),
    Claim(
        "lemma-4.2",
        "Lemma 4.2",
        "For $D \\le E$ the score product has factors $\\mathrm{diag}(\\sigma)$ times $D \\times E$ "
        "matrices with orthonormal rows, the keys' from $U$ and the queries' from $V$ of $W_K^\\top W_Q = U \\Sigma V^\\top$.",
        "corrected",
        ("lem-canonical",),
        "03_canonical_factorisation",
        ("identity",),
        evidence.canonical_form,
        (),
        (
            "03_canonical_factorisation#claim-lemma-4.2",
            "tests/claims/test_ledger.py::test_each_claim_holds",
        ),
        "$D \\le E$",
        "$E \\times D$ factors, singular values said to be non-decreasing, the first $D$ rows of $U$ for queries and of $V$ for keys; no condition on $D$.",
    ),
    Claim(
        "sec-4.3",
        "section 4.3",
        "Counting the canonical form's numbers gives $2DE - D^2$ as well.",
        "confirmed",
        ("prop-dimension-count",),
        "03_canonical_factorisation",
        ("exact rank",),
        _number(evidence.canonical_dimension, "exact rank"),
        (39,),
        (
            "03_canonical_factorisation#claim-sec-4.3",
            "tests/claims/test_ledger.py::test_each_claim_holds",
        ),
    ),
    Claim(
        "lemma-4.3",
        "Lemma 4.3",
        "For weights of rank $D$ each $S$, invertible or not, gives a null direction by the SVDs of both weights.",
        "confirmed",
        ("lem-directions", "prop-deficient-rank"),
        "04_directional_derivatives",
        ("identity", "generators"),
        evidence.null_directions,
        (9,),
        (
            "04_directional_derivatives#claim-lemma-4.3",
            "tests/claims/test_ledger.py::test_each_claim_holds",
        ),
        "$D \\le E$, rank $D$",
    ),
    Claim(
        "cor-4.4",
        "Corollary 4.4",
        "These directions form a linear space of dimension $D^2$, and there are no others.",
        "confirmed",
        ("cor-dimension",),
        "04_directional_derivatives",
        FOUR,
        _counts(Attention(6, 1, head_dim=2), Attention(6, 1, head_dim=6)),
        (8, 72),
        (
            "04_directional_derivatives#claim-cor-4.4",
            "tests/layer/test_directions.py::test_generators_span_what_is_measured_to_be_null",
        ),
    ),
    Claim(
        "cor-4.5",
        "Corollary 4.5",
        "$(W_Q, -W_K)$ is a null direction; along the null line of $T$ the product changes by $-t^2 W_K^\\top T^2 W_Q$.",
        "corrected",
        ("cor-straight-line", "prop-second-order"),
        "04_directional_derivatives",
        ("identity",),
        evidence.straight_line,
        (),
        (
            "04_directional_derivatives#claim-cor-4.5",
            "tests/claims/test_ledger.py::test_each_claim_holds",
        ),
        "",
        "The proof interchanges the labels of the two variations, and the second-order term after it has a plus sign where a minus belongs.",
    ),
    Claim(
        "sec-4.5",
        "section 4.5",
        "$H$ heads with $D = E/H$ leave $E^2/H$ of $2E^2$ query-key numbers unidentified: the identified share is "
        "$1 - 1/(2H)$, $11/12$ or 92% for 6 heads.",
        "corrected",
        ("prop-share", "lem-heads-apart"),
        "05_many_heads",
        FOUR,
        _counts(*(Attention(6, H) for H in (1, 2, 3, 6))),
        (72, 36, 24, 12),
        (
            "05_many_heads#claim-sec-4.5",
            "tests/layer/test_counting.py::test_the_share_of_a_plain_layer",
        ),
        "",
        "$11/12$ is given as about 83%.",
    ),
    Claim(
        "lemma-4.6",
        "Lemma 4.6",
        "$(W_O S^{-1}, S W_V)$ keeps the product, and $(-W_O T, T W_V)$ are its $C^2$ null directions; the whole layer keeps the share $1 - 1/(2H)$.",
        "corrected",
        ("lem-value-output", "cor-whole-layer"),
        "05_many_heads",
        ("identity", *FOUR),
        evidence.value_output,
        (50,),
        (
            "05_many_heads#claim-lemma-4.6",
            "tests/layer/test_directions.py::test_the_actions_leave_the_function_where_it_is",
        ),
        "$C \\le E$",
        "The directions in the proof lack the minus sign, and the names of their SVD factors do not fit.",
    ),
    Claim(
        "sec-4.6",
        "section 4.6",
        "With biases the action is $(S W_Q, S b_Q)$, $(S^{-\\top} W_K, S^{-\\top} b_K)$; weights moved without biases change the function.",
        "confirmed",
        ("prop-joint-action",),
        "06_biases",
        ("identity", *FOUR),
        evidence.biases_move_along,
        (80,),
        (
            "06_biases#claim-sec-4.6",
            "tests/layer/test_directions.py::test_the_actions_leave_the_function_where_it_is",
        ),
    ),
    Claim(
        "fact-4.7",
        "Fact 4.7",
        "The softmax ignores a shift common to all keys: $b_K$ has no effect and no gradient.",
        "confirmed with conditions",
        ("lem-key-bias",),
        "06_biases",
        ("identity", *FOUR),
        evidence.idle_key_bias,
        (72, 40, 64, 64),
        ("06_biases#claim-fact-4.7", "tests/layer/test_counting.py::test_cases"),
        "plain softmax, no rotation, no soft-cap, no sink",
        "Stated without conditions. Under RoPE $b_K$ turns with its position; a soft-cap or a sink tells shifts apart.",
    ),
    Claim(
        "sec-4.7.2",
        "section 4.7.2",
        "Of the value and output biases only $\\sum_h W_O^h b_V^h + b_O$ is identified: $2E$ removable numbers, with $b_K$.",
        "confirmed with conditions",
        ("lem-pooled-bias",),
        "06_biases",
        ("identity", *FOUR),
        evidence.pooled_bias,
        (72, 64),
        ("06_biases#claim-sec-4.7.2", "tests/claims/test_ledger.py::test_each_claim_holds"),
        "rows of attention that sum to one",
        "Stated without conditions. It fails where rows do not sum to one: a sink, attention dropout.",
    ),
    Claim(
        "sec-4.8.1",
        "section 4.8.1",
        "Heads wider than $E/H$ lower the share: $D/(2E)$ of the query-key numbers are unidentified.",
        "confirmed with conditions",
        ("prop-wider",),
        "07_wider_heads",
        FOUR,
        _counts(*(Attention(4, 2, head_dim=D, value_dim=1) for D in (1, 2, 4, 6))),
        (4, 10, 34, 66),
        ("07_wider_heads#claim-sec-4.8.1", "tests/layer/test_counting.py::test_cases"),
        "$D \\le E$; beyond it $2DE - E^2$ per head",
    ),
    Claim(
        "fig-1",
        "Figure 1",
        "With $d = 512$, 8 heads, 24 layers and both circuits, heads of 32, 64, 128, 256 leave 0.39, 1.57, 6.29, 25.17 million numbers unidentified.",
        "corrected",
        (),
        "07_wider_heads",
        ("formula",),
        lambda: {
            "formula": [
                24 * evidence.counting.count(Attention(512, 8, head_dim=D)).unidentified
                for D in (32, 64, 128, 256)
            ]
        },
        (393216, 1572864, 6291456, 25165824),
        ("07_wider_heads#claim-fig-1", "tests/claims/test_ledger.py::test_each_claim_holds"),
        "",
        "0.26, 1.05, 4.20, 16.82 million: two thirds of what the paper's own formula gives.",
    ),
    Claim(
        "prop-4.8",
        "Proposition 4.8",
        "Under RoPE $S$ must commute with every rotation: $(\\mathbb{C} \\setminus 0)^{D/2}$, $D$ dimensions, for distinct frequencies; "
        "$2 m^2$ for $m$ planes that turn alike or oppositely, $d^2$ for $d$ coordinates that keep still or turn by half turns.",
        "confirmed with conditions",
        ("prop-rotary", "lem-commutant", "lem-rotary-outputs", "prop-rotary-wide"),
        "08_rotary_positions",
        FOUR,
        _counts(
            *(
                Attention(8, 1, head_dim=4, value_dim=1, rotary=r)
                for r in ((1.0, 0.3), (1.0, 1.0), (1.0, -1.0), (0.0, 1.0), (pi, pi), (1.0,))
            )
        ),
        (5, 9, 9, 7, 17, 7),
        (
            "08_rotary_positions#claim-prop-4.8",
            "tests/layer/test_counting.py::test_what_commutes_with_the_rotations",
        ),
        "distinct nonzero frequencies, modulo sign and $2\\pi$",
        "Stated for all frequencies, necessity argued by hand. Equal, opposite, zero and half-turn frequencies, and heads that turn in part, have larger groups.",
    ),
    Claim(
        "sec-4.9",
        "section 4.9",
        "Grouped queries share one $S$ per group: $G D^2$, with rotation $G D$; the value-output circuit loses $G C^2$.",
        "confirmed",
        ("prop-groups", "prop-groups-rotary"),
        "09_grouped_queries",
        FOUR,
        _counts(Attention(8, 4, 2), Attention(8, 4, 1), Attention(8, 4, 2, rotary=(0.7,))),
        (16, 8, 12),
        ("09_grouped_queries#claim-sec-4.9", "tests/layer/test_counting.py::test_cases"),
    ),
    Claim(
        "llama",
        "section 4.9",
        "Llama-2-70B: 1,024 unidentified numbers a layer in the query-key circuit, which turns, and 131,072 in the value-output circuit.",
        "corrected",
        (),
        "09_grouped_queries",
        ("formula",),
        lambda: evidence.formula_alone(Attention(8192, 64, 8, **LLAMA)),
        ({WHOLE: 131072, QUERY_KEY: 1024},),
        ("09_grouped_queries#claim-llama", "tests/layer/test_counting.py::test_llama_2_70b"),
        "",
        "131,072 for the query-key circuit, as without RoPE; the value-output circuit is left out.",
    ),
    Claim(
        "sec-4.10",
        "section 4.10",
        "No single head has the identified numbers of $H \\ge 2$ heads at the same $E$: at most $2E^2$ against $(4 - 2/H) E^2$. "
        "With $E$ free, $E_0 = \\lceil E \\sqrt{2 - 1/H} \\rceil$: 38% wider for 12 heads.",
        "corrected",
        ("thm-no-go", "prop-inflation", "prop-segment"),
        "10_no_single_head",
        FOUR,
        _counts(Attention(4, 2), Attention(4, 1), Attention(4, 1, head_dim=6)),
        (16, 32, 64),
        ("10_no_single_head#claim-sec-4.10", "tests/claims/test_ledger.py::test_each_claim_holds"),
        "$D = C = E/H$",
        '"Roughly 60% larger for 12 heads", which the width does not give: $\\sqrt{2 - 1/12} = 1.384$. A whole GPT-2-sized network, without '
        "output matrices, does come to 1.64 times its numbers.",
    ),
    Claim(
        "layer-norm",
        "not in the paper",
        "A layer normalisation without gain or bias puts out centred vectors: one more idle direction in each row of $W_Q$, $W_K$, $W_V$.",
        "corrected",
        (),
        "06_biases",
        FOUR,
        _counts(Attention(8, 2, inputs="centred")),
        (88,),
        ("tests/layer/test_counting.py::test_terms_name_each_symmetry_and_sum_to_the_count",),
        "",
        "The count of a layer is taken as the sum over its heads; what comes before the layer adds to it.",
    ),
)

HYPOTHESIS = "17_does_identification_matter"
TRAINING = (
    Claim(
        "lemma-5.1",
        "Lemma 5.1",
        "Gradient flow conserves $W_Q W_Q^\\top - W_K W_K^\\top$ for each head; a step of SGD adds exactly "
        "$\\eta^2 (W_K G G^\\top W_K^\\top - W_Q G^\\top G W_Q^\\top)$ to it, and decoupled decay first contracts it by $(1 - \\eta\\lambda)^2$.",
        "confirmed",
        ("lem-conserved", "lem-one-step", "lem-decay", "prop-heavy-ball", "prop-respects"),
        FLOW,
        ("identity",),
        evidence.drift_of_one_step,
        (),
        (f"{FLOW}#claim-lemma-5.1", "tests/layer/test_metrics.py::test_a_gradient_step_is_outside"),
        "",
        "The drift is expected to go roughly with the square of the rate; the identity behind it, and what decay does, are left out.",
    ),
    Claim(
        "conserved-biases",
        "Lemma 5.1, section 5.2",
        "With biases the flow conserves $W_Q W_Q^\\top + b_Q b_Q^\\top - W_K W_K^\\top - b_K b_K^\\top$: "
        "the weights alone drift at first order in the rate, and the $\\rho$ of a gradient step is not zero.",
        "corrected",
        ("prop-conserved-bias",),
        FLOW,
        ("identity",),
        evidence.conserved_with_biases,
        (),
        (f"{FLOW}#claim-lemma-5.1",),
        "",
        "The runs have biases, and $\\beta$, $\\tau$ and $\\rho$ are taken from the weights alone.",
    ),
    Claim(
        "least-squares",
        "section 5.1",
        "$\\rho$ projects a step on the null space of all $(S W_Q, -S^\\top W_K)$: the objective has $+ S^\\top W_K$ in its second term.",
        "corrected",
        (),
        FLOW,
        ("identity",),
        evidence.least_squares_sign,
        (),
        (f"{FLOW}#claim-least-squares",),
        "",
        "The second term of the least-squares objective has a minus sign, which the Sylvester equation below it contradicts; and entry $d, d'$ of its "
        "solution is divided by $\\lambda_{Q,d} + \\lambda_{K,d'}$ where it must be $\\lambda_{K,d} + \\lambda_{Q,d'}$.",
    ),
    Claim(
        "rho",
        "sections 5.1, 5.3",
        "$1/(2H)$ is the mean of $\\rho$ over isotropic steps and no bound: $\\rho$ reaches 1.",
        "corrected",
        ("prop-rho",),
        FLOW,
        ("identity", "mean of 2,000 steps"),
        evidence.mean_rho,
        (),
        (f"{FLOW}#claim-rho",),
        "",
        "$1/(2H)$ is drawn as a boundary.",
    ),
    Claim(
        "beta-tau-mu",
        "section 5.1",
        "$\\beta$ and $\\tau$ see $D(D+1)/2$ directions of the $D^2$: a null step with $S P + K S$ skew moves neither to first order.",
        "corrected",
        ("prop-conserved-count",),
        FLOW,
        ("identity",),
        evidence.unseen_null_step,
        (),
        (f"{FLOW}#claim-beta-tau-mu",),
        "",
        "$\\beta$ is read as a measure of how much of the null space training uses.",
    ),
    Claim(
        "rebalancing-biases",
        "section 5.2.2",
        "Rebalancing weights without their biases changes the function, through $W_K^\\top b_Q$.",
        "corrected",
        (),
        BALANCE,
        ("identity", *FOUR),
        evidence.biases_move_along,
        (80,),
        (f"{BALANCE}#claim-rebalancing-biases",),
        "",
        "Weights are moved and biases, which are on, are not mentioned.",
    ),
    Claim(
        "rebalancing",
        "section 5.2.2",
        "Rebalancing by QR and SVD keeps the product $W_K^\\top W_Q$ and makes both Gram matrices equal; the result is the nearest such pair, and "
        "$W_K$ becomes $Z \\Sigma^{1/2} U^\\top Q_K^\\top$.",
        "corrected",
        ("prop-balanced-orbit", "prop-least-norm", "prop-nearest", "prop-rotary-balance"),
        BALANCE,
        ("identity",),
        evidence.rebalancing,
        (),
        (f"{BALANCE}#claim-rebalancing",),
        "",
        "The new $W_K$ is printed with its last two factors in the other order, in which they have no product.",
    ),
    Claim(
        "four-cases",
        "section 5.2.1",
        "Four cases of nanoGPT on tiny Shakespeare, SGD, SGD with decay, AdamW and AdamW rebalanced, ten seeds each at the size of a laptop: "
        "AdamW makes the most progress.",
        "confirmed with conditions",
        (),
        RUNS,
        ("records",),
        trained.four_cases,
        (),
        (f"{RUNS}#claim-four-cases",),
        LAPTOP_SIZE,
    ),
    Claim(
        "fig-2",
        "Figure 2",
        "At the size of a laptop SGD keeps $\\beta$ and its $\\rho$ near 0 once biases are counted in, decay shrinks $\\beta$ by $\\prod (1 - \\eta\\lambda)^2$, AdamW does "
        "not keep it and its $\\rho$ is a quarter of $1/(2H)$ in the mean; $\\mu$ stays above 0; rebalancing makes $\\beta$ a sawtooth and leaves the loss within 0.02 nats.",
        "confirmed with conditions",
        (),
        RUNS,
        ("records",),
        trained.figure_2,
        (),
        (f"{RUNS}#claim-fig-2", f"{RUNS}#claim-single-runs"),
        LAPTOP_SIZE,
    ),
    Claim(
        "fig-3",
        "Figure 3",
        "Key-bias gradients are zero to rounding, in single and in double precision; query-bias gradients are not.",
        "confirmed",
        (),
        RUNS,
        ("records",),
        trained.figure_3,
        (),
        (f"{RUNS}#claim-fig-3",),
    ),
    Claim(
        "fig-4",
        "Figure 4",
        "The drift of a step of SGD is what its gradients predict, quadratic in the rate; between runs at different rates no one power describes it. Late $\\rho$ of the weights "
        "alone is, at rate 0.25, the same in double precision, and so the biases'; at rate 0.0625 it is mostly rounding.",
        "confirmed with conditions",
        (),
        RUNS,
        ("records",),
        trained.figure_4,
        (),
        (f"{RUNS}#claim-fig-4",),
        LAPTOP_SIZE,
        "The drift is said to fall with the rate, roughly as its square, and spikes of $\\rho$ to be an artefact of small steps.",
    ),
    Claim(
        "control",
        "section 5.3",
        "Clearing the optimizer's state without moving weights behaves like AdamW: the same loss within 0.02 nats, and $\\beta$ grows.",
        "confirmed with conditions",
        (),
        RUNS,
        ("records",),
        trained.control,
        (),
        (f"{RUNS}#claim-control",),
        LAPTOP_SIZE,
    ),
    Claim(
        "single-runs",
        "section 5.3",
        "What is said of training holds in the mean over seeds, compared in pairs, with intervals.",
        "confirmed with conditions",
        (),
        RUNS,
        ("records",),
        trained.figure_2,
        (),
        (f"{RUNS}#claim-single-runs",),
        LAPTOP_SIZE,
        "Every result is a single run.",
    ),
    Claim(
        "hypothesis",
        "sections 1, 6",
        "Presumed: more identified parameters make better models of the same size. A pilot, by "
        "one untuned recipe at the size of a laptop: without the idle numbers of the attention "
        "circuits, or with as many spent on a wider MLP, the final loss is the same within 0.02 "
        "nats; with more idle numbers for the same functions it is lower, by less than 0.02; from "
        "1 to 32 heads it rises, and functions change with it. No run shows that identified "
        "numbers matter at this size, so the presumption is neither supported nor refuted.",
        "tested, not settled",
        (),
        HYPOTHESIS,
        ("records",),
        trained.hypothesis,
        (),
        (
            f"{HYPOTHESIS}#claim-hypothesis",
            "tests/training/test_parametrisations.py::test_it_starts_as_the_function_of_the_plain_model",
            "tests/claims/test_trained.py::test_noisier_losses_contradict_what_is_said_of_the_hypothesis",
        ),
        "4 layers of width 128, tiny Shakespeare, AdamW; nothing registered before",
    ),
)

NETWORK, ATLAS, CHECKPOINTS = "14_a_whole_network", "15_an_atlas", "16_real_checkpoints"
SMALL: dict[str, Any] = dict(n_layer=1, n_head=2, n_embd=4, mlp_width=4)
NETWORKS = (
    GPTConfig(7, 5, **SMALL),
    GPTConfig(7, 5, bias=True, tied=False, norm="rmsnorm", positions="rotary", **SMALL),
)
NORMALISED = Attention(8, 2, rotary=(1.0, 0.3), qk_norm="head_gain")
LATENT = tuple(
    LatentAttention(8, 2, 4, 2, rotary=(1.0, 0.3), query_rank=rank) for rank in (5, None)
)
CANONICAL = (
    Attention(8, 2, head_dim=3, bias="qkvo"),
    Attention(8, 4, 2, 4, bias="qv", rotary=(1.0, 0.3)),
)
BEYOND = (
    Claim(
        "network",
        "beyond the paper: a whole network",
        "Of nanoGPT's 10,745,088 parameters no log-probability shows 451,748. What norms, embeddings, the residual stream and the "
        "softmax hide is counted by name; that nothing else is hidden is measured on small networks.",
        "confirmed with conditions",
        (
            "lem-14-norms",
            "lem-14-stream",
            "lem-14-tied",
            "lem-14-heads",
            "lem-14-reach",
            "prop-14-count",
        ),
        NETWORK,
        FOUR[:3],
        lambda: evidence.whole_networks(*NETWORKS),
        (57, 38),
        (
            f"{NETWORK}#claim-14-grid",
            f"{NETWORK}#claim-14-nanogpt",
            "tests/network/test_whole_network.py::test_formula_generators_and_rank_agree",
        ),
        "at generic weights; gains all equal, as at the start of training, hide more",
    ),
    Claim(
        "norms-latent",
        "beyond the paper: norms on queries and keys, latent attention",
        "Normalised queries and keys leave $H + G$ scales and one number for each plane or coordinate; "
        "latent attention loses what its latents and products can turn.",
        "confirmed",
        ("prop-qk-norm", "prop-latent"),
        ATLAS,
        FOUR[:2],
        lambda: evidence.norms_and_latents(NORMALISED, *LATENT),
        (38, 47, 31),
        (
            f"{ATLAS}#claim-atlas",
            "tests/models/test_architectures.py::test_a_family_counts_what_its_real_module_shows",
        ),
    ),
    Claim(
        "canonical-layer",
        "beyond the paper: a layer in canonical form",
        "Identity blocks in keys and values, with idle biases zero and value biases folded, set exactly as many numbers as are unidentified, and leave none "
        "unidentified. all-MiniLM-L6-v2 without them, 152,064 numbers, puts out the same embeddings to $10^{-5}$ in float32.",
        "confirmed",
        ("prop-canonical-layer",),
        CHECKPOINTS,
        ("formula", "measured rank", "numbers set"),
        lambda: evidence.canonical_layers(*CANONICAL),
        (48, 40),
        (f"{CHECKPOINTS}#claim-canonical-layer", f"{CHECKPOINTS}#claim-minilm"),
    ),
    Claim(
        "rounding",
        "beyond the paper: the gauge that rounds best",
        "Rounding a head's factors costs its product $(2\\sigma^2 + \\sigma^4) \\sum_d \\|k_d\\|^2 \\|q_d\\|^2$ in the mean, least for balanced factors with rows of equal length.",
        "confirmed",
        ("prop-rounding",),
        CHECKPOINTS,
        ("identity",),
        evidence.rounding_of_gauges,
        (),
        (f"{CHECKPOINTS}#claim-rounding",),
    ),
    Claim(
        "idle-steering",
        "beyond the paper: what idle parameters can do",
        "Plain, canonical and factored parameters of a head reach the same infimum of any loss of $W_K^\\top W_Q$, and move it differently under gradient flow.",
        "confirmed",
        ("prop-idle-steering",),
        HYPOTHESIS,
        ("identity",),
        evidence.idle_parameters_steer,
        (),
        (f"{HYPOTHESIS}#claim-idle-steering",),
    ),
)

LEDGER = THEORY + TRAINING + BEYOND
