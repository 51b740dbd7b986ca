# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% tags=["remove-cell"]
# On Colab: fetch the book and install its package. In a clone: go to the records.
import os, subprocess, sys

if "google.colab" in sys.modules:
    address = "https://github.com/identified-attention/identified-attention"
    fetch = f"test -d ~/attnid || git clone -q --depth 1 {address} ~/attnid"
    install = f"{sys.executable} -m pip install -q ~/attnid"
    subprocess.run(f"{fetch} && {install}", shell=True, check=True)
    os.chdir(os.path.expanduser("~/attnid/notebooks"))
elif os.path.isdir("../../../notebooks/results"):
    os.chdir("../../../notebooks")

# %% [markdown]
# # Gradient flow conserves
#
# *Assumed: {prf:ref}`lem-invariance` and the {term}`null directions <null direction>` of {prf:ref}`lem-directions`; what a gradient step,
# momentum and Adam are.*
#
# *In the ledger:* {ref}`Lemma 5.1 <ledger-lemma-5-1>`, {ref}`the least-squares problem <ledger-least-squares>`, {ref}`rho <ledger-rho>`,
# {ref}`beta, tau and mu <ledger-beta-tau-mu>`, {ref}`biases <ledger-conserved-biases>`.
#
# ## The question
#
# A head does not show which of the many pairs $(S W_Q, S^{-\top} W_K)$ it holds. The loss cannot prefer one to another, and so its
# gradient never points from one to another. Yet training ends at *one* of them. Which, and who chose it? Under {term}`gradient flow` the
# answer is that nobody did: a matrix of numbers fixed at initialisation is carried along unchanged. Under a real optimiser it is not, and
# we would like measures that say by how much.
#
# Throughout, one head has the {term}`Gram matrices <Gram matrix>` $P = W_Q W_Q^\top$ and $K = W_K W_K^\top$, both $D \times D$. We call
#
# $$
# \Delta = P - K
# $$
#
# its **{term}`imbalance`**, as {cite:t}`arora2018` do for layers of a deep linear network, and write
# $A = \partial L / \partial W_Q$, $B = \partial L / \partial W_K$ and $G = \partial L / \partial M$ for the gradients of the loss, $M =
# W_K^\top W_Q$.
# By the chain rule $A = W_K G$ and $B = W_Q G^\top$.

# %% [markdown]
# ## The claim
#
# First gradient flow, then steps of finite size, then measures of a step, and last what biases add.
#
# ### What the flow keeps
#
# ```{prf:lemma} Gradient flow conserves the imbalance (paper: Lemma 5.1)
# :label: lem-conserved
#
# Let the loss $L$ be differentiable, and $L(S W_Q, S^{-\top} W_K) = L(W_Q, W_K)$ for every nonsingular $S \in \mathbb{R}^{D \times D}$.
#
# 1. At all weights, $A W_Q^\top = W_K B^\top$. These are $D^2$ equations.
# 2. Along the gradient flow $\dot W_Q = -A$, $\dot W_K = -B$ the matrix $\Delta = W_Q W_Q^\top - W_K W_K^\top$ is constant. These are
#    $D(D+1)/2$ conserved numbers.
# ```
#
# No rank is assumed, and $D$ may exceed $E$. The loss may depend on the rest of the network, trained at the same time, and may change
# from one instant to the next, as with minibatches and dropout. Rescaling the whole
# gradient, as clipping by the norm does, changes the pace and not the path.
#
# There are $D^2$ {term}`unidentified` directions, and $D(D+1)/2$ conserved numbers. Are we missing some?
#
# ```{prf:proposition} Nothing else is conserved (beyond the paper)
# :label: prop-conserved-count
#
# Call a smooth function $f$ of $(W_Q, W_K)$ *conserved* if it is constant along the gradient flow of every smooth loss of $M$.
#
# 1. Where the $D \times 2E$ matrix $(W_Q\; W_K)$ has rank $D$, the gradient of a conserved function is
#    $(T W_Q, -T W_K)$ with a *symmetric* $T$. The entries of $\Delta$ provide all of these, so there are exactly $D(D+1)/2$ independent
#    conserved numbers.
# 2. Along the null direction $(S W_Q, -S^\top W_K)$ the imbalance changes at the rate
#    $(S P + K S) + (S P + K S)^\top$. If $W_Q$ or $W_K$ has rank $D$, the null directions along which it keeps still are those with $S P +
#    K S$ skew, a space of
#    dimension $D(D-1)/2$.
# 3. With {term}`rotary positions <rotary position>`, $D/2$ planes with distinct frequencies in $(0, \pi)$, losses of all the products
#    $M_\delta = W_K^\top R_\delta
#    W_Q$, and $E \ge 2$, exactly $D/2$ independent numbers are conserved: for each plane
#    $\lVert q_i \rVert^2 - \lVert k_i \rVert^2$, where $q_i$ and $k_i$ are the two rows of $W_Q$ and of $W_K$ in that plane.
# ```
#
# The first part is an instance of what {cite:t}`marcotte2023` do for products of matrices in general, and for transformers in
# {cite:t}`marcotte2025`.

# %% [markdown]
# ### What steps of finite size do
#
# ```{prf:lemma} The drift of one step (beyond the paper)
# :label: lem-one-step
#
# A step of gradient descent, $W_Q \mapsto W_Q - \eta A$ and $W_K \mapsto W_K - \eta B$, changes the imbalance by exactly
#
# $$
# \eta^2 \big( A A^\top - B B^\top \big) = \eta^2 \big( W_K G G^\top W_K^\top - W_Q G^\top G\, W_Q^\top \big) .
# $$
# ```
#
# This change is the {term}`drift` of the step. So $n = t/\eta$ steps, at falling rates and a fixed time $t$, change it by $\eta \int_0^t (A A^\top - B B^\top)$ to first order in $\eta$.
#
# ```{prf:lemma} Decay contracts (beyond the paper)
# :label: lem-decay
#
# With decoupled weight decay, $W_Q \mapsto (1 - \eta\lambda) W_Q - \eta A$ and likewise for $W_K$, the step turns $\Delta$ into exactly
#
# $$
# (1 - \eta\lambda)^2\, \Delta + \eta^2 \big( A A^\top - B B^\top \big) .
# $$
# ```
#
# For plain gradient descent it makes no difference whether the decay is decoupled or added to the gradient: the step is the same. The
# flow with decay has
# $\Delta(t) = e^{-2\lambda t} \Delta(0)$.
#
# ```{prf:proposition} Momentum remembers (beyond the paper)
# :label: prop-heavy-ball
#
# Let $V_{n+1} = \gamma V_n - \eta\, (A_n, B_n)$ and $(W_Q, W_K)_{n+1} = (W_Q, W_K)_n + V_{n+1}$, with $V_0 = 0$, and write
# $V_n = (V_Q, V_K)_n$, $\Phi_n = V_Q V_Q^\top - V_K V_K^\top$. Then exactly
#
# $$
# \Delta_{n+1} - \Delta_n = Y_n + \Phi_{n+1}, \qquad Y_n = \gamma\, (Y_{n-1} + 2 \Phi_n), \qquad Y_0 = 0 .
# $$
# ```
#
# Where gradients vary slowly, $V \approx -\frac{\eta}{1 - \gamma} (A, B)$ and $Y \approx \frac{2\gamma}{1-\gamma} \Phi$: momentum drifts
# like gradient descent at the rate
# $\eta / (1 - \gamma)$, but $(1 + \gamma)/(1 - \gamma)$ times as much, 19 times for $\gamma = 0.9$. The drift still vanishes with the rate.
# Adam's does not. One reason is visible in what it respects.
#
# ```{prf:proposition} What an optimiser respects (beyond the paper)
# :label: prop-respects
#
# Let $D \le E$. Say that an optimiser *respects* $S$ if, started from $(S W_Q, S^{-\top} W_K)$ instead of $(W_Q, W_K)$, it makes the steps
# $(S\, \delta W_Q, S^{-\top} \delta W_K)$ instead of $(\delta W_Q, \delta W_K)$, for every loss of $M$.
#
# 1. Gradient descent, with or without momentum and decay, respects the orthogonal $S$ and no others.
# 2. Adam (with its small constant $\varepsilon = 0$) respects the $2^D D!$ signed permutations and no others.
# ```

