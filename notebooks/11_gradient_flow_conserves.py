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
# {ref}`beta, tau and mu <ledger-beta-tau-mu>`, {ref}`biases <ledger-conserved-biases>`, {ref}`optimisers <ledger-optimisers>`.
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
# $A = \partial L / \partial W_Q$ and $B = \partial L / \partial W_K$ for the gradients of the loss. Where the loss is a differentiable function
# of $M = W_K^\top W_Q$ and of other weights, it has the gradient $G = \partial L / \partial M$ as well, and $A = W_K G$, $B = W_Q G^\top$ by the
# chain rule.

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
# from one instant to the next, as with minibatches and dropout. A positive factor on the whole gradient, such as clipping by the norm
# sets, leaves $\Delta$ constant. Where the loss does not change with time it alters the pace and not the path; where it does, the path
# too, since the weights then meet each loss at another place.
#
# There are $D^2$ {term}`unidentified` directions, and $D(D+1)/2$ conserved numbers. Are we missing some?
#
# ```{prf:proposition} Nothing else is conserved (beyond the paper)
# :label: prop-conserved-count
#
# Call a smooth function $f$ of $(W_Q, W_K)$ *conserved* if it is constant along the gradient flow of every smooth loss of $M$.
#
# 1. Where the $D \times 2E$ matrix $(W_Q\; W_K)$ has rank $D$, the gradient of a conserved function is
#    $(T W_Q, -T W_K)$ with a *symmetric* $T$. The entries of $\Delta$ provide all of these, so there are exactly $D(D+1)/2$
#    independent conserved numbers.
# 2. Along the null direction $(S W_Q, -S^\top W_K)$ the imbalance changes at the rate
#    $(S P + K S) + (S P + K S)^\top$. If $W_Q$ or $W_K$ has rank $D$, the null directions along which it keeps still are those with
#    $S P + K S$ skew, a space of dimension $D(D-1)/2$.
# 3. With {term}`rotary positions <rotary position>`, $D/2$ planes with distinct frequencies in $(0, \pi)$, losses of all the products
#    $M_\delta = W_K^\top R_\delta W_Q$, and $E \ge 2$, let $q_i$ and $k_i$ be the two rows of $W_Q$ and of $W_K$ in plane $i$. Where no plane
#    has $(q_i, k_i) = 0$, exactly $D/2$ independent numbers are conserved: $\lVert q_i \rVert^2 - \lVert k_i \rVert^2$ for each plane.
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
# For a loss as in {prf:ref}`lem-conserved` a step of gradient descent, $W_Q \mapsto W_Q - \eta A$ and $W_K \mapsto W_K - \eta B$, changes the
# imbalance by exactly $\eta^2 ( A A^\top - B B^\top )$. Where the loss is a differentiable function of $M$ and of other weights, this is
#
# $$
# \eta^2 \big( W_K G G^\top W_K^\top - W_Q G^\top G\, W_Q^\top \big) .
# $$
# ```
#
# This change is the {term}`drift` of the step. So $n = t/\eta$ steps, at falling rates and a fixed time $t$, change the imbalance by
# $\eta \int_0^t (A A^\top - B B^\top)$ to first order in $\eta$, the integral being taken along the flow.
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
# flow with decay has $\Delta(t) = e^{-2\lambda t} \Delta(0)$.
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
# like gradient descent at the rate $\eta / (1 - \gamma)$, but $(1 + \gamma)/(1 - \gamma)$ times as much, 19 times for $\gamma = 0.9$. The
# drift still vanishes with the rate. Adam's does not. One reason is visible in what it respects.
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
# The paper measures a step $\delta = (\delta W_Q, \delta W_K)$ by its best approximation in the null space
# $\mathcal{N} = \{ (S W_Q, -S^\top W_K) \}$.
#
# ```{prf:proposition} The share of a step that is null (paper: section 5.1)
# :label: prop-rho
#
# Let $p_j, u_j$ and $k_i, v_i$ be the eigenvalues and orthonormal eigenvectors of $P$ and of $K$, and let
# $\mu = \min_j p_j + \min_i k_i > 0$.
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
# 3. If $\delta$ is isotropic in $\mathbb{R}^{2DE}$, then $\rho$ has the distribution
#    $\mathrm{Beta}\big(\tfrac{D^2}{2}, \tfrac{2DE - D^2}{2}\big)$, of mean $D/(2E)$. This is $1/(2H)$ when $D = E/H$.
# ```
#
# In words this share is {term}`rho`. The other measures look at the weights and not at the step: {term}`beta`, $\beta = \lVert \Delta
# \rVert_F$, and {term}`tau`, $\tau = \operatorname{tr} \Delta = \lVert W_Q \rVert^2 - \lVert W_K \rVert^2$, both conserved by the flow, and
# {term}`mu`, the $\mu$ above, which is positive exactly when $W_Q$ or $W_K$ has rank $D$. Where $\mu = 0$, {prf:ref}`prop-deficient-rank` says
# how much $\mathcal{N}$ has shrunk; $\rho$ is still a projection.
#
# ### With biases
#
# ```{prf:proposition} Biases belong to the conserved matrix (beyond the paper)
# :label: prop-conserved-bias
#
# Let the queries and keys of a plain softmax head have biases, and let $a = \partial L / \partial b_Q$.
#
# 1. Gradient flow conserves $W_Q W_Q^\top + b_Q b_Q^\top - W_K W_K^\top - b_K b_K^\top$, and $b_K$ itself.
# 2. A step of gradient descent changes $W_Q W_Q^\top - W_K W_K^\top$ by
#    $\eta\, (a b_Q^\top + b_Q a^\top) + \eta^2 (A A^\top - B B^\top)$: at first order in $\eta$, as soon as $b_Q \ne 0$ and $a \ne 0$.
# 3. The $\rho$ of that step is zero when computed from $(W_Q\; b_Q)$ and $(W_K\; b_K)$, $D \times (E + 1)$ matrices. Computed from $W_Q$
#    and $W_K$ alone it is, with the notation of {prf:ref}`prop-rho` and where $\mu > 0$,
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
# alone, and it is Noether's in its simplest form ({cite:t}`kunin2021`, {cite:t}`zhao2025`): for symmetric $T$ the null direction
# $(T W_Q, -T W_K)$ is itself a gradient, that of $\frac{1}{2} \langle T, \Delta \rangle$. Two functions whose gradients are orthogonal
# everywhere are conserved by each other's flows. For skew $T$ there is no such function, as the next proof shows. It and the others
# are folded.
#
# ```{admonition} Proof that nothing else is conserved
# :class: dropdown
#
# (Of {prf:ref}`prop-conserved-count`.) *1.* Put $U = (W_Q\; W_K)$ and $J = \mathrm{diag}(I, -I) \in \mathbb{R}^{2E \times 2E}$; then
# $\Delta = U J U^\top$. The gradient of a loss is $U \Gamma$ with
#
# $$
# \Gamma = \begin{pmatrix} 0 & G^\top \\ G & 0 \end{pmatrix},
# $$
#
# and linear losses provide every $G \in \mathbb{R}^{E \times E}$. So the derivative of a conserved $f$ along each linear vector field
# $U\Gamma$ is zero, and then also along their brackets $U(\Gamma_1 \Gamma_2 - \Gamma_2 \Gamma_1)$. With $G_1 = e_i e_j^\top$ and $G_2 = e_i e_k^\top$, $j \neq k$, the bracket is
# $\mathrm{diag}(e_j e_k^\top - e_k e_j^\top,\, 0)$, and transposing both gives the same in the other block. Sums of all these make every matrix $\Omega J$ with skew $\Omega \in \mathbb{R}^{2E \times 2E}$. Let $F$ be the gradient of $f$.
# Then $0 = \langle F, U \Omega J \rangle = \langle U^\top F J, \Omega \rangle$ for all skew $\Omega$, so $U^\top F J$ is
# symmetric: with $F' = F J$, $U^\top F' = F'^\top U$. Let $U^+$ be a right inverse of $U$. Multiplying by $(U^+)^\top$ from the left,
# $F' = T U$ with $T = (F' U^+)^\top$. Now $U^\top T U$ is symmetric, hence so is $T$, and $F = T U J = (T W_Q, -T W_K)$. The map
# $T \mapsto T U J$ is injective, and $\frac12 \langle T, \Delta \rangle$ has this gradient.
#
# *2.* The derivative of $W_Q W_Q^\top$ along $S W_Q$ is $S P + P S^\top$, that of $W_K W_K^\top$ along $-S^\top W_K$ is
# $-S^\top K - K S$. The map $S \mapsto S P + K S$ is a bijection: in the eigenbases of {prf:ref}`prop-rho` it multiplies entry $i, j$ by
# $k_i + p_j > 0$. So the $S$ in question are as many as skew matrices.
#
# *3.* Read the two rows of a plane as one complex row, $q_i$ or $k_i \in \mathbb{C}^{1 \times E}$. Then
# $M_\delta = \mathrm{Re} \sum_i e^{\mathrm{i} \delta \theta_i} k_i^* q_i$. As the $\theta_i$ are distinct and in $(0, \pi)$, the $M_\delta$ determine the products
# $k_i^* q_i$, so losses of these products are what we have, and the gradient with respect to $u = (q_i\; k_i)$ is $u\,\Gamma$ with
# a Hermitian $\Gamma$ as before, $G \in \mathbb{C}^{E \times E}$. Their brackets make all $\Omega J$ with skew-Hermitian $\Omega$,
# $\operatorname{tr} \Omega J = 0$ (take $G_1 = e_i e_j^\top$, $G_2 = \mathrm{i} G_1$ for the diagonals). So $u^* F' - F'^* u = c\, J$
# with a number $c$. The left side has rank at most 2, and $J$ has rank $2E \geq 4$; so $c = 0$. As $u \neq 0$, it follows as before that
# $F' = t\, u$ with a real $t$: one conserved number for each plane. (Where $u = 0$ every gradient vanishes in that plane, and nothing is
# said of $F'$.)
# ```