# %% [markdown]
# ### How far a step is from orthogonal
#
# The paper measures a step $\delta = (\delta W_Q, \delta W_K)$ by its best approximation in the null space $\mathcal{N} = \{ (S W_Q,
# -S^\top W_K) \}$.
#
# ```{prf:proposition} The share of a step that is null (paper: section 5.1)
# :label: prop-rho
#
# Let $p_j, u_j$ and $k_i, v_i$ be the eigenvalues and orthonormal eigenvectors of $P$ and of $K$, and let $\mu = \min_j p_j + \min_i k_i >
# 0$.
#
# 1. The least-squares problem $\min_S \lVert \delta W_Q - S W_Q \rVert^2 + \lVert \delta W_K + S^\top W_K \rVert^2$ has exactly one
#    solution, that of the Sylvester equation
#
#    $$
#    S P + K S = R, \qquad R = \delta W_Q W_Q^\top - W_K\, \delta W_K^\top .
#    $$
#
#    In the two eigenbases it is had by dividing entry by entry: $v_i^\top S\, u_j = v_i^\top R\, u_j \,/\, (k_i + p_j)$.
# 2. The squared length of the projection of $\delta$ on $\mathcal{N}$, relative to that of $\delta$, is
#
#    $$
#    \rho = \frac{\lVert S W_Q \rVert^2 + \lVert S^\top W_K \rVert^2}{\lVert \delta W_Q \rVert^2 + \lVert \delta W_K \rVert^2}
#         = \frac{1}{\lVert \delta \rVert^2} \sum_{i,j} \frac{(v_i^\top R\, u_j)^2}{k_i + p_j} .
#    $$
#
#    It lies in $[0, 1]$: it is 0 exactly for steps orthogonal to $\mathcal{N}$, gradients among them, and 1 exactly for null steps.
# 3. If $\delta$ is isotropic in $\mathbb{R}^{2DE}$, then $\rho$ has the distribution $\mathrm{Beta}\big(\tfrac{D^2}{2}, \tfrac{2DE -
#    D^2}{2}\big)$, of mean
#    $D/(2E)$. This is $1/(2H)$ when $D = E/H$.
# ```
#
# In words this share is {term}`rho`. The other measures look at the weights and not at the step: {term}`beta`, $\beta = \lVert \Delta
# \rVert_F$, and {term}`tau`, $\tau = \operatorname{tr} \Delta = \lVert W_Q \rVert^2 - \lVert W_K \rVert^2$, both conserved by the flow, and
# {term}`mu`, the $\mu$ above, which is positive exactly when $W_Q$ or $W_K$ has full rank $D$. Where $\mu = 0$, {prf:ref}`prop-deficient-rank` says how much
# $\mathcal{N}$ has shrunk; $\rho$ is still a projection.
#
# ### With biases
#
# ```{prf:proposition} Biases belong to the conserved matrix (beyond the paper)
# :label: prop-conserved-bias
#
# Let the queries and keys of a plain softmax head have biases, and let $a = \partial L / \partial b_Q$.
#
# 1. Gradient flow conserves $W_Q W_Q^\top + b_Q b_Q^\top - W_K W_K^\top - b_K b_K^\top$, and $b_K$ itself.
# 2. A step of gradient descent changes $W_Q W_Q^\top - W_K W_K^\top$ by $\eta\, (a b_Q^\top + b_Q a^\top) + \eta^2 (A A^\top - B
#    B^\top)$: at first order in
#    $\eta$, as soon as $b_Q \ne 0$ and $a \ne 0$.
# 3. The $\rho$ of that step is zero when computed from $(W_Q\; b_Q)$ and $(W_K\; b_K)$, $D \times (E + 1)$ matrices. Computed from $W_Q$
#    and $W_K$ alone it is, with the notation of {prf:ref}`prop-rho`,
#
#    $$
#    \rho = \frac{1}{\lVert A \rVert^2 + \lVert B \rVert^2} \sum_{i,j} \frac{(v_i^\top a)^2 (u_j^\top b_Q)^2}{k_i + p_j} ,
#    $$
#
#    which is positive as soon as $b_Q \neq 0$ and $a \ne 0$, and does not depend on the rate.
# ```

# %% [markdown]
# ## Proof
#
# ```{prf:proof}
# (of {prf:ref}`lem-conserved`) *1.* For any $T \in \mathbb{R}^{D \times D}$ the loss is constant along the curve $(e^{tT} W_Q,
# e^{-tT^\top} W_K)$. Its derivative at $t = 0$ is
# $0 = \langle A, T W_Q \rangle - \langle B, T^\top W_K \rangle = \langle T,\, A W_Q^\top - W_K B^\top \rangle$. This holds for all $T$.
# *2.* By *1* and its transpose, $\dot P = -(A W_Q^\top + W_Q A^\top) = -(W_K B^\top + B W_K^\top) = \dot K$.
# ```
#
# The paper's proof computes $A W_Q^\top = W_K G W_Q^\top = W_K B^\top$ with the chain rule. The argument above asks for the symmetry
# alone, and it is Noether's in its simplest form
# ({cite:t}`kunin2021`, {cite:t}`zhao2025`): for symmetric $T$ the null direction $(T W_Q, -T W_K)$ is itself a gradient, that of
# $\frac{1}{2} \langle T, \Delta \rangle$. Two functions whose gradients are
# orthogonal everywhere are conserved by each other's flows. For skew $T$ there is no such function, as we now show.
#
# ```{prf:proof}
# (of {prf:ref}`prop-conserved-count`) *1.* Put $U = (W_Q\; W_K)$ and $J = \mathrm{diag}(I, -I) \in \mathbb{R}^{2E \times 2E}$; then
# $\Delta = U J U^\top$. The gradient of a loss is $U \Gamma$ with
#
# $$
# \Gamma = \begin{pmatrix} 0 & G^\top \\ G & 0 \end{pmatrix},
# $$
#
# and linear losses provide every $G \in \mathbb{R}^{E \times E}$. So the derivative of a conserved $f$ along each linear vector field
# $U\Gamma$ is zero, and then also along their brackets
# $U(\Gamma_1 \Gamma_2 - \Gamma_2 \Gamma_1)$. With $G_1 = e_i e_j^\top$ and $G_2 = e_i e_k^\top$, $j \neq k$, the bracket is
# $\mathrm{diag}(e_j e_k^\top - e_k e_j^\top,\, 0)$, and transposing both gives the same in the other
# block. Sums of all these make every matrix $\Omega J$ with skew $\Omega \in \mathbb{R}^{2E \times 2E}$. Let $F$ be the gradient of $f$.
# Then $0 = \langle F, U \Omega J \rangle = \langle U^\top F J, \Omega \rangle$ for all skew $\Omega$, so $U^\top F J$ is
# symmetric: with $F' = F J$, $U^\top F' = F'^\top U$. Let $U^+$ be a right inverse of $U$. Multiplying by $(U^+)^\top$ from the left, $F' =
# T U$ with $T = (F' U^+)^\top$. Now $U^\top T U$ is symmetric, hence so is $T$, and $F = T U J = (T W_Q, -T W_K)$. The map
# $T \mapsto T U J$ is injective, and $\frac12 \langle T, \Delta \rangle$ has this gradient.
#
# *2.* The derivative of $W_Q W_Q^\top$ along $S W_Q$ is $S P + P S^\top$, that of $W_K W_K^\top$ along $-S^\top W_K$ is $-S^\top K - K
# S$. The map $S \mapsto S P + K S$ is a bijection: in the eigenbases of {prf:ref}`prop-rho` it multiplies entry $i, j$ by
# $k_i + p_j > 0$. So the $S$ in question are as many as skew matrices.
#
# *3.* Read the two rows of a plane as one complex row, $q_i$ or $k_i \in \mathbb{C}^{1 \times E}$. Then $M_\delta = \mathrm{Re} \sum_i
# e^{\mathrm{i} \delta \theta_i} k_i^* q_i$. As the $\theta_i$ are distinct and in $(0, \pi)$, the $M_\delta$ determine the products
# $k_i^* q_i$, so losses of these products are what we have, and the gradient with respect to $u = (q_i\; k_i)$ is $u\,\Gamma$ with
# a Hermitian $\Gamma$ as before, $G \in \mathbb{C}^{E \times E}$. Their brackets make all $\Omega J$ with skew-Hermitian $\Omega$,
# $\operatorname{tr} \Omega J = 0$ (take $G_1 = e_i e_j^\top$, $G_2 = \mathrm{i} G_1$ for the diagonals). So $u^* F' - F'^* u = c\, J$
# with a number $c$. The left side has rank at most 2,
# and $J$ has rank $2E \geq 4$; so $c = 0$, and $F' = t\, u$ with a real $t$ as before: one conserved number for each plane.
# ```

# %% [markdown]
# ```{prf:proof}
# (of {prf:ref}`lem-one-step` and {prf:ref}`lem-decay`) With $s = 1 - \eta\lambda$, $(s W_Q - \eta A)(s W_Q - \eta A)^\top = s^2 P - \eta
# s (A W_Q^\top + W_Q A^\top) + \eta^2 A A^\top$, and likewise for the keys. In the
# difference the middle terms cancel, by part 1 of {prf:ref}`lem-conserved`.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`prop-heavy-ball`) For any $V$ let $X(V, W) = V_Q W_Q^\top + W_Q V_Q^\top - V_K W_K^\top - W_K V_K^\top$. Then
# $\Delta_{n+1} - \Delta_n = Y_n + \Phi_{n+1}$ with $Y_n = X(V_{n+1}, W_n)$. The gradient's part of $V_{n+1}$ contributes nothing, by
# {prf:ref}`lem-conserved`,
# so $Y_n = \gamma\, X(V_n, W_n) = \gamma\, X(V_n, W_{n-1} + V_n) = \gamma\, (Y_{n-1} + 2\Phi_n)$.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`prop-respects`) The loss sees the same $M$ and so the same $G$. The new gradient is $S^{-\top} W_K G = S^{-\top} A$, and
# $S B$ for the keys. *1.* If $S^{-\top} = S$, gradients change as the weights do, and so do the sums that momentum and decay make of
# them. If
# $S$ is respected, the first step shows $S^{-\top} A = S A$; as $W_K$ can have rank $D$, $A = W_K G$ can be any matrix, and $S^\top S =
# I$. *2.* What Adam does to an entry is an odd function of the history of that
# entry, the same for all, so it respects signed permutations. Conversely its first step is $-\eta \operatorname{sign}(A)$, so $S
# \operatorname{sign}(A) = \operatorname{sign}(S^{-\top} A)$ for almost all $A$: $S$ turns every vector of signs into a vector of signs.
# Row $i$ of $S$ then
# has $\sum_j \pm S_{ij} = \pm 1$ for every choice of signs. One choice makes the sum $\sum_j |S_{ij}|$, which is therefore 1; turning one
# sign changes it by $2 |S_{ij}|$ and must lead to $1$ or $-1$, so each $|S_{ij}|$ is 0 or 1, and exactly one of them is 1.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`prop-rho`) *1.* Setting the derivative in $S$ to zero gives $(S W_Q - \delta W_Q) W_Q^\top + W_K (S^\top W_K + \delta
# W_K)^\top = 0$, the Sylvester equation. Multiplied by $v_i^\top$ and $u_j$ it reads $(k_i + p_j)\, v_i^\top S u_j = v_i^\top R u_j$. *2.*
# The residual is orthogonal to $\mathcal{N}$, so
# $\rho$ is the squared cosine of an angle. The numerator is $\langle S, S P \rangle + \langle S, K S \rangle = \langle S, R \rangle$,
# which is the sum. A step is orthogonal to $\mathcal{N}$ when $\langle T, R \rangle = 0$ for all $T$, that is, $R = 0$; for a gradient
# this is {prf:ref}`lem-conserved`. *3.* $\mathcal{N}$ has dimension $D^2$, since $\mu > 0$ makes $S \mapsto (S W_Q, -S^\top W_K)$
# injective. For
# standard normal $\delta$, $\rho = x / (x + y)$ with independent $x \sim \chi^2_{D^2}$ and $y \sim \chi^2_{2DE - D^2}$.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`prop-conserved-bias`) By {prf:ref}`prop-joint-action` the loss has the symmetry of {prf:ref}`lem-conserved` in the
# matrices $(W_Q\; b_Q)$ and $(W_K\; b_K)$, which shows the first half of *1*; the second is {prf:ref}`lem-key-bias`. Part 1 of
# {prf:ref}`lem-conserved` now reads
# $A W_Q^\top + a b_Q^\top = W_K B^\top$, since the gradient of $b_K$ is zero. The terms of first order in the step's change of $\Delta$
# are therefore $-\eta (A W_Q^\top - W_K B^\top)$ plus its transpose, $\eta (a b_Q^\top + b_Q a^\top)$: this is *2*. In *3*, $R = -\eta (A
# W_Q^\top - W_K B^\top) = \eta\, a b_Q^\top$; put it into {prf:ref}`prop-rho`.
# ```

# %% [markdown]
# ## The same symbols in code
#
# A real head, small enough to be integrated exactly: two heads, $E = 6$, $D = C = 3$, causal softmax. It learns to imitate another such
# layer on eight fixed sequences, and
# all its weights are trained.

# %%
from functools import partial

import numpy as np
import torch
from scipy.integrate import simpson, solve_ivp
from scipy.linalg import solve_sylvester
from scipy.stats import beta as beta_distribution, kstest

from attnid import Attention, figures, forward, head_metrics
from attnid.layer.attention import random_inputs
from attnid.layer.metrics import with_bias
from attnid.training.run import TrainingConfig, learning_rate_at


def normal(seed, *shape):
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


# %%
def imitation(layer):
    """Weights to start from, and the loss: the mean squared distance to the outputs of a layer with other weights."""
    x = random_inputs(layer, 8, 6, seed=2)  # 8 sequences of 6 tokens
    target = forward(layer, layer.random_parameters(seed=1), x)
    return layer.random_parameters(
        seed=0
    ), lambda p, of=layer: (forward(of, p, x) - target).square().sum(-1).mean()


def imbalance(p):
    return p["W_Q"] @ p["W_Q"].mT - p["W_K"] @ p["W_K"].mT  # (H, D, D)


def apart(new, old):
    return float((new - old).norm() / old.norm())


layer = Attention(6, 2)
H, D, E = layer.H, layer.D, layer.E
start, loss = imitation(layer)

# %% [markdown]
# Part 1 of {prf:ref}`lem-conserved`, before anything moves: $A W_Q^\top = W_K B^\top$, all nine entries of both heads. We use the
# gradients of automatic differentiation, which knows nothing of $G$.

# %%
gradient = torch.func.grad(loss)
g = gradient(start)
left, right = g["W_Q"] @ start["W_Q"].mT, start["W_K"] @ g["W_K"].mT
assert left.norm() > 0.01 and apart(left, right) < 1e-12
print("A W_Q^T = W_K B^T to 1e-12:", apart(left, right) < 1e-12)

# %% [markdown]
# The flow is an ordinary differential equation in 144 unknowns. We hand it to an explicit Runge-Kutta method of order 8 with an error
# bound of our choice.