# %% [markdown]
# ```{admonition} Proofs for steps of finite size
# :class: dropdown
#
# (Of {prf:ref}`lem-one-step` and {prf:ref}`lem-decay`.) With $s = 1 - \eta\lambda$, $(s W_Q - \eta A)(s W_Q - \eta A)^\top = s^2 P - \eta
# s (A W_Q^\top + W_Q A^\top) + \eta^2 A A^\top$, and likewise for the keys. In the difference the middle terms cancel, by part 1 of
# {prf:ref}`lem-conserved`.
#
# (Of {prf:ref}`prop-heavy-ball`.) For any $V$ let $X(V, W) = V_Q W_Q^\top + W_Q V_Q^\top - V_K W_K^\top - W_K V_K^\top$. Then
# $\Delta_{n+1} - \Delta_n = Y_n + \Phi_{n+1}$ with $Y_n = X(V_{n+1}, W_n)$. The gradient's part of $V_{n+1}$ contributes nothing, by
# {prf:ref}`lem-conserved`, so $Y_n = \gamma\, X(V_n, W_n) = \gamma\, X(V_n, W_{n-1} + V_n) = \gamma\, (Y_{n-1} + 2\Phi_n)$.
#
# (Of {prf:ref}`prop-respects`.) The loss sees the same $M$ and so the same $G$. The new gradient is $S^{-\top} W_K G = S^{-\top} A$, and
# $S B$ for the keys. *1.* If $S^{-\top} = S$, gradients change as the weights do, and so do the sums that momentum and decay make of
# them. If $S$ is respected, the first step shows $S^{-\top} A = S A$; as $W_K$ can have rank $D$, $A = W_K G$ can be any matrix, and
# $S^\top S = I$. *2.* What Adam does to an entry is an odd function of the history of that entry, the same for all, so it respects signed
# permutations. Conversely its first step is $-\eta \operatorname{sign}(A)$, so
# $S \operatorname{sign}(A) = \operatorname{sign}(S^{-\top} A)$ for almost all $A$: $S$ turns every vector of signs into a vector of signs.
# Row $i$ of $S$ then has $\sum_j \pm S_{ij} = \pm 1$ for every choice of signs. One choice makes the sum $\sum_j |S_{ij}|$, which is therefore 1; turning one
# sign changes it by $2 |S_{ij}|$ and must lead to $1$ or $-1$, so each $|S_{ij}|$ is 0 or 1, and exactly one of them is 1.
# ```
#
# ```{admonition} Proofs on the share of a step
# :class: dropdown
#
# (Of {prf:ref}`prop-rho`.) *1.* Setting the derivative in $S$ to zero gives
# $(S W_Q - \delta W_Q) W_Q^\top + W_K (S^\top W_K + \delta W_K)^\top = 0$, the Sylvester equation. Multiplied by $v_i^\top$ and $u_j$ it reads $(k_i + p_j)\, v_i^\top S u_j = v_i^\top R u_j$. *2.*
# The residual is orthogonal to $\mathcal{N}$, so $\rho$ is the squared cosine of an angle. The numerator is $\langle S, S P \rangle + \langle S, K S \rangle = \langle S, R \rangle$,
# which is the sum. A step is orthogonal to $\mathcal{N}$ when $\langle T, R \rangle = 0$ for all $T$, that is, $R = 0$; for a gradient
# this is {prf:ref}`lem-conserved`. *3.* $\mathcal{N}$ has dimension $D^2$, since $\mu > 0$ makes $S \mapsto (S W_Q, -S^\top W_K)$
# injective. For standard normal $\delta$, $\rho = x / (x + y)$ with independent $x \sim \chi^2_{D^2}$ and $y \sim \chi^2_{2DE - D^2}$.
# ```
#
# ```{admonition} Proof with biases
# :class: dropdown
#
# (Of {prf:ref}`prop-conserved-bias`.) By {prf:ref}`prop-joint-action` the loss has the symmetry of {prf:ref}`lem-conserved` in the
# matrices $(W_Q\; b_Q)$ and $(W_K\; b_K)$, which shows the first half of *1*; the second is {prf:ref}`lem-key-bias`. Part 1 of
# {prf:ref}`lem-conserved` now reads $A W_Q^\top + a b_Q^\top = W_K B^\top$, since the gradient of $b_K$ is zero. The terms of first order in the step's change of $\Delta$
# are therefore $-\eta (A W_Q^\top - W_K B^\top)$ plus its transpose, $\eta (a b_Q^\top + b_Q a^\top)$: this is *2*. In *3*,
# $R = -\eta (A W_Q^\top - W_K B^\top) = \eta\, a b_Q^\top$; put it into {prf:ref}`prop-rho`.
# ```