# %%
def flow(loss, start, time, tolerance):
    """States along the gradient flow, as a dict of tensors (n, ...), at n = 201 times from 0 to `time`."""
    sizes, gradient = [t.numel() for t in start.values()], torch.func.grad(loss)
    pack = lambda p: torch.cat([t.flatten() for t in p.values()])
    unpack = lambda v: {
        name: part.view(start[name].shape) for name, part in zip(start, v.split(sizes))
    }
    velocity = lambda _, v: -pack(gradient(unpack(torch.from_numpy(v)))).numpy()
    options = {
        "method": "DOP853",
        "rtol": tolerance,
        "atol": tolerance,
        "t_eval": np.linspace(0, time, 201),
    }
    run = solve_ivp(velocity, (0, time), pack(start).numpy(), **options)
    states = [unpack(torch.from_numpy(v)) for v in run.y.T.copy()]
    return {name: torch.stack([state[name] for state in states]) for name in start}


time = 2.0
path = flow(loss, start, time, 1e-12)

# %% [markdown]
# ## The check
#
# Each statement in turn, on the small layer just defined: what the flow keeps and how many numbers that is, then what steps do.
#
# ### The flow
#
# By $t = 2$ the loss has fallen to less than a tenth and the weights have moved by a tenth of their length. The imbalance has not moved:
# it stays within $10^{-10}$ of where it was, relative to its norm.
# With a solver a million times as sloppy it stays within what that solver is worth, which shows that the agreement is not built in.

# %% tags=["claim-lemma-5.1"]
end = {name: states[-1] for name, states in path.items()}
kept = (imbalance(path) - imbalance(start)).flatten(1).norm(dim=1).max() / imbalance(
    start
).norm()
sloppy = flow(loss, start, time, 1e-6)
kept_sloppy = (imbalance(sloppy) - imbalance(start)).flatten(1).norm(
    dim=1
).max() / imbalance(start).norm()
assert kept < 1e-10 and 1e-10 < kept_sloppy < 1e-5
assert loss(end) < 0.1 * loss(start) and all(
    apart(end[name], start[name]) > 0.05 for name in ("W_Q", "W_K")
)
print(
    f"the loss falls to {loss(end) / loss(start):.2f} of itself, W_Q moves by {apart(end['W_Q'], start['W_Q']):.2f} of its norm"
)
print("imbalance constant to 1e-10:", bool(kept < 1e-10))

# %% [markdown]
# ```{prf:remark} The layout matters
# :label: rem-11-layout
#
# Weights are $D \times E$ here, as in the paper and in `torch.nn.Linear`, and $W_Q W_Q^\top - W_K W_K^\top$ is a $D \times D$ matrix,
# where $S$ acts. The $E \times E$ matrix $W_Q^\top W_Q - W_K^\top W_K$ looks as good and is *not* conserved; it would be the right one
# for weights stored
# as $E \times D$.
# ```

# %%
wrong = lambda p: p["W_Q"].mT @ p["W_Q"] - p["W_K"].mT @ p["W_K"]  # (H, E, E)
assert apart(wrong(end), wrong(start)) > 0.1
print(f"the E x E matrix moves by {apart(wrong(end), wrong(start)):.2f} of its norm")

# %% [markdown]
# ### How many numbers
#
# {prf:ref}`prop-conserved-count` says that gradients and their brackets leave room for $D(D+1)/2$ conserved numbers and no more. That is
# a statement about a rank, and we can compute it without
# using the proof. Each entry of $M$, or of the rotary products $M_\delta = W_K^\top R_\delta W_Q$, is a quadratic form in all $2DE$
# weights $w$. Its Hessian $\mathsf{A}$, by automatic differentiation, makes its gradient $\mathsf{A} w$, and the bracket of two
# gradients is $(\mathsf{A}_1 \mathsf{A}_2 - \mathsf{A}_2 \mathsf{A}_1) w$. What they fail to span is the number of conserved quantities.


# %%
def measured_conserved(rotations, E, seed=3):
    """2 D E minus the rank of the gradients of all products W_K^T R W_Q and of their brackets, at random weights."""
    D = rotations.shape[-1]
    w = normal(seed, 2 * D * E)
    products = lambda w: torch.einsum(
        "de,rdf,fg->reg", w.view(2, D, E)[1], rotations, w.view(2, D, E)[0]
    ).flatten()
    hessians = torch.func.hessian(products)(torch.zeros_like(w))  # (entries, 2DE, 2DE)
    once = hessians @ w
    twice = torch.einsum("aij,bj->abi", hessians, once)
    spanned = torch.cat((once, (twice - twice.transpose(0, 1)).flatten(0, 1)))
    return 2 * D * E - int(torch.linalg.matrix_rank(spanned, rtol=1e-9))


# %%
def rotation_powers(angles, D):
    """R_0, ..., R_{D-1} for planes that turn by the given angles; other coordinates keep still."""
    turns = [
        torch.tensor([[np.cos(t), -np.sin(t)], [np.sin(t), np.cos(t)]]) for t in angles
    ]
    R = torch.block_diag(*turns, torch.eye(D - 2 * len(angles), dtype=torch.float64))
    return torch.stack([torch.linalg.matrix_power(R, n) for n in range(D)])


# %% [markdown]
# The second count is by symmetry: for symmetric $T$ that commute with the rotations, $\frac12 \langle T, \Delta \rangle$ is conserved, so
# we ask for the dimension of that space. Plain heads and rotary ones:


# %%
def symmetric_commutant(rotations):
    """The dimension of the symmetric T with T R = R T."""
    D = rotations.shape[-1]
    i, j = torch.triu_indices(D, D)
    units = torch.zeros(len(i), D, D, dtype=torch.float64)
    units[range(len(i)), i, j] = units[range(len(i)), j, i] = 1.0
    defects = (
        units[:, None] @ rotations - rotations @ units[:, None]
    )  # (units, powers, D, D)
    return len(i) - int(torch.linalg.matrix_rank(defects.flatten(1), rtol=1e-9))