# %% [markdown]
# ## The same symbols in code
#
# A real head, small enough to be integrated exactly: two heads, $E = 6$, $D = C = 3$, causal softmax. It learns to imitate another such
# layer on eight fixed sequences, and all its weights are trained.

# %%
from functools import partial

import numpy as np
import torch
from scipy.integrate import simpson, solve_ivp
from scipy.linalg import solve_sylvester
from scipy.stats import beta as beta_distribution, kstest

from attnid import Attention, figures, forward, head_metrics, measure
from attnid.claims import check
from attnid.layer.attention import random_inputs
from attnid.layer.metrics import with_bias
from attnid.tensors import normal, rank, relative_change as apart


# %%
def imitation(layer):
    """Weights to start from, and the loss: the mean squared distance to a teacher."""
    x = random_inputs(layer, 8, 6, seed=2)  # 8 sequences of 6 tokens
    taught = forward(layer, layer.random_parameters(seed=1), x)
    loss = lambda p, of=layer: (forward(of, p, x) - taught).square().sum(-1).mean()
    return layer.random_parameters(seed=0), loss


def imbalance(p):
    return p["W_Q"] @ p["W_Q"].mT - p["W_K"] @ p["W_K"].mT  # (..., H, D, D)


layer = Attention(6, 2)
H, D, E = layer.H, layer.D, layer.E
start, loss = imitation(layer)

# %% [markdown]
# Part 1 of {prf:ref}`lem-conserved`, before anything moves: $A W_Q^\top = W_K B^\top$, all nine entries of both heads. We use the
# gradients of automatic differentiation, which knows nothing of $G$.

# %%
gradient = torch.func.grad(loss)
g = gradient(start)
A, B = g["W_Q"], g["W_K"]
check("lemma-5.1", balance=apart(A @ start["W_Q"].mT, start["W_K"] @ B.mT))

# %% [markdown]
# The flow is an ordinary differential equation in 144 unknowns. We hand it to an explicit Runge-Kutta method of order 8 with an error
# bound of our choice.


# %%
def flow(loss, start, tolerance, time=2.0):
    """States along the flow at 201 times from 0 to `time`, name -> (201, ...)."""
    sizes, gradient = [t.numel() for t in start.values()], torch.func.grad(loss)
    pack = lambda p: torch.cat([t.flatten() for t in p.values()])
    unpack = lambda v: {
        name: part.view(*v.shape[:-1], *start[name].shape)
        for name, part in zip(start, v.split(sizes, -1))
    }
    run = solve_ivp(
        lambda _, v: -pack(gradient(unpack(torch.from_numpy(v)))).numpy(),
        (0, time),
        pack(start).numpy(),
        t_eval=np.linspace(0, time, 201),
        method="DOP853",
        rtol=tolerance,
        atol=tolerance,
    )
    return unpack(torch.from_numpy(run.y.T.copy()))


def strayed(path, of=imbalance):
    """How far a function of the weights gets from its start, relative to its norm."""
    values = of(path)
    return float((values - values[0]).flatten(1).norm(dim=1).max() / values[0].norm())


# %%
path = flow(loss, start, 1e-12)

# %% [markdown]
# ## The check
#
# Each statement in turn, on the small layer just defined: what the flow keeps and how many numbers that is, then what steps do.
#
# ### The flow
#
# By $t = 2$ the loss has fallen to less than a tenth and the weights have moved by a tenth of their length. The imbalance has not moved.
# With a solver a million times as sloppy it stays within what that solver is worth, which shows that the agreement is not built in.

# %%
end = {matrix: along[-1] for matrix, along in path.items()}
assert loss(end) < 0.1 * loss(start)
assert min(apart(end["W_Q"], start["W_Q"]), apart(end["W_K"], start["W_K"])) > 0.05
print(f"the loss falls to {loss(end) / loss(start):.2f} of itself,")
print(f"W_Q moves by {apart(end['W_Q'], start['W_Q']):.2f} of its norm")

# %%
check("lemma-5.1", flow=strayed(path), sloppy=strayed(flow(loss, start, 1e-6)))

# %% [markdown]
# ```{prf:remark} The layout matters
# :label: rem-11-layout
#
# Weights are $D \times E$ here, as in the paper and in `torch.nn.Linear`, and $W_Q W_Q^\top - W_K W_K^\top$ is a $D \times D$ matrix,
# where $S$ acts. The $E \times E$ matrix $W_Q^\top W_Q - W_K^\top W_K$ looks as good and is *not* conserved; it would be the right one
# for weights stored as $E \times D$.
# ```

# %%
wrong = lambda p: p["W_Q"].mT @ p["W_Q"] - p["W_K"].mT @ p["W_K"]  # (..., H, E, E)
assert strayed(path, wrong) > 0.1
print(f"the E x E matrix moves by {strayed(path, wrong):.2f} of its norm")

# %% [markdown]
# **Clipping.** A head with $D = E = 2$ follows the gradient of $\frac12 \lVert M - C \rVert^2$, cut to length 1 where it is longer. At a
# pace of $c$ times the full one it covers in the time $t$ what the flow without a cut covers in $s = \int_0^t c$, so we compare with that
# flow at the time $s$. With a fixed $C$ both are at one point, with a $C$ that changes with the time they are not, and the imbalance stays
# in all four runs.


# %%
def clipped(goal, time, longest):
    """W_Q and W_K when `time` is over, gradients cut to a length; and the time s."""

    def velocity(t, w):
        W_Q, W_K = w[:8].reshape(2, 2, 2)
        G = W_K.T @ W_Q - goal(t)
        downhill = -np.concatenate(((W_K @ G).ravel(), (W_Q @ G.T).ravel()))
        pace = min(1.0, longest / np.linalg.norm(downhill))
        return np.append(pace * downhill, pace)

    begin, exact = [*pair.ravel(), 0], {"rtol": 1e-10, "atol": 1e-10}
    run = solve_ivp(velocity, (0, time), begin, method="DOP853", **exact)
    return run.y[:8, -1].reshape(2, 2, 2), run.y[8, -1]


pair = np.array([[[1.0, 0.2], [0.0, 0.8]], [[1.1, 0.0], [-0.3, 1.2]]])  # W_Q, W_K
C = np.array([[2.0, -1.0], [1.0, 0.5]])

# %%
grams = lambda w: w[0] @ w[0].T - w[1] @ w[1].T
differ, kept = {}, []
for what, goal in {"fixed": lambda t: C, "moving": lambda t: np.cos(3 * t) * C}.items():
    cut, s = clipped(goal, 3.0, 1.0)
    whole, _ = clipped(goal, s, np.inf)
    differ[what] = np.linalg.norm(cut - whole) / np.linalg.norm(whole - pair)
    kept += [np.abs(grams(w) - grams(pair)).max() for w in (cut, whole)]
check("lemma-5.1", clipped=kept)
check("lemma-5.1", clipped_fixed=differ["fixed"], clipped_moving=differ["moving"])

# %% [markdown]
# ### How many numbers
#
# {prf:ref}`prop-conserved-count` says that gradients and their brackets leave room for $D(D+1)/2$ conserved numbers and no more. That is
# a statement about a rank, and we can compute it without using the proof. Each entry of $M$, or of the rotary products
# $M_\delta = W_K^\top R_\delta W_Q$, is a quadratic form in all $2DE$ weights $w$. Its Hessian $\mathsf{A}$, by automatic
# differentiation, makes its gradient $\mathsf{A} w$, and the bracket of two gradients is
# $(\mathsf{A}_1 \mathsf{A}_2 - \mathsf{A}_2 \mathsf{A}_1) w$. What they fail to span is the number of conserved quantities.


# %%
def room_left(rotations, E=4, zero=()):
    """2 D E minus the rank of gradients and brackets, at random weights (rows zero)."""
    D = rotations.shape[-1]
    w = normal(2, D, E, seed=3)
    w[:, list(zero)] = 0
    products = lambda w: torch.einsum(
        "de,rdf,fg->reg", w.view(2, D, E)[1], rotations, w.view(2, D, E)[0]
    ).flatten()
    hessians = torch.func.hessian(products)(torch.zeros_like(w.flatten()))
    once = hessians @ w.flatten()  # (entries, 2DE)
    twice = torch.einsum("aij,bj->abi", hessians, once)
    spanned = torch.cat((once, (twice - twice.transpose(0, 1)).flatten(0, 1)))
    return 2 * D * E - rank(spanned, 1e-9)


# %%
def rotation_powers(angles, D):
    """R_0, ..., R_{D-1}: planes turn by the angles; other coordinates keep still."""
    c, s = np.cos(angles), np.sin(angles)
    turns = [torch.tensor([[x, -y], [y, x]]) for x, y in zip(c, s)]
    R = torch.block_diag(*turns, torch.eye(D - 2 * len(angles), dtype=torch.float64))
    return torch.stack([torch.linalg.matrix_power(R, n) for n in range(D)])


def symmetric_commutant(rotations):
    """The dimension of the symmetric T with T R = R T."""
    i, j = torch.triu_indices(*rotations.shape[1:])
    units = torch.zeros(len(i), *rotations.shape[1:], dtype=torch.float64)
    units[range(len(i)), i, j] = units[range(len(i)), j, i] = 1.0
    defects = units[:, None] @ rotations - rotations @ units[:, None]
    return len(i) - rank(defects.flatten(1), 1e-9)


# %% [markdown]
# The second count is by symmetry: for symmetric $T$ that commute with the rotations, $\frac12 \langle T, \Delta \rangle$ is conserved, so
# we ask for the dimension of that space. Four plain heads, $D = 1, \dots, 4$, and three rotary ones with $D = 4$: two different planes, two
# that turn alike, and one that turns beside two coordinates that do not.