cases = {f"plain, D = {d}": ((), d, d * (d + 1) // 2) for d in (1, 2, 3, 4)}
cases |= {
    "D = 4, two planes": ((1.0, 0.3), 4, 2),
    "D = 4, two alike": ((0.5, 0.5), 4, 4),
    "D = 4, two still": ((1.0,), 4, 4),
}
for name, (angles, d, expected) in cases.items():
    R = rotation_powers(angles, d)
    assert measured_conserved(R, E=4) == symmetric_commutant(R) == expected
    print(f"{name:>17}: {expected:2} conserved")

# %% [markdown]
# Plain heads have $D(D+1)/2$, a rotary head with two different planes has $D/2 = 2$, and a head whose planes turn alike has more, just as
# {prf:ref}`lem-commutant` has more
# unidentified directions for it: $n$ planes that turn alike conserve the $n^2$ real numbers of a Hermitian matrix.
#
# ### The drift of steps
#
# {prf:ref}`lem-one-step` and {prf:ref}`lem-decay` are identities, so they hold for steps of any size. We take a large one, $\eta = 0.3$,
# without decay and with $\lambda = 0.5$, once from $A$ and $B$ and once from $G$. The latter is the gradient of a
# head of width $E$ with queries $M X$ and keys $X$, which has the same scores (up to $\sqrt{E/D}$, since the code divides scores by the
# root of the head width).

# %% tags=["claim-lemma-5.1"]
eta, (A, B) = 0.3, (g["W_Q"], g["W_K"])
wide, keys, stretch = (
    Attention(E, H, head_dim=E, value_dim=D),
    torch.eye(E, dtype=torch.float64).expand(H, E, E),
    (E / D) ** 0.5,
)
loss_of_M = lambda M: loss(start | {"W_Q": stretch * M, "W_K": keys}, wide)
G = torch.func.grad(loss_of_M)(start["W_K"].mT @ start["W_Q"])  # (H, E, E)
by_gradients = eta**2 * (A @ A.mT - B @ B.mT)
by_G = eta**2 * (
    start["W_K"] @ G @ G.mT @ start["W_K"].mT
    - start["W_Q"] @ G.mT @ G @ start["W_Q"].mT
)
assert apart(by_G, by_gradients) < 1e-12
for decay in (0.0, 0.5):
    s = 1 - eta * decay
    after = {"W_Q": s * start["W_Q"] - eta * A, "W_K": s * start["W_K"] - eta * B}
    expected = s**2 * imbalance(start) + by_gradients
    assert apart(imbalance(after), expected) < 1e-13
print("one step, without and with decay, to 1e-13: True")

# %% [markdown]
# Now whole runs, with the optimisers of `torch.optim`. Each covers the time $t = 2$ in $n$ steps. Gradient descent has the rate $t/n$.
# The heavy ball, with $\gamma = 0.9$, has a tenth of it, so that it moves as fast. Adam lives by a clock of its own, and has the rate
# $t/(4n)$.


# %%
def train(make, start, loss, n):
    """The states that an optimiser passes through, the first included."""
    p = {name: t.clone().requires_grad_() for name, t in start.items()}
    optimiser, states = make(list(p.values())), [start]
    for _ in range(n):
        optimiser.zero_grad()
        loss(p).backward()
        optimiser.step()
        states.append({name: t.detach().clone() for name, t in p.items()})
    return states


# %%
optimisers = {
    "gradient descent": lambda n: partial(torch.optim.SGD, lr=time / n),
    "heavy ball": lambda n: partial(torch.optim.SGD, lr=0.1 * time / n, momentum=0.9),
    "Adam": lambda n: partial(torch.optim.Adam, lr=time / (4 * n), betas=(0.9, 0.99)),
}
steps = (40, 80, 160, 320)
runs = {
    name: {n: train(make(n), start, loss, n) for n in steps}
    for name, make in optimisers.items()
}
drifts = {
    name: {n: imbalance(states[-1]) - imbalance(start) for n, states in by.items()}
    for name, by in runs.items()
}

# %% [markdown]
# What should come out? The integral $I = \int_0^t (A A^\top - B B^\top)$ can be had from the solver's path, by Simpson's rule. The drift
# of gradient descent over its rate must tend to $I$, and that of the heavy ball to $19\, I$. The error of both is of first order in the
# rate, so it must about halve with it, and
# Richardson's extrapolation from the two smallest rates removes it, up to the second order. We ask for 5%.

# %% tags=["claim-lemma-5.1"]
along = torch.func.vmap(gradient)(path)
integrand = (
    along["W_Q"] @ along["W_Q"].mT - along["W_K"] @ along["W_K"].mT
)  # (201, H, D, D)
I = torch.from_numpy(simpson(integrand.numpy(), x=np.linspace(0, time, 201), axis=0))
for name, factor in (("gradient descent", 1), ("heavy ball", 19)):
    per_rate = {n: drifts[name][n] * n / time for n in steps}
    limit = 2 * per_rate[320] - per_rate[160]
    errors = [apart(per_rate[n], factor * I) for n in steps]
    assert (
        apart(limit, factor * I) < 0.05
        and 0.4 * errors[2] < errors[3] < 0.6 * errors[2]
    )
    print(f"{name}: drift / rate tends to {(limit * I).sum() / I.square().sum():.0f} I")
assert (
    drifts["Adam"][320].norm()
    > 0.5 * drifts["Adam"][40].norm()
    > 20 * drifts["gradient descent"][40].norm()
)
print("Adam's drift does not fall with its rate")

# %% [markdown]
# The heavy ball's recursion ({prf:ref}`prop-heavy-ball`) is exact as well: we rebuild the imbalance of the coarsest run from its
# velocities alone, step by step.

# %%
states = runs["heavy ball"][40]
V = [
    {name: new[name] - old[name] for name in start}
    for old, new in zip(states, states[1:])
]
Phi = [imbalance(v) for v in V]
rebuilt, Y = imbalance(start), torch.zeros(H, D, D, dtype=torch.float64)
for n, (state, phi) in enumerate(zip(states[1:], Phi)):
    Y = 0.9 * (Y + 2 * Phi[n - 1]) if n else Y
    rebuilt = rebuilt + Y + phi
    assert apart(rebuilt, imbalance(state)) < 1e-12
print("heavy ball, 40 steps rebuilt to 1e-12: True")

# %% [markdown]
# ### In the plane
#
# For $D = E = 1$ all of this can be drawn. Take $L = \frac12 (W_K W_Q - 1)^2$. The loss is constant on the hyperbolas $W_K W_Q = \omega$,
# and $\Delta = W_Q^2 - W_K^2$ is constant on the hyperbolas that cross them at right angles: the flow has no
# choice but to follow those.

# %%
toy = {
    name: torch.tensor([[w]], dtype=torch.float64)
    for name, w in (("W_Q", -0.9), ("W_K", 1.9))
}
toy_loss = lambda p: (p["W_K"] * p["W_Q"] - 1).square().sum() / 2
toy_flow = flow(toy_loss, toy, 4.0, 1e-12)
assert (imbalance(toy_flow) - imbalance(toy)).abs().max() < 1e-10 and toy_loss(toy) > 3
plane = {"flow": toy_flow}
for name, make in {
    "gradient descent": partial(torch.optim.SGD, lr=0.1),
    "heavy ball": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "Adam": partial(torch.optim.Adam, lr=0.1, betas=(0.9, 0.99)),
}.items():
    states = train(make, toy, toy_loss, 150)
    plane[name] = {key: torch.stack([state[key] for state in states]) for key in toy}
    assert toy_loss(states[-1]) < 1e-2
plane = {
    name: torch.cat((p["W_Q"], p["W_K"]), -1).squeeze(-2) for name, p in plane.items()
}  # (n, 2)
sizes = {
    name: {n: apart(imbalance(start) + d, imbalance(start)) for n, d in by.items()}
    for name, by in drifts.items()
}
per_step = time * float(I.norm() / imbalance(start).norm())
predicted = {"gradient descent": per_step, "heavy ball": 19 * per_step}

# %% mystnb={"image": {"alt": "Left: the plane of two weights with the two families of hyperbolas that cross at right angles. From one starting point the flow follows a single grey hyperbola to the valley; gradient descent leaves it a little, the heavy ball and Adam leave it far. Right: drift against number of steps, log-log. Gradient descent and heavy ball fall along parallel lines of slope minus one, the second nineteen times higher; Adam stays flat at the top."}, "figure": {"caption": "Left: a head of two numbers. Colour and white lines: the loss, lowest on the orange valley. Grey: the lines that keep $W_Q^2 - W_K^2$. Only the flow stays on its own. Right: how far the imbalance of the small layer has drifted after the same time, relative to its norm, against the number of steps that were taken. Lines are the predictions $\\eta I$ and $19\\, \\eta I$, points the runs.", "name": "fig-imbalance-paths"}}
figures.imbalance_paths(plane, sizes, predicted)

# %% [markdown]
# {numref}`fig-imbalance-paths` is the chapter in one picture. All four end in the valley, at the same function, and at four different
# pairs of weights. Only for the flow can one say which: it is
# the one on the valley with the imbalance of the start.
#
# ### The projection
#
# Next {prf:ref}`prop-rho`, in three ways that share no code. The first writes the $D^2$ null directions down as columns, makes them
# orthonormal, and projects. The second is the
# Sylvester equation, in the lines of the proposition. The third is `attnid.head_metrics`, which does all heads at once. The steps are a
# random one, the signs of the gradient (Adam's first step), the gradient, and a null step.


# %%
def null_columns(W_Q, W_K, sign=-1):
    units = torch.eye(D * D, dtype=torch.float64).view(-1, D, D)
    return torch.cat(
        ((units @ W_Q).flatten(1), sign * (units.mT @ W_K).flatten(1)), 1
    ).mT  # (2 D E, D D)


def rho_by_basis(W_Q, W_K, dQ, dK, sign=-1):
    step, basis = (
        torch.cat((dQ.flatten(), dK.flatten())),
        torch.linalg.qr(null_columns(W_Q, W_K, sign)).Q,
    )
    return (basis.mT @ step).square().sum() / step.square().sum()


def sylvester(W_Q, W_K, dQ, dK):
    (p, u), (k, v) = torch.linalg.eigh(W_Q @ W_Q.mT), torch.linalg.eigh(W_K @ W_K.mT)
    R = v.mT @ (dQ @ W_Q.mT - W_K @ dK.mT) @ u
    return v @ (R / (k[:, None] + p)) @ u.mT  # entry i, j over k_i + p_j


# %%
W_Q, W_K = start["W_Q"][0], start["W_K"][0]
T = normal(4, D, D)
directions = {
    "random": tuple(normal(5, 2, D, E)),
    "sign of the gradient": (A[0].sign(), B[0].sign()),
    "gradient": (A[0], B[0]),
    "null": (T @ W_Q, -T.mT @ W_K),
}

# %% [markdown]
# The three agree to $10^{-10}$. A gradient has $\rho < 10^{-20}$, a null step has 1, and the sign of a gradient has something in between.

# %% tags=["claim-least-squares"]
rhos = {}
for name, (dQ, dK) in directions.items():
    S = sylvester(W_Q, W_K, dQ, dK)
    by_sylvester = ((S @ W_Q).square().sum() + (S.mT @ W_K).square().sum()) / (
        dQ.square().sum() + dK.square().sum()
    )
    rhos[name] = head_metrics(W_Q, W_K, W_Q + dQ, W_K + dK)["rho"]
    solution = torch.linalg.lstsq(
        null_columns(W_Q, W_K), torch.cat((dQ.flatten(), dK.flatten()))[:, None]
    ).solution
    assert (
        abs(rho_by_basis(W_Q, W_K, dQ, dK) - by_sylvester) < 1e-10
        and abs(by_sylvester - rhos[name]) < 1e-10
    )
    assert (solution.view(D, D) - S).norm() < 1e-10 * (1 + S.norm())
    print(f"{name:>20}: rho = {rhos[name]:.2f}")
assert (
    rhos["gradient"] < 1e-20
    and abs(rhos["null"] - 1) < 1e-12
    and 0.01 < rhos["sign of the gradient"] < 0.99
)

# %% [markdown]
# ```{prf:remark} Departure from the paper
# :label: rem-11-sign
#
# The paper prints the second term of the objective as $\lVert \delta W_K - S^\top W_K \rVert^2$. Its Sylvester equation has $-W_K \delta
# W_K^\top$ on the right, which belongs to a plus sign: with the printed objective that term would be $+ W_K \delta W_K^\top$. The space
# of all
# $(S W_Q, S^\top W_K)$ is not null at all, and a gradient has a large component in it. Further on, entry $d, d'$ of the solution in the
# eigenbases is divided by $\lambda_{Q,d} + \lambda_{K,d'}$; with $S = U_K \tilde S U_Q^\top$, as the paper has it, rows belong to
# keys and columns to queries, so it should be $\lambda_{K,d} + \lambda_{Q,d'}$.
# ```

# %% tags=["claim-least-squares"]
printed = rho_by_basis(W_Q, W_K, A[0], B[0], sign=+1)
assert printed > 0.1 > 1e-20 > rho_by_basis(W_Q, W_K, A[0], B[0])
P, K = W_Q @ W_Q.mT, W_K @ W_K.mT
(p, u), (k, v) = torch.linalg.eigh(P), torch.linalg.eigh(K)
dQ, dK = directions["random"]
R = dQ @ W_Q.mT - W_K @ dK.mT
interchanged = v @ (v.mT @ R @ u / (p[:, None] + k)) @ u.mT
solved = sylvester(W_Q, W_K, dQ, dK)
assert (
    apart(solved @ P + K @ solved, R) < 1e-12
    and apart(interchanged @ P + K @ interchanged, R) > 0.01
)
print(
    f"a gradient's share in the printed space: {printed:.2f}; with indices as printed the equation holds: False"
)

# %% [markdown]
# **A mean and no bound.** For isotropic steps $\rho$ averages $D/(2E) = 1/(2H) = 1/4$. We draw 4,000, compare the mean to within 0.01,
# and the whole sample with the beta distribution of {prf:ref}`prop-rho` by the test of Kolmogorov and
# Smirnov at the level 0.001.

# %% tags=["claim-rho"]
draws = normal(6, 2, 4000, D, E)
W = torch.stack((W_Q, W_K))[:, None].expand_as(draws)
sample = head_metrics(*W, *(W + draws))["rho"]
law = beta_distribution(D**2 / 2, (2 * D * E - D**2) / 2)
assert abs(sample.mean() - D / (2 * E)) < 0.01 and abs(law.mean() - D / (2 * E)) < 1e-12
assert kstest(sample.numpy(), law.cdf).pvalue > 1e-3
assert sample.min() < 0.1 and sample.max() > 0.5 and abs(rhos["null"] - 1) < 1e-12
print(
    f"mean rho {sample.mean():.2f} = D/(2E) to 0.01; {(sample > D / (2 * E)).double().mean():.0%} of the steps lie above it"
)

# %% [markdown]
# ```{prf:remark} Departure from the paper
# :label: rem-11-mean
#
# The paper draws $1/(2H)$ in its figures as a boundary and reads values near it as a sign of something. It is what steps without any
# preference have on average, and nothing keeps a step from exceeding it: nearly half of all random steps do here, and a null step has
# $\rho = 1$. For the paper's
# $D = 64$, $E = 384$ the beta distribution is narrow, with a standard deviation of 0.0018 around 0.083, so that there a value far from
# $1/(2H)$, on either side, does mean something: a preference.
# ```

# %%
paper = beta_distribution(64**2 / 2, (2 * 64 * 384 - 64**2) / 2)
assert abs(paper.mean() - 1 / 12) < 1e-12 and abs(paper.std() - 0.0018) < 1e-4
print(f"D = 64, E = 384: mean {paper.mean():.4f}, standard deviation {paper.std():.4f}")

# %% [markdown]
# ### A step that beta and tau do not see
#
# Solve $S P + K S = Z$ with a skew $Z$ and step along $(S W_Q, -S^\top W_K)$. All of the step is null, $\rho = 1$; nothing of it shows in
# $\Delta$ to first order. With a symmetric $Z$ it shows. We halve the step a few times and see how the
# drift falls: by 4 if it is of second order, by 2 if it is of first. The explicit map from the nine null directions to the six entries of
# $\dot \Delta$ has rank six, and a kernel of dimension three.

# %% tags=["claim-beta-tau-mu"]
Z = normal(7, D, D)
falls = {}
for name, right in (("skew", Z - Z.mT), ("symmetric", Z + Z.mT)):
    S = torch.from_numpy(solve_sylvester(K.numpy(), P.numpy(), right.numpy()))
    after = [
        head_metrics(W_Q, W_K, W_Q + h * S @ W_Q, W_K - h * S.mT @ W_K)
        for h in (1e-4, 5e-5)
    ]
    assert abs(after[0]["rho"] - 1) < 1e-10
    falls[name] = float(after[0]["drift"] / after[1]["drift"])
assert abs(falls["skew"] - 4) < 1e-2 and abs(falls["symmetric"] - 2) < 1e-2
units = torch.eye(D * D, dtype=torch.float64).view(-1, D, D)
rates = units @ P + K @ units
rank = int(torch.linalg.matrix_rank((rates + rates.mT).flatten(1), rtol=1e-10))
assert rank == D * (D + 1) // 2 and D * D - rank == D * (D - 1) // 2
print(
    f"half the step divides the drift by {falls['skew']:.1f} (skew) and {falls['symmetric']:.1f} (symmetric); seen {rank} of {D * D}"
)

# %% [markdown]
# ```{prf:remark} Departure from the paper
# :label: rem-11-unseen
#
# The paper proposes the change of $\lVert \Delta \rVert_F$ as a measure of how much a run uses its unidentified parameters. It misses
# three of nine directions here, and $D(D-1)/2 = 2{,}016$ of 4,096 for $D = 64$. A constant $\beta$ is necessary for a run that never
# steps along null directions, but it is not
# sufficient. And $\beta$ is one number, $\tau$ another: a change of $\Delta$ that keeps both is easily made.
# ```
#
# **$\mu$ and the rank.** With one of the two weights deficient, $\mu$ stays positive and there are still $D^2 = 9$ null directions of our
# form. With both of rank $D - 1$, $\mu$ is zero and there are eight. The step's $\rho$ is then still that of an orthonormal basis of what
# is left.


# %% tags=["claim-beta-tau-mu"]
def deficient(W):
    U, s, Vh = torch.linalg.svd(W, full_matrices=False)
    return U[:, :-1] * s[:-1] @ Vh[:-1]


dQ, dK = directions["random"]
step = torch.cat((dQ.flatten(), dK.flatten()))
for Q0, K0, family in (
    (W_Q, W_K, 9),
    (deficient(W_Q), W_K, 9),
    (deficient(W_Q), deficient(W_K), 8),
):
    metrics, (U, s, _) = (
        head_metrics(Q0, K0, Q0 + dQ, K0 + dK),
        torch.linalg.svd(null_columns(Q0, K0), full_matrices=False),
    )
    inside = U[:, s > 1e-10 * s[0]]
    assert inside.shape[1] == family and (metrics["mu"] > 1e-3) == (family == 9)
    assert (
        abs((inside.mT @ step).square().sum() / step.square().sum() - metrics["rho"])
        < 1e-10
    )
    print(f"mu > 0: {bool(metrics['mu'] > 1e-3)}, null directions {family}")

# %% [markdown]
# ## Break it
#
# **Biases.** This is the one that matters for reading the paper's figures, since its runs have biases. The same layer again, now with all
# four biases, none of them zero at the start. The flow keeps the joint matrix to $10^{-10}$. The weights alone lose their conservation
# law, and what they lose is exactly what
# $b_Q b_Q^\top$ gains.

# %%
biased = Attention(6, 2, bias="qkvo")
start_b, loss_b = imitation(biased)
path_b = flow(loss_b, start_b, time, 1e-12)
joint = lambda p: imbalance(
    {"W_Q": with_bias(p["W_Q"], p["b_Q"]), "W_K": with_bias(p["W_K"], p["b_K"])}
)
outer = lambda b: b[..., :, None] * b[..., None, :]
end_b = {name: states[-1] for name, states in path_b.items()}
lost = imbalance(end_b) - imbalance(start_b)
assert (
    apart(joint(end_b), joint(start_b)) < 1e-10
    and apart(end_b["b_K"], start_b["b_K"]) < 1e-10
)
assert lost.norm() > 0.01 * imbalance(start_b).norm()
assert apart(-lost, outer(end_b["b_Q"]) - outer(start_b["b_Q"])) < 1e-8
print(
    f"weights alone: the imbalance moves by {lost.norm() / imbalance(start_b).norm():.2f} of its norm; with biases by less than 1e-10"
)

# %% [markdown]
# For one step there are the identity of {prf:ref}`prop-conserved-bias` and its formula for $\rho$, the same at each rate; both hold to
# $10^{-10}$.

# %% tags=["claim-rho"]
g_b = torch.func.grad(loss_b)(start_b)
Q0, K0, b, (A, B, a) = (
    start_b["W_Q"],
    start_b["W_K"],
    start_b["b_Q"],
    (g_b[name] for name in ("W_Q", "W_K", "b_Q")),
)
first = a[:, :, None] * b[:, None, :]
(p, u), (k, v) = torch.linalg.eigh(Q0 @ Q0.mT), torch.linalg.eigh(K0 @ K0.mT)
formula = ((v.mT @ first @ u).square() / (k[..., None] + p[:, None])).sum((1, 2)) / (
    A.square() + B.square()
).sum((1, 2))
for eta in (1e-1, 1e-3):
    after = {name: t - eta * g_b[name] for name, t in start_b.items()}
    assert (
        apart(
            imbalance(after) - imbalance(start_b),
            eta * (first + first.mT) + eta**2 * (A @ A.mT - B @ B.mT),
        )
        < 1e-10
    )
    alone = head_metrics(Q0, K0, after["W_Q"], after["W_K"])["rho"]
    both = [
        with_bias(q["W" + n], q["b" + n])
        for q in (start_b, after)
        for n in ("_Q", "_K")
    ]
    assert (
        apart(alone, formula) < 1e-10
        and alone.min() > 1e-3
        and head_metrics(*both)["rho"].max() < 1e-20
    )
print(
    "rho of a gradient step, weights alone:",
    [round(float(r), 2) for r in alone],
    "- with biases below 1e-20",
)

# %% [markdown]
# nanoGPT starts from $b_Q = 0$, where the first step has $\rho = 0$ either way. As $b_Q$ grows, so does the $\rho$ of plain gradient
# descent, without any help from momentum, rounding or dropout. The largest
# $\rho$ of the two heads at three steps of one run:

# %%
zero = start_b | {
    "b_Q": torch.zeros(H, D, dtype=torch.float64),
    "b_K": torch.zeros(H, D, dtype=torch.float64),
}
states = train(partial(torch.optim.SGD, lr=0.02), zero, loss_b, 101)
grown = {
    n: float(
        head_metrics(*(q[w] for q in states[n : n + 2] for w in ("W_Q", "W_K")))[
            "rho"
        ].max()
    )
    for n in (0, 10, 100)
}
assert grown[0] < 1e-20 and 1e-5 < grown[10] and grown[100] > 1e-4
print(
    {n: f"{rho:.1e}" for n, rho in grown.items() if n},
    "after a first step with less than 1e-20",
)

# %%
times = torch.linspace(0, time, 201, dtype=torch.float64)
distance = lambda of, p: (
    (of(p) - of({name: t[:1] for name, t in p.items()})).flatten(1).norm(dim=1)
    / of(p)[0].norm()
)
curves = {
    "$E \\times E$, weights alone": distance(wrong, path_b),
    "$D \\times D$, weights alone": distance(imbalance, path_b),
    "$D \\times D$, with biases": distance(joint, path_b),
}
assert (
    curves["$D \\times D$, with biases"].max()
    < 1e-10
    < 1e-2
    < curves["$D \\times D$, weights alone"].max()
)
marks = {
    "gradient": 0.0,
    "its signs": float(rhos["sign of the gradient"]),
    "null step": float(rhos["null"]),
}

# %% mystnb={"image": {"alt": "Left: a histogram of rho for random steps, centred near a quarter and spread from a tenth to a half, with the smooth curve of a beta distribution on top and a dashed line at D over 2E; vertical marks show a gradient at zero, its signs in between, and a null step at one. Right: the change of three matrices along a flow with biases, on a logarithmic scale; the E by E matrix and the weights' imbalance rise above one percent, the imbalance with biases stays below 1e-12."}, "figure": {"caption": "Left: $\\rho$ of 4,000 isotropic steps, the beta distribution that it follows, and its mean $D/(2E)$ (dashed); three steps that are not isotropic are marked. Right: along the flow of a layer with biases, the relative change of three matrices. Only the imbalance of weights and biases together is conserved.", "name": "fig-rho-and-biases"}}
figures.rho_and_biases(sample, law, D / (2 * E), marks, times, curves)

# %% [markdown]
# **Rotary positions.** At the start weights of a rotary head, $\dot\Delta$ is not zero. What stays, by {prf:ref}`prop-conserved-count`,
# is the trace of each plane's $2 \times 2$ block, two numbers of ten.

# %%
rotary = Attention(8, 2, rotary=(1.0, 0.3))  # D = 4
start_r, loss_r = imitation(rotary)
g_r = torch.func.grad(loss_r)(start_r)
half = g_r["W_Q"] @ start_r["W_Q"].mT - g_r["W_K"] @ start_r["W_K"].mT
rate = half + half.mT  # minus the derivative of the imbalance
planes = rate.diagonal(dim1=-2, dim2=-1).unflatten(-1, (2, 2)).sum(-1)  # (H, planes)
assert rate.norm() > 0.1 and planes.abs().max() < 1e-12
print("imbalance moves: True; the trace of each plane moves: False")

# %% [markdown]
# **Other optimisers.** {prf:ref}`prop-respects`, with 20 steps each: from moved weights the optimiser either ends at the moved end, to
# $10^{-7}$, or somewhere else. (Adam has $\varepsilon = 10^{-8}$ here, hence the tolerance.)

# %%
orthogonal = torch.linalg.qr(normal(8, D, D)).Q
signed = torch.diag(torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64))[[2, 0, 1]]
respected = {}
for change, S in {
    "signed permutation": signed,
    "orthogonal": orthogonal,
    "any other": normal(9, D, D),
}.items():
    move = lambda p: p | {"W_Q": S @ p["W_Q"], "W_K": torch.linalg.inv(S).mT @ p["W_K"]}
    for name, make in optimisers.items():
        ends = [train(make(100), p, loss, 20)[-1] for p in (start, move(start))]
        error = max(apart(ends[1][w], move(ends[0])[w]) for w in ("W_Q", "W_K"))
        assert error < 1e-7 or error > 1e-3
        respected[change, name] = error < 1e-7
    print(f"{change:>18}:", [name for name in optimisers if respected[change, name]])
assert (
    sum(respected.values()) == 5
    and respected["signed permutation", "Adam"]
    and not respected["orthogonal", "Adam"]
)

# %% [markdown]
# ## What it means
#
# Initialisation chooses the representative. A head trained by gradient flow carries $D(D+1)/2$ numbers from its random start to the end
# of training, and no data can change them. Gradient descent changes them slowly, in proportion to the rate;
# momentum does so many times faster, and still in proportion to the rate; decay forgets them at a known pace; Adam changes them at any
# rate.
#
# Three cautions about the measures. A step with $\rho = 0$ is orthogonal to the null space *where it is taken*, and a sequence of such
# steps can still move along an {term}`orbit`: {prf:ref}`prop-conserved-count` leaves $D(D-1)/2$ dimensions for it, and the last exercise
# goes there. A step with $\rho = 1$ need not show in $\beta$ or $\tau$. And with biases all three must be computed from weights and biases
# together; a $\rho$ or a drift of first order that comes from the weights alone may be an artefact of leaving $b_Q$ out.
#
# ## Exercises
#
# **1. The other circuit.** What does gradient flow conserve of $W_V$ and $W_O$? And with $b_V$? Check it on the two flows above.
#
# ```{admonition} Answer
# :class: dropdown
#
# The symmetry is $(S W_V, W_O S^{-1})$ ({prf:ref}`lem-value-output`), so $W_V$ and $W_O^\top$ take the places of $W_Q$ and $W_K$: the $C
# \times C$ matrix $W_V W_V^\top - W_O^\top W_O$ is conserved, one for each head. With biases the value bias moves along, $S b_V$, and
# $b_O$ keeps still: so
# $W_V W_V^\top + b_V b_V^\top - W_O^\top W_O$ is. There is more: $b_V$ acts only through $b_O + \sum_h W_O^h b_V^h$
# ({prf:ref}`lem-pooled-bias`), whose gradient is $\partial L / \partial b_O$. So $\dot b_V^h = W_O^{h\top} \dot b_O$.
# ```

# %% tags=["hide-cell"]
values = lambda p: p["W_V"] @ p["W_V"].mT - p["W_O"].mT @ p["W_O"]
assert (
    apart(values(end), values(start))
    < 1e-10
    < 1e-3
    < apart(values(end_b), values(start_b))
)
joint_values = lambda p: values(p) + outer(p["b_V"])
assert apart(joint_values(end_b), joint_values(start_b)) < 1e-10
assert apart(g_b["b_V"], torch.einsum("hec,e->hc", start_b["W_O"], g_b["b_O"])) < 1e-12
print("value-output imbalance conserved, with biases: True")

# %% [markdown]
# **2. How much does the paper's second case decay?** Its rate climbs to 0.25 in 100 steps and falls along a cosine to a tenth, over 5,000
# steps; $\lambda = 4 \times 10^{-4}$. By which factor does decay alone shrink $\beta$?
#
# ```{admonition} Answer
# :class: dropdown
#
# By $\prod_t (1 - \eta_t \lambda)^2 \approx e^{-2 \lambda \sum_t \eta_t}$. The mean rate is about $0.55 \times 0.25$, so the exponent is
# $-2 \times 4 \times 10^{-4} \times 5000 \times 0.1375 = -0.55$, and the factor 0.58. Chapter 13 looks for it in real runs.
# ```

# %% tags=["hide-cell"]
case = TrainingConfig(
    5000, learning_rate=0.25, warmup=100, weight_decay=4e-4, optimizer="sgd"
)
rates = torch.tensor(
    [learning_rate_at(step, case) for step in range(case.steps)], dtype=torch.float64
)
factor = (1 - rates * case.weight_decay).square().prod()
assert (
    abs(factor - torch.exp(-2 * case.weight_decay * rates.sum())) < 1e-4
    and abs(factor - 0.58) < 0.01
)
print(f"beta shrinks to {factor:.2f} of itself")

# %% [markdown]
# **3. Around a loop.** Let losses that change with time lead $M$ around a closed loop, each step a gradient step. Must the weights return
# as well?
#
# ```{admonition} Answer
# :class: dropdown
#
# No. They return to the same $M$ and the same $\Delta$. For $D = 1$ that fixes them up to sign. In general it leaves $D(D-1)/2$
# dimensions, and the brackets in the proof of {prf:ref}`prop-conserved-count` say that all are reached. The cell takes $D = E = 2$,
# prescribes $\dot M$ on a circle, and finds the gradient
# step that makes it, $(W_K G, W_Q G^\top)$ with $K' G + G P' = \dot M$, $K' = W_K^\top W_K$, $P' = W_Q^\top W_Q$. Each instant has $\rho =
# 0$; the round trip is a finite step along the orbit, invisible to $\beta$ and $\tau$.
# ```


# %% tags=["hide-cell"]
def around(t, w):
    W_Q, W_K = w.reshape(2, 2, 2)
    velocity = 0.5 * np.array(
        [[-np.sin(t), np.cos(t)], [0.0, 0.0]]
    )  # of M: a circle in its first row
    G = solve_sylvester(W_K.T @ W_K, W_Q.T @ W_Q, velocity)
    return np.stack((W_K @ G, W_Q @ G.T)).ravel()


first = np.stack(
    (np.array([[1.0, 0.2], [0.0, 0.8]]), np.array([[1.1, 0.0], [-0.3, 1.2]]))
)
Q0, K0 = first
Q1, K1 = (
    solve_ivp(
        around, (0, 2 * np.pi), first.ravel(), method="DOP853", rtol=1e-12, atol=1e-12
    )
    .y[:, -1]
    .reshape(2, 2, 2)
)
S = Q1 @ np.linalg.inv(Q0)
assert (
    np.abs(K1.T @ Q1 - K0.T @ Q0).max() < 1e-9
    and np.abs(Q1 @ Q1.T - K1 @ K1.T - Q0 @ Q0.T + K0 @ K0.T).max() < 1e-9
)
assert (
    np.abs(K1 - np.linalg.inv(S).T @ K0).max() < 1e-9
    and np.abs(S - np.eye(2)).max() > 0.05
)
print(
    f"same M, same imbalance; the weights have moved by {np.linalg.norm(Q1 - Q0) / np.linalg.norm(Q0):.2f} of their norm"
)

# %% [markdown]
# **Next:** if the imbalance is ours to choose, we may as well choose it. {doc}`12_rebalancing` sets it to zero, without a change to the
# function, and looks at what that takes: the biases, for one.