# %%
turning = [rotation_powers((), d) for d in (1, 2, 3, 4)]
turning += [rotation_powers(a, 4) for a in ((1.0, 0.3), (0.5, 0.5), (1.0,))]
check(
    "beta-tau-mu",
    formula=[d * (d + 1) // 2 for d in (1, 2, 3, 4)] + [1 + 1, 2**2, 1 + 3],
    brackets=[room_left(R) for R in turning],
    symmetric=[symmetric_commutant(R) for R in turning],
)
check("beta-tau-mu", plane_at_zero=room_left(turning[4], zero=(0, 1)))

# %% [markdown]
# Plain heads have $D(D+1)/2$, a rotary head with two different planes has $D/2 = 2$, and a head whose planes turn alike has more, just as
# {prf:ref}`lem-commutant` has more unidentified directions for it: $n$ planes that turn alike conserve the $n^2$ real numbers of a
# Hermitian matrix. The last line is the exception of part 3. Where one of two planes has $(q_i, k_i) = 0$ no gradient moves it, and with
# $E = 4$ all its 16 numbers keep still beside the one of the other plane.
#
# ### The drift of steps
#
# {prf:ref}`lem-one-step` and {prf:ref}`lem-decay` are identities, so they hold for steps of any size. We take a large one, $\eta = 0.3$,
# without decay and with $\lambda = 0.5$, and compare with the formula in $G$. This is the gradient of a head of width $E$ with queries
# $M X$ and keys $X$, which has the same scores (up to $\sqrt{E/D}$, since the code divides scores by the root of the head width).

# %%
eta, decay = 0.3, 0.5
wide = Attention(E, H, head_dim=E, value_dim=D)
same = {"W_K": torch.eye(E, dtype=torch.float64).expand(H, E, E)}
of_M = lambda M: loss(start | {"W_Q": (E / D) ** 0.5 * M} | same, wide)
G = torch.func.grad(of_M)(start["W_K"].mT @ start["W_Q"])  # (H, E, E)
by_G = start["W_K"] @ G @ G.mT @ start["W_K"].mT
by_G = eta**2 * (by_G - start["W_Q"] @ G.mT @ G @ start["W_Q"].mT)
moved = {}
for keep in (1.0, 1 - eta * decay):
    moved[keep] = imbalance({w: keep * start[w] - eta * g[w] for w in ("W_Q", "W_K")})
check("lemma-5.1", one_step=apart(moved[1.0] - imbalance(start), by_G))
contracted = (1 - eta * decay) ** 2 * imbalance(start)
check("lemma-5.1", decay=apart(moved[1 - eta * decay], contracted + by_G))

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


SGD, Adam = torch.optim.SGD, partial(torch.optim.Adam, betas=(0.9, 0.99))
optimisers = {
    "gradient descent": lambda n: partial(SGD, lr=2 / n),
    "heavy ball": lambda n: partial(SGD, lr=0.2 / n, momentum=0.9),
    "Adam": lambda n: partial(Adam, lr=0.5 / n),
}

# %%
sizes = (40, 80, 160, 320)
drifts = {way: {} for way in optimisers}
for way, make in optimisers.items():
    for many in sizes:
        reached = train(make(many), start, loss, many)[-1]
        drifts[way][many] = imbalance(reached) - imbalance(start)

# %% [markdown]
# What should come out? The integral $I = \int_0^t (A A^\top - B B^\top)$ can be had from the solver's path, by Simpson's rule. The drift
# of gradient descent over its rate must tend to $I$, and that of the heavy ball to $19\, I$. The error of both is of first order in the
# rate, so it must about halve with it, and Richardson's extrapolation from the two smallest rates removes it, up to the second order. We
# ask for 5%.

# %%
integrand = imbalance(torch.func.vmap(gradient)(path))  # A A^T - B B^T: (201, H, D, D)
I = torch.from_numpy(simpson(integrand.numpy(), x=np.linspace(0, 2, 201), axis=0))


def error_of_limit(drift, factor):
    per_rate = {n: drift[n] * n / 2 for n in sizes}
    coarse, fine = (apart(per_rate[n], factor * I) for n in sizes[-2:])
    assert 0.4 * coarse < fine < 0.6 * coarse
    return apart(2 * per_rate[sizes[-1]] - per_rate[sizes[-2]], factor * I)


adams = [drifts["Adam"][n].norm() for n in sizes]
assert adams[0] > 20 * drifts["gradient descent"][40].norm()
check(
    "optimisers",
    descent=error_of_limit(drifts["gradient descent"], 1),
    heavy_ball=error_of_limit(drifts["heavy ball"], 19),
    adam=adams[-1] / adams[0],
)

# %% [markdown]
# At an eighth of the rate Adam's drift is still more than half of what it was.
#
# The heavy ball's recursion ({prf:ref}`prop-heavy-ball`) is exact: we rebuild the imbalance of a run from its velocities alone, step by
# step.

# %%
ball = train(optimisers["heavy ball"](40), start, loss, 40)
between = zip(ball, ball[1:])
velocities = [{part: new[part] - old[part] for part in new} for old, new in between]
rebuilt, Y, Phi, misfits = imbalance(start), 0, 0, []
for state, V in zip(ball[1:], velocities):
    Y = 0.9 * (Y + 2 * Phi)
    Phi = imbalance(V)
    rebuilt = rebuilt + Y + Phi
    misfits += [apart(rebuilt, imbalance(state))]
check("optimisers", recursion=max(misfits))

# %% [markdown]
# ### In the plane
#
# For $D = E = 1$ all of this can be drawn. Take $L = \frac12 (W_K W_Q - 1)^2$. The loss is constant on the hyperbolas $W_K W_Q = \omega$,
# and $\Delta = W_Q^2 - W_K^2$ is constant on the hyperbolas that cross them at right angles: the flow has no
# choice but to follow those.

# %%
toy = {"W_Q": torch.tensor([[-0.9]]).double(), "W_K": torch.tensor([[1.9]]).double()}
toy_loss = lambda p: (p["W_K"] * p["W_Q"] - 1).square().sum() / 2
plane = {"flow": flow(toy_loss, toy, 1e-12, time=4.0)}
for way, make in {
    "gradient descent": partial(SGD, lr=0.1),
    "heavy ball": partial(SGD, lr=0.01, momentum=0.9),
    "Adam": partial(Adam, lr=0.1),
}.items():
    passed = train(make, toy, toy_loss, 150)
    assert toy_loss(passed[-1]) < 1e-2 < 3 < toy_loss(toy)
    plane[way] = {entry: torch.stack([at[entry] for at in passed]) for entry in toy}
flat = lambda p: torch.cat((p["W_Q"], p["W_K"]), -1).squeeze(-2)  # (n, 2)
size = float(imbalance(start).norm())
relative = {
    way: {many: float(drift.norm()) / size for many, drift in by.items()}
    for way, by in drifts.items()
}
predicted = {"gradient descent": 2 * float(I.norm()) / size}
predicted["heavy ball"] = 19 * predicted["gradient descent"]

# %% mystnb={"image": {"alt": "Left: the plane of two weights with the two families of hyperbolas that cross at right angles. From one starting point the flow follows a single grey hyperbola to the valley; gradient descent leaves it a little, the heavy ball and Adam leave it far. Right: drift against number of steps, log-log. Gradient descent and heavy ball fall along parallel lines of slope minus one, the second nineteen times higher; Adam stays flat at the top."}, "figure": {"caption": "Left: a head of two numbers. Colour and white lines: the loss, lowest on the orange valley. Grey: the lines that keep $W_Q^2 - W_K^2$. Only the flow stays on its own. Right: how far the imbalance of the small layer has drifted after the same time, relative to its norm, against the number of steps that were taken. Lines are the predictions $\\eta I$ and $19\\, \\eta I$, points the runs.", "name": "fig-imbalance-paths"}}
plane = {way: flat(passed) for way, passed in plane.items()}
figures.imbalance_paths(plane, relative, predicted)

# %% [markdown]
# {numref}`fig-imbalance-paths` is the chapter in one picture. All four end in the valley, at the same function, and at four different
# pairs of weights. Only for the flow can one say which: it is the one on the valley with the imbalance of the start.
#
# ### The projection
#
# Next {prf:ref}`prop-rho`, in three ways that share no code. The first writes the $D^2$ null directions down as columns, makes them
# orthonormal, and projects. The second is the Sylvester equation, in the lines of the proposition. The third is `attnid.head_metrics`,
# which does all heads at once. A fourth, LAPACK's least squares on the columns, gives $S$ itself. The steps are a random one, the signs
# of the gradient (Adam's first step), the gradient, and a null step.


# %%
def null_columns(W_Q, W_K, sign=-1):
    units = torch.eye(len(W_Q) ** 2, dtype=torch.float64).view(-1, *2 * [len(W_Q)])
    on_keys = sign * (units.mT @ W_K).flatten(1)
    return torch.cat(((units @ W_Q).flatten(1), on_keys), 1).mT  # (2 D E, D D)


as_vector = lambda dQ, dK: torch.cat((dQ.flatten(), dK.flatten()))


def rho_by_basis(W_Q, W_K, dQ, dK, sign=-1):
    inside = torch.linalg.qr(null_columns(W_Q, W_K, sign)).Q.mT @ as_vector(dQ, dK)
    return inside.square().sum() / as_vector(dQ, dK).square().sum()


def rho_of(W_Q, W_K, dQ, dK):
    return head_metrics(W_Q, W_K, W_Q + dQ, W_K + dK)["rho"]


def sylvester(W_Q, W_K, dQ, dK):
    (p, u), (k, v) = torch.linalg.eigh(W_Q @ W_Q.mT), torch.linalg.eigh(W_K @ W_K.mT)
    R = v.mT @ (dQ @ W_Q.mT - W_K @ dK.mT) @ u
    return v @ (R / (k[:, None] + p)) @ u.mT  # entry i, j over k_i + p_j


# %%
W_Q, W_K = start["W_Q"][0], start["W_K"][0]
T = normal(D, D, seed=4)
directions = {
    "random": tuple(normal(2, D, E, seed=5)),
    "sign of the gradient": (A[0].sign(), B[0].sign()),
    "gradient": (A[0], B[0]),
    "null": (T @ W_Q, -T.mT @ W_K),
}
rhos, off = {}, {"basis": [], "eigenbases": [], "solver": []}
for name, step in directions.items():
    S, columns = sylvester(W_Q, W_K, *step), null_columns(W_Q, W_K)
    solved = torch.linalg.lstsq(columns, as_vector(*step)[:, None]).solution
    rhos[name] = rho_of(W_Q, W_K, *step)
    share = as_vector(S @ W_Q, -S.mT @ W_K).norm() / as_vector(*step).norm()
    off["basis"].append(abs(rho_by_basis(W_Q, W_K, *step) - rhos[name]))
    off["eigenbases"].append(abs(share**2 - rhos[name]))
    off["solver"].append((solved.view(D, D) - S).norm() / (1 + S.norm()))
    print(f"{name:>20}: rho = {rhos[name]:.2f}")
basis, eigenbases, solver = map(max, off.values())
check("least-squares", basis=basis, eigenbases=eigenbases, solver=solver)

# %% [markdown]
# ```{prf:remark} Departure from the paper
# :label: rem-11-sign
#
# The paper prints the second term of the objective as $\lVert \delta W_K - S^\top W_K \rVert^2$. Its Sylvester equation has $-W_K \delta
# W_K^\top$ on the right, which belongs to a plus sign: with the printed objective that term would be $+ W_K \delta W_K^\top$. The space
# of all $(S W_Q, S^\top W_K)$ is not null at all, and a gradient has a large component in it. Further on, entry $d, d'$ of the solution in
# the eigenbases is divided by $\lambda_{Q,d} + \lambda_{K,d'}$; with $S = U_K \tilde S U_Q^\top$, as the paper has it, rows belong to
# keys and columns to queries, so it should be $\lambda_{K,d} + \lambda_{Q,d'}$.
# ```
#
# We put both to the test: the share of a gradient in the null space and in the printed one, and by how much the equation fails when the
# indices are interchanged, relative to its right side.

# %%
P, K = W_Q @ W_Q.mT, W_K @ W_K.mT
(p, u), (k, v) = torch.linalg.eigh(P), torch.linalg.eigh(K)
dQ, dK = directions["random"]
R = dQ @ W_Q.mT - W_K @ dK.mT
interchanged = v @ (v.mT @ R @ u / (p[:, None] + k)) @ u.mT
check(
    "least-squares",
    gradient=rho_of(W_Q, W_K, A[0], B[0]),
    printed_sign=rho_by_basis(W_Q, W_K, A[0], B[0], sign=+1),
    printed_indices=apart(interchanged @ P + K @ interchanged, R),
)

# %% [markdown]
# **Null steps have $\rho = 1$.** So as not to use the formula for them, we take null directions from the outputs: `measure` finds the null
# space of the whole layer's Jacobian, and we look at the part of each that lies in the first head's queries and keys.

# %%
null = measure(layer, parameters=start).null_space
null_Q, null_K = null["W_Q"][:, 0], null["W_K"][:, 0]  # (36, D, E)
copies = lambda W: W.expand_as(null_Q)
shares = rho_of(copies(W_Q), copies(W_K), null_Q, null_K)
assert rank(torch.cat((null_Q, null_K), 2).flatten(1), 1e-8) == D**2
check("rho", null_steps=(shares - 1).abs().max())

# %% [markdown]
# **A mean and no bound.** For isotropic steps $\rho$ averages $D/(2E) = 1/(2H) = 1/4$. So it must over the $2DE$ unit steps, each a change
# of one weight, exactly; and over 4,000 random ones, to within 0.01. That sample is compared with the beta distribution of
# {prf:ref}`prop-rho` by the test of Kolmogorov and Smirnov at the level 0.001.

# %%
of_steps = lambda steps: rho_of(
    W_Q.expand_as(steps[0]), W_K.expand_as(steps[1]), steps[0], steps[1]
)
units = torch.eye(2 * D * E, dtype=torch.float64).view(-1, 2, D, E).transpose(0, 1)
sample = of_steps(normal(2, 4000, D, E, seed=6))
law = beta_distribution(D**2 / 2, (2 * D * E - D**2) / 2)
check("rho", unit_steps=abs(of_steps(units).mean() - D / (2 * E)))
check("rho", random_steps=abs(sample.mean() - D / (2 * E)), largest=sample.max())
check("rho", distribution=kstest(sample.numpy(), law.cdf).pvalue)
above = (sample > D / (2 * E)).double().mean()
print(f"{above:.0%} of the random steps lie above D/(2E)")

# %% [markdown]
# ```{prf:remark} Departure from the paper
# :label: rem-11-mean
#
# The paper draws $1/(2H)$ in its figures as a boundary and reads values near it as a sign of something. It is what steps without any
# preference have on average, and nothing keeps a step from exceeding it: nearly half of all random steps do here, and a null step has
# $\rho = 1$. For the paper's $D = 64$, $E = 384$ the beta distribution is narrow, with a standard deviation of 0.0018 around 0.083, so that
# there a value far from $1/(2H)$, on either side, does mean something: a preference.
# ```

# %%
paper = beta_distribution(64**2 / 2, (2 * 64 * 384 - 64**2) / 2)
print(f"D = 64, E = 384: mean {paper.mean():.4f}, standard deviation {paper.std():.4f}")

# %% [markdown]
# ### A step that beta and tau do not see
#
# First the numbers themselves, against formulas without a Gram matrix: with the singular values $\sigma$ of $W_Q$ and $\kappa$ of $W_K$,
# $\beta^2 = \sum \sigma^4 + \sum \kappa^4 - 2 \lVert W_Q^\top W_K \rVert^2$, $\tau = \sum \sigma^2 - \sum \kappa^2$ and
# $\mu = \min \sigma^2 + \min \kappa^2$.

# %%
sigma, kappa = torch.linalg.svdvals(W_Q), torch.linalg.svdvals(W_K)
overlap = (W_Q.mT @ W_K).square().sum()
after = {"W_Q": W_Q + dQ, "W_K": W_K + dK}
explicit = {
    "beta": (sigma.pow(4).sum() + kappa.pow(4).sum() - 2 * overlap).sqrt(),
    "tau": sigma.square().sum() - kappa.square().sum(),
    "mu": sigma.min() ** 2 + kappa.min() ** 2,
    "drift": (imbalance(after) - (P - K)).norm(),
}
ours = head_metrics(W_Q, W_K, W_Q + dQ, W_K + dK)
error = {metric: abs(ours[metric] / explicit[metric] - 1) for metric in explicit}
check("beta-tau-mu", beta=error["beta"], tau=error["tau"])
check("beta-tau-mu", mu=error["mu"], drift=error["drift"])

# %% [markdown]
# Solve $S P + K S = Z$ with a skew $Z$ and step along $(S W_Q, -S^\top W_K)$. All of the step is null, $\rho = 1$; nothing of it shows in
# $\Delta$ to first order. With a symmetric $Z$ it shows. Half the step must divide the drift by 4 if it is of second order, by 2 if it is
# of first. How many of the nine null directions $\dot\Delta$ sees is a rank: of the explicit directions, and of those that `measure` found
# in the outputs.

# %%
falls = {}
for name, sign in (("skew", -1), ("symmetric", +1)):
    Z = normal(D, D, seed=7)
    S = solve_sylvester(K.numpy(), P.numpy(), (Z + sign * Z.mT).numpy())
    S = torch.from_numpy(S)
    steps = [(h * S @ W_Q, -h * S.mT @ W_K) for h in (1e-4, 5e-5)]
    long, short = (head_metrics(W_Q, W_K, W_Q + q, W_K + k) for q, k in steps)
    assert abs(long["rho"] - 1) < 1e-10
    falls[name] = long["drift"] / short["drift"]
half = lambda dQ, dK: dQ @ W_Q.mT - dK @ W_K.mT
rate = lambda dQ, dK: half(dQ, dK) + half(dQ, dK).mT  # of the imbalance
written = null_columns(W_Q, W_K).mT.view(-1, 2, D, E)
check("beta-tau-mu", skew_step=falls["skew"], symmetric_step=falls["symmetric"])
check(
    "beta-tau-mu",
    explicit=rank(rate(written[:, 0], written[:, 1]).flatten(1)),
    outputs=rank(rate(null_Q, null_K).flatten(1), 1e-8),
)

# %% [markdown]
# ```{prf:remark} Departure from the paper
# :label: rem-11-unseen
#
# The paper proposes the change of $\lVert \Delta \rVert_F$ as a measure of how much a run uses its unidentified parameters. It misses
# three of nine directions here, and $D(D-1)/2 = 2{,}016$ of 4,096 for $D = 64$. A constant $\beta$ is necessary for a run that never
# steps along null directions, but it is not sufficient. And $\beta$ is one number, $\tau$ another: a change of $\Delta$ that keeps both is
# easily made.
# ```
#
# **$\mu$ and the rank.** With one of the two weights deficient, $\mu$ stays positive and there are still $D^2 = 9$ null directions of our
# form. With both of rank $D - 1$, $\mu$ is zero and there are eight. The step's $\rho$ is then still that of an orthonormal basis of what
# is left.


# %%
def deficient(W):
    U, s, Vh = torch.linalg.svd(W, full_matrices=False)
    return U[:, :-1] * s[:-1] @ Vh[:-1]


families, positive, wrongs = [], [], []
low_Q, low_K = deficient(W_Q), deficient(W_K)
for Q0, K0 in ((W_Q, W_K), (low_Q, W_K), (low_Q, low_K)):
    found = head_metrics(Q0, K0, Q0 + dQ, K0 + dK)
    U, s, _ = torch.linalg.svd(null_columns(Q0, K0), full_matrices=False)
    families.append(rank(null_columns(Q0, K0)))
    inside = U[:, : families[-1]].mT @ as_vector(dQ, dK)
    share = inside.square().sum() / as_vector(dQ, dK).square().sum()
    wrongs.append(abs(share - found["rho"]))
    positive.append(int(found["mu"] > 1e-3))
check("beta-tau-mu", families=families, positive_mu=positive)
check("rho", deficient_rank=wrongs)

# %% [markdown]
# ## Break it
#
# **Biases.** This is the one that matters for reading the paper's figures, since its runs have biases. The same layer again, now with all
# four biases, none of them zero at the start. The flow keeps the joint matrix and the key bias. The weights alone lose their conservation
# law, and what they lose $b_Q b_Q^\top$ gains.

# %%
biased = Attention(6, 2, bias="qkvo")
start_b, loss_b = imitation(biased)
path_b = flow(loss_b, start_b, 1e-12)
with_biases = lambda p: {
    one: with_bias(p[one], p["b" + one[1:]]) for one in ("W_Q", "W_K")
}
joint = lambda p: imbalance(with_biases(p))
check(
    "conserved-biases",
    joint=strayed(path_b, joint),
    key_bias=strayed(path_b, lambda p: p["b_K"]),
    weights_alone=strayed(path_b),
)
print(f"weights alone: the imbalance moves by {strayed(path_b):.2f} of its norm")

# %% [markdown]
# For one step there are the identity of {prf:ref}`prop-conserved-bias` and its formula for $\rho$, the same at each rate. We ask
# `head_metrics` and the explicit projection as well.

# %%
g_b = torch.func.grad(loss_b)(start_b)
A_b, B_b, a = g_b["W_Q"], g_b["W_K"], g_b["b_Q"]
Q_b, K_b, b = start_b["W_Q"], start_b["W_K"], start_b["b_Q"]
first = a[:, :, None] * b[:, None, :]
p_b, u_b = torch.linalg.eigh(Q_b @ Q_b.mT)
k_b, v_b = torch.linalg.eigh(K_b @ K_b.mT)
inside = (v_b.mT @ first @ u_b).square() / (k_b[..., None] + p_b[:, None])
formula = inside.sum((1, 2)) / (A_b.square() + B_b.square()).sum((1, 2))
by_basis = [rho_by_basis(Q_b[h], K_b[h], -A_b[h], -B_b[h]) for h in range(H)]
check(
    "conserved-biases",
    rho_formula=apart(rho_of(Q_b, K_b, -0.1 * A_b, -0.1 * B_b), formula),
    rho_projection=apart(torch.stack(by_basis), formula),
    rho_alone=formula,
)

# %%
stepped = {one: start_b[one] - 0.1 * g_b[one] for one in start_b}
second = 0.1**2 * (A_b @ A_b.mT - B_b @ B_b.mT)
step_b = [*with_biases(start_b).values(), *with_biases(stepped).values()]
gone = imbalance(stepped) - imbalance(start_b)
check(
    "conserved-biases",
    one_step=apart(gone, 0.1 * (first + first.mT) + second),
    rho_joint=head_metrics(*step_b)["rho"],
)
print("rho of a gradient step, weights alone:", [round(float(r), 2) for r in formula])

# %%
times = torch.linspace(0, 2, 201, dtype=torch.float64)
moves = lambda of: (of(path_b) - of(start_b)).flatten(1).norm(dim=1)
curve = lambda of: moves(of) / of(start_b).norm()
curves = {
    "$E \\times E$, weights alone": curve(wrong),
    "$D \\times D$, weights alone": curve(imbalance),
    "$D \\times D$, with biases": curve(joint),
}
marks = {"gradient": 0.0, "its signs": float(rhos["sign of the gradient"])}
marks["null step"] = float(rhos["null"])

# %% mystnb={"image": {"alt": "Left: a histogram of rho for random steps, centred near a quarter and spread from a tenth to a half, with the smooth curve of a beta distribution on top and a dashed line at D over 2E; vertical marks show a gradient at zero, its signs in between, and a null step at one. Right: the change of three matrices along a flow with biases, on a logarithmic scale; the E by E matrix and the weights' imbalance rise above one percent, the imbalance with biases stays below 1e-12."}, "figure": {"caption": "Left: $\\rho$ of 4,000 isotropic steps, the beta distribution that it follows, and its mean $D/(2E)$ (dashed); three steps that are not isotropic are marked. Right: along the flow of a layer with biases, the relative change of three matrices. Only the imbalance of weights and biases together is conserved.", "name": "fig-rho-and-biases"}}
figures.rho_and_biases(sample, law, D / (2 * E), marks, times, curves)

# %% [markdown]
# **Rotary positions.** Along the flow of a rotary head $\Delta$ moves as well. What stays, by {prf:ref}`prop-conserved-count`, is the trace
# of each plane's $2 \times 2$ block, two numbers of ten.

# %%
rotary = Attention(8, 2, rotary=(1.0, 0.3))  # D = 4
start_r, loss_r = imitation(rotary)
path_r = flow(loss_r, start_r, 1e-12)
diagonal = lambda p: imbalance(p).diagonal(dim1=-2, dim2=-1)
planes = lambda p: diagonal(p).unflatten(-1, (2, 2)).sum(-1)  # (..., H, planes)
check("beta-tau-mu", rotary_all=strayed(path_r), rotary_planes=strayed(path_r, planes))
print(f"rotary: the imbalance moves by {strayed(path_r):.2f} of its norm")

# %% [markdown]
# **Other optimisers.** {prf:ref}`prop-respects`, with 20 steps each: from moved weights the optimiser either ends at the moved end, to
# $10^{-7}$, or somewhere else. (Adam has $\varepsilon = 10^{-8}$ here, hence the tolerance.)

# %%
signs = torch.tensor([1.0, -1.0, 1.0]).double()
changes = {
    "signed permutation": torch.diag(signs)[[2, 0, 1]],
    "orthogonal": torch.linalg.qr(normal(D, D, seed=8)).Q,
    "any other": normal(D, D, seed=9),
}
respected = {change: [] for change in changes}
for change, S in changes.items():
    dual = torch.linalg.inv(S).mT
    move = lambda p: p | {"W_Q": S @ p["W_Q"], "W_K": dual @ p["W_K"]}
    for name in optimisers:
        run = lambda p: train(optimisers[name](100), p, loss, 20)[-1]
        here, there = move(run(start)), run(move(start))
        error = max(apart(there[part], here[part]) for part in ("W_Q", "W_K"))
        assert error < 1e-7 or error > 1e-3
        respected[change] += [name] * (error < 1e-7)
    print(f"{change:>18}:", ", ".join(respected[change]) or "none")
check("optimisers", respected=[len(names) for names in respected.values()])

# %% [markdown]
# ## What it means
#
# Initialisation chooses the representative. A head trained by gradient flow carries $D(D+1)/2$ numbers from its random start to the end
# of training, and no data can change them. Gradient descent changes them slowly, in proportion to the rate; momentum does so many times
# faster, and still in proportion to the rate; decay forgets them at a known pace; Adam changes them at any rate.
#
# Three cautions about the measures. A step with $\rho = 0$ is orthogonal to the null space *where it is taken*, and a sequence of such
# steps can still move along an {term}`orbit`: {prf:ref}`prop-conserved-count` leaves $D(D-1)/2$ dimensions for it, and the last exercise
# goes there. A step with $\rho = 1$ need not show in $\beta$ or $\tau$. And with biases all three must be computed from weights and biases
# together; a $\rho$ or a drift of first order that comes from the weights alone may be an artefact of leaving $b_Q$ out. nanoGPT's biases
# are zero at the start and do not stay so: {doc}`13_nanogpt` measures both.
#
# ## Exercises
#
# **1. The other circuit.** What does gradient flow conserve of $W_V$ and $W_O$? And with $b_V$? Check it on the two flows above.
#
# ```{admonition} Answer
# :class: dropdown
#
# The symmetry is $(S W_V, W_O S^{-1})$ ({prf:ref}`lem-value-output`), so $W_V$ and $W_O^\top$ take the places of $W_Q$ and $W_K$: the
# $C \times C$ matrix $W_V W_V^\top - W_O^\top W_O$ is conserved, one for each head. With biases the value bias moves along, $S b_V$, and
# $b_O$ keeps still: so $W_V W_V^\top + b_V b_V^\top - W_O^\top W_O$ is. There is more: $b_V$ acts only through
# $b_O + \sum_h W_O^h b_V^h$ ({prf:ref}`lem-pooled-bias`), whose gradient is $\partial L / \partial b_O$. So
# $\dot b_V^h = W_O^{h\top} \dot b_O$.
# ```

# %% tags=["hide-cell"]
values = lambda p: p["W_V"] @ p["W_V"].mT - p["W_O"].mT @ p["W_O"]
outer = lambda b: b[..., :, None] * b[..., None, :]
assert strayed(path, values) < 1e-10 < 1e-3 < strayed(path_b, values)
assert strayed(path_b, lambda p: values(p) + outer(p["b_V"])) < 1e-10
assert apart(g_b["b_V"], torch.einsum("hec,e->hc", start_b["W_O"], g_b["b_O"])) < 1e-12

# %% [markdown]
# **2. Steps that change no score.** Has every step that keeps $M$ to first order $\rho = 1$? Take $W_Q$ and $W_K$ of rank $D - 1$.
#
# ```{admonition} Answer
# :class: dropdown
#
# At full rank, yes: for $D \le E$ the null directions are all there is ({prf:ref}`lem-directions`). At rank $D - 1$, with $D \le E$, the
# directions that keep $M$ number $2DE - E^2 + (E - D + 1)^2$ (chapter 1, exercise 2), here 16, of which $\mathcal{N}$ holds
# $D^2 - 1 = 8$. So over an orthonormal basis of them $\rho$ is $1/2$ in the mean, and it takes all values from 0 to 1.
# ```

# %% tags=["hide-cell"]
product = lambda both: both[1].mT @ both[0]
J = torch.func.jacrev(product)(torch.stack((low_Q, low_K))).reshape(E * E, -1)
kept = torch.linalg.svd(J).Vh[rank(J) :].view(-1, 2, D, E)  # an orthonormal basis
low = [W.expand(len(kept), D, E) for W in (low_Q, low_K)]
mean = rho_of(*low, kept[:, 0], kept[:, 1]).mean()
check("rho", silent_steps=len(kept), silent_mean=mean)

# %% [markdown]
# **3. Around a loop.** Let losses that change with time lead $M$ around a closed loop, each step a gradient step. Must the weights return
# as well?
#
# ```{admonition} Answer
# :class: dropdown
#
# No. They return to the same $M$ and the same $\Delta$. For $D = 1$ that fixes them up to sign. In general it leaves $D(D-1)/2$
# dimensions, and the brackets in the proof of {prf:ref}`prop-conserved-count` say that all are reached. The cell takes $D = E = 2$,
# prescribes $\dot M$ on a circle, and finds the gradient step that makes it, $(W_K G, W_Q G^\top)$ with $K' G + G P' = \dot M$,
# $K' = W_K^\top W_K$, $P' = W_Q^\top W_Q$. Each instant has $\rho = 0$; the round trip is a finite step along the orbit, invisible to
# $\beta$ and $\tau$.
# ```


# %% tags=["hide-cell"]
def around(t, w):
    W_Q, W_K = w.reshape(2, 2, 2)
    circle = 0.5 * np.array([[-np.sin(t), np.cos(t)], [0, 0]])  # the velocity of M
    G = solve_sylvester(W_K.T @ W_K, W_Q.T @ W_Q, circle)
    return np.stack((W_K @ G, W_Q @ G.T)).ravel()


tight = {"method": "DOP853", "rtol": 1e-12, "atol": 1e-12}
back = solve_ivp(around, (0, 2 * np.pi), pair.ravel(), **tight).y[:, -1]
back = back.reshape(2, 2, 2)
S = back[0] @ np.linalg.inv(pair[0])
assert np.abs(back[1].T @ back[0] - pair[1].T @ pair[0]).max() < 1e-9
assert np.abs(grams(back) - grams(pair)).max() < 1e-9
assert np.abs(back[1] - np.linalg.inv(S).T @ pair[1]).max() < 1e-9
away = np.linalg.norm(back[0] - pair[0]) / np.linalg.norm(pair[0])
print(f"same M, same imbalance; W_Q has moved by {away:.2f} of its norm")
assert away > 0.1

# %% [markdown]
# **Next:** if the imbalance is ours to choose, we may as well choose it. {doc}`12_rebalancing` sets it to zero, without a change to the
# function, and looks at what that takes: the biases, for one.
