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
# *Assumed: {prf:ref}`lem-invariance` and the {term}`null directions <null direction>` of {prf:ref}`lem-directions`; what a gradient step, momentum and Adam
# are.*
#
# *In the ledger:* {ref}`Lemma 5.1 <ledger-lemma-5-1>`, {ref}`the least-squares problem <ledger-least-squares>`, {ref}`rho <ledger-rho>`,
# {ref}`beta, tau and mu <ledger-beta-tau-mu>`, {ref}`biases <ledger-conserved-biases>`, {ref}`optimisers <ledger-optimisers>`.
#
# ## The question
#
# The loss cannot prefer one of the many pairs $(S W_Q, S^{-\top} W_K)$ to another. Yet training ends at *one* of them. Which? Under {term}`gradient flow`
# initialisation decides: a matrix fixed at the start is carried along unchanged. A real optimiser changes it. By how much?
#
# Throughout, one head has the {term}`Gram matrices <Gram matrix>` $P_Q = W_Q W_Q^\top$ and $P_K = W_K W_K^\top$, and $\Delta = P_Q - P_K$, which is
# $D \times D$, is its **{term}`imbalance`**, as {cite:t}`arora2018` say of layers of a deep linear network. The loss $\ell$ has the gradients
# $A = \partial \ell / \partial W_Q$ and $B = \partial \ell / \partial W_K$. If it is a differentiable function of $M = W_K^\top W_Q$ and of other weights, let
# $\Gamma = \partial \ell / \partial M$; then $A = W_K \Gamma$ and $B = W_Q \Gamma^\top$ by the chain rule.

# %% [markdown]
# ## The claim
#
# ```{prf:lemma} Gradient flow conserves the imbalance (paper: Lemma 5.1)
# :label: lem-conserved
#
# Let the loss be differentiable, and $\ell(S W_Q, S^{-\top} W_K) = \ell(W_Q, W_K)$ for every nonsingular $S \in \mathbb{R}^{D \times D}$.
#
# 1. At all weights, $A W_Q^\top = W_K B^\top$. These are $D^2$ equations.
# 2. Along the gradient flow $\dot W_Q = -A$, $\dot W_K = -B$ the matrix $\Delta = W_Q W_Q^\top - W_K W_K^\top$ is constant. It is symmetric: $D(D+1)/2$
#    conserved numbers.
# ```
#
# $D$ may exceed $E$. The loss may depend on other weights, trained at the same time, and may change with time, as minibatches and dropout make it. A positive
# factor on the whole gradient, such as clipping by the norm sets, leaves $\Delta$ constant. It alters the pace alone if the loss does not change with time; if
# it does, the path too. There are $D^2$ {term}`unidentified` directions, but $D(D+1)/2$ conserved numbers. Are we missing some? (The first part of the answer
# is an instance of what {cite:t}`marcotte2023` do for products of matrices, and {cite:t}`marcotte2025` for transformers.)
#
# ```{prf:proposition} Nothing else is conserved (beyond the paper)
# :label: prop-conserved-count
#
# Call a smooth function $f$ of $(W_Q, W_K)$ *conserved* if it is constant along the gradient flow of every smooth loss of $M$.
#
# 1. The gradient of a conserved function is $(T W_Q, -T W_K)$ with a *symmetric* $T$ wherever the $D \times 2E$ matrix $(W_Q\; W_K)$ has rank $D$. The entries
#    of $\Delta$ provide all of these: there are exactly $D(D+1)/2$ independent conserved numbers.
# 2. Along the null direction $(T W_Q, -T^\top W_K)$ the imbalance changes at the rate $(T P_Q + P_K T) + (T P_Q + P_K T)^\top$. If $W_Q$ or $W_K$ has rank $D$,
#    those of these directions along which it keeps still have $T P_Q + P_K T$ skew, and make a space of dimension $D(D-1)/2$.
# 3. With {term}`rotary positions <rotary position>`, $D/2$ planes with distinct frequencies in $(0, \pi)$, losses of all the products
#    $M_\delta = W_K^\top R_\delta W_Q$, and $E \ge 2$, let $q_i$ and $k_i$ be the two rows of $W_Q$ and of $W_K$ in plane $i$. Where no plane has
#    $(q_i, k_i) = 0$, exactly $D/2$ independent numbers are conserved: $\lVert q_i \rVert^2 - \lVert k_i \rVert^2$ for each plane.
# ```
#
# ### What steps of finite size do
#
# ```{prf:lemma} The drift of one step (beyond the paper)
# :label: lem-one-step
#
# For a loss as in {prf:ref}`lem-conserved` a step of gradient descent, $W_Q \mapsto W_Q - \eta A$ and $W_K \mapsto W_K - \eta B$, changes the imbalance by
# exactly $\eta^2 ( A A^\top - B B^\top )$. Where the loss is a differentiable function of $M$ and of other weights, this is
# $\eta^2 ( W_K \Gamma \Gamma^\top W_K^\top - W_Q \Gamma^\top \Gamma\, W_Q^\top )$.
# ```
#
# This is the {term}`drift` of the step. If the loss is smooth and does not change with time, $t/\eta$ steps drift by $\eta \Lambda$ to first order in $\eta$,
# with $\Lambda = \int_0^t (A A^\top - B B^\top)$ along the flow.
#
# ```{prf:lemma} Decay contracts (beyond the paper)
# :label: lem-decay
#
# With decoupled weight decay, $W_Q \mapsto (1 - \eta\lambda) W_Q - \eta A$ and likewise for $W_K$, the step turns $\Delta$ into exactly
# $(1 - \eta\lambda)^2\, \Delta + \eta^2 ( A A^\top - B B^\top )$.
# ```
#
# Without momentum, decay that is added to the gradient makes the same step. The flow with decay has $\Delta(t) = e^{-2\lambda t} \Delta(0)$.
#
# ```{prf:proposition} Momentum remembers (beyond the paper)
# :label: prop-heavy-ball
#
# Let $V_{n+1} = \gamma V_n - \eta\, (A_n, B_n)$ and $(W_Q, W_K)_{n+1} = (W_Q, W_K)_n + V_{n+1}$, with $V_0 = 0$, and write $V_n = (V_Q, V_K)_n$,
# $\Phi_n = V_Q V_Q^\top - V_K V_K^\top$. Then exactly $\Delta_{n+1} - \Delta_n = Y_n + \Phi_{n+1}$ with $Y_0 = 0$ and $Y_n = \gamma\, (Y_{n-1} + 2 \Phi_n)$.
# ```
#
# Where gradients vary slowly, $V \approx -\frac{\eta}{1 - \gamma} (A, B)$ and $Y \approx \frac{2\gamma}{1-\gamma} \Phi$: momentum drifts
# $(1 + \gamma)/(1 - \gamma)$ times as much as gradient descent at the rate $\eta / (1 - \gamma)$, 19 times for $\gamma = 0.9$. Adam's first step,
# $-\eta\, (\operatorname{sign} A, \operatorname{sign} B)$, drifts at first order in $\eta$: signs do not satisfy the equations of {prf:ref}`lem-conserved`.
#
# ```{prf:proposition} What an optimiser respects (beyond the paper)
# :label: prop-respects
#
# Let $D \le E$. Say that an optimiser *respects* $S$ if, started from $(S W_Q, S^{-\top} W_K)$ instead of $(W_Q, W_K)$, it makes the steps
# $(S\, \delta W_Q, S^{-\top} \delta W_K)$ instead of $(\delta W_Q, \delta W_K)$, from all weights and for every loss of $M$.
#
# 1. Gradient descent, with or without momentum and decay, respects the orthogonal $S$ and no others.
# 2. Adam (with its small constant $\varepsilon = 0$, where no entry of a gradient is zero) respects the $2^D D!$ signed permutations and no others.
# ```
#
# ### How far a step is from orthogonal
#
# The paper measures a step by its best approximation in $\mathcal{T} = \{ (T W_Q, -T^\top W_K) \}$, the null directions of {prf:ref}`lem-directions`.
#
# ```{prf:proposition} The share of a step that is null (paper: section 5.1)
# :label: prop-rho
#
# Let $p_j, u_j$ and $k_i, v_i$ be the eigenvalues and orthonormal eigenvectors of $P_Q$ and of $P_K$, and let $\mu = \min_j p_j + \min_i k_i > 0$.
#
# 1. The least-squares problem $\min_T \lVert \delta W_Q - T W_Q \rVert^2 + \lVert \delta W_K + T^\top W_K \rVert^2$ has exactly one solution, that of the
#    Sylvester equation $T P_Q + P_K T = Z$ with $Z = \delta W_Q W_Q^\top - W_K\, \delta W_K^\top$. In the two eigenbases it is had by dividing entry by entry:
#    $v_i^\top T\, u_j = v_i^\top Z\, u_j \,/\, (k_i + p_j)$.
# 2. The squared length of the step's projection on $\mathcal{T}$, relative to that of the step, is
#
#    $$
#    \rho = \frac{\lVert T W_Q \rVert^2 + \lVert T^\top W_K \rVert^2}{\lVert \delta W_Q \rVert^2 + \lVert \delta W_K \rVert^2}
#         = \frac{1}{\lVert \delta W_Q \rVert^2 + \lVert \delta W_K \rVert^2} \sum_{i,j} \frac{(v_i^\top Z\, u_j)^2}{k_i + p_j} .
#    $$
#
#    It lies in $[0, 1]$: it is 0 exactly for steps orthogonal to $\mathcal{T}$, gradients among them, and 1 exactly for steps in $\mathcal{T}$.
# 3. If the step is isotropic in $\mathbb{R}^{2DE}$, then $\rho$ has the distribution $\mathrm{Beta}\big(\tfrac{D^2}{2}, \tfrac{2DE - D^2}{2}\big)$, of mean
#    $D/(2E)$. This is $1/(2H)$ when $D = E/H$.
# ```
#
# This share is {term}`rho`. Three measures are of the weights alone: {term}`beta`, $\beta = \lVert \Delta \rVert_F$, and {term}`tau`,
# $\tau = \operatorname{tr} \Delta = \lVert W_Q \rVert^2 - \lVert W_K \rVert^2$, both conserved by the flow, and {term}`mu`, positive exactly when $W_Q$ or
# $W_K$ has rank $D$. Where $\mu = 0$ the space $\mathcal{T}$ is smaller ({prf:ref}`prop-deficient-rank`), and $\rho$ is still the share in it.
#
# ```{prf:proposition} Biases belong to the conserved matrix (beyond the paper)
# :label: prop-conserved-bias
#
# Let the queries and keys of a plain softmax head have biases, and let $a = \partial \ell / \partial b_Q$.
#
# 1. Gradient flow conserves $W_Q W_Q^\top + b_Q b_Q^\top - W_K W_K^\top - b_K b_K^\top$, and $b_K$ itself.
# 2. A step of gradient descent changes $W_Q W_Q^\top - W_K W_K^\top$ by $\eta\, (a b_Q^\top + b_Q a^\top) + \eta^2 (A A^\top - B B^\top)$: at first order in
#    $\eta$, as soon as $b_Q \ne 0$ and $a \ne 0$.
# 3. The $\rho$ of that step is zero when computed from $(W_Q\; b_Q)$ and $(W_K\; b_K)$, $D \times (E + 1)$ matrices. Computed from $W_Q$ and $W_K$ alone it is,
#    with the notation of {prf:ref}`prop-rho` and where $\mu > 0$,
#
#    $$
#    \rho = \frac{1}{\lVert A \rVert^2 + \lVert B \rVert^2} \sum_{i,j} \frac{(v_i^\top a)^2 (u_j^\top b_Q)^2}{k_i + p_j} ,
#    $$
#
#    which is positive as soon as $b_Q \neq 0$ and $a \ne 0$, and does not depend on the rate.
# ```
#
# ## Proof
#
# ```{prf:proof}
# (of {prf:ref}`lem-conserved`) *1.* For any $T \in \mathbb{R}^{D \times D}$ the loss is constant along the curve $(e^{tT} W_Q, e^{-tT^\top} W_K)$. Its
# derivative at $t = 0$ is $0 = \langle A, T W_Q \rangle - \langle B, T^\top W_K \rangle = \langle T,\, A W_Q^\top - W_K B^\top \rangle$. This holds for all
# $T$. *2.* By *1* and its transpose, $\dot P_Q = -(A W_Q^\top + W_Q A^\top) = -(W_K B^\top + B W_K^\top) = \dot P_K$.
# ```
#
# The paper uses the chain rule, $A W_Q^\top = W_K \Gamma W_Q^\top = W_K B^\top$; the symmetry is enough ({cite:t}`kunin2021`, {cite:t}`zhao2025`). The other
# proofs are folded.
#
# ```{admonition} Proof that nothing else is conserved
# :class: dropdown
#
# (Of {prf:ref}`prop-conserved-count`.) *1.* Put $U = (W_Q\; W_K)$ and $I_\pm = \mathrm{diag}(I, -I) \in \mathbb{R}^{2E \times 2E}$; then
# $\Delta = U I_\pm U^\top$. The gradient of a loss is $U F(\Gamma)$, where $F(\Gamma) = \begin{pmatrix} 0 & \Gamma^\top \\ \Gamma & 0 \end{pmatrix}$, and
# linear losses provide every $\Gamma \in \mathbb{R}^{E \times E}$. So the derivative of a conserved $f$ along each linear vector field $U F$ is zero, and then
# also along their brackets $U(F_1 F_2 - F_2 F_1)$. With $F_1 = F(e_i e_j^\top)$ and $F_2 = F(e_i e_k^\top)$, $j \neq k$, the bracket is
# $U \mathrm{diag}(e_j e_k^\top - e_k e_j^\top,\, 0)$, and transposing both gives the same in the other block. Sums of all these make every $U \Xi I_\pm$ with a
# skew $\Xi \in \mathbb{R}^{2E \times 2E}$. Let $Y$ be the gradient of $f$, times $I_\pm$ from the right. Then
# $0 = \langle Y I_\pm, U \Xi I_\pm \rangle = \langle U^\top Y, \Xi \rangle$ for all skew $\Xi$, so $U^\top Y = Y^\top U$. Multiplying by $(U^+)^\top$ from the
# left, with a right inverse $U^+$ of $U$, gives $Y = T U$ for a $D \times D$ matrix $T$. Now $U^\top T U$ is symmetric, hence so is $T$, and the gradient of
# $f$ is $T U I_\pm = (T W_Q, -T W_K)$. The map $T \mapsto T U I_\pm$ is injective, and $\frac12 \langle T, \Delta \rangle$ has this gradient.
#
# *2.* The derivative of $W_Q W_Q^\top$ along $T W_Q$ is $T P_Q + P_Q T^\top$, that of $W_K W_K^\top$ along $-T^\top W_K$ is $-T^\top P_K - P_K T$. The map
# $T \mapsto T P_Q + P_K T$ is a bijection: in the eigenbases of {prf:ref}`prop-rho` it multiplies entry $i, j$ by $k_i + p_j > 0$. So the $T$ in question are
# as many as skew matrices, and different $T$ make different directions.
#
# *3.* Read the two rows of a plane as one complex row, $q_i$ or $k_i \in \mathbb{C}^{1 \times E}$. Then $M_\delta$ is the real part of
# $\sum_i e^{\mathrm{i} \delta \varphi_i} k_i^* q_i$. As the frequencies $\varphi_i$ are distinct and in $(0, \pi)$, the $M_\delta$ determine the products
# $k_i^* q_i$, so losses of these products are what we have, and the gradient with respect to $u = (q_i\; k_i)$ is $u\,F$ with a Hermitian $F$ as before,
# $\Gamma \in \mathbb{C}^{E \times E}$. Their brackets make all $u\, \Xi I_\pm$ with skew-Hermitian $\Xi$, $\operatorname{tr} \Xi I_\pm = 0$ (take
# $F(e_i e_j^\top)$ and $F(\mathrm{i} e_i e_j^\top)$ for the diagonals). So $u^* Y - Y^* u = c\, I_\pm$ with a number $c$. The left side has rank at most 2, and
# $I_\pm$ has rank $2E \geq 4$; so $c = 0$. As $u \neq 0$, it follows as before that $Y = t\, u$ with a real $t$: one conserved number for each plane. (Where
# $u = 0$ every gradient vanishes in that plane, and nothing is said of $Y$.)
# ```
#
# ```{admonition} Proofs on steps, their share, and biases
# :class: dropdown
#
# (Of {prf:ref}`lem-one-step` and {prf:ref}`lem-decay`.) With $s = 1 - \eta\lambda$,
# $(s W_Q - \eta A)(s W_Q - \eta A)^\top = s^2 P_Q - \eta s (A W_Q^\top + W_Q A^\top) + \eta^2 A A^\top$, and likewise for the keys. In the difference the
# middle terms cancel, by part 1 of {prf:ref}`lem-conserved`.
#
# (Of {prf:ref}`prop-heavy-ball`.) For any $V$ let $F(V, W) = V_Q W_Q^\top + W_Q V_Q^\top - V_K W_K^\top - W_K V_K^\top$. Then
# $\Delta_{n+1} - \Delta_n = Y_n + \Phi_{n+1}$ with $Y_n = F(V_{n+1}, W_n)$. The gradient's part of $V_{n+1}$ contributes nothing, by {prf:ref}`lem-conserved`,
# so $Y_n = \gamma\, F(V_n, W_n) = \gamma\, F(V_n, W_{n-1} + V_n) = \gamma\, (Y_{n-1} + 2\Phi_n)$.
#
# (Of {prf:ref}`prop-respects`.) The loss sees the same $M$ and so the same $\Gamma$. The new gradient is $S^{-\top} W_K \Gamma = S^{-\top} A$, and $S B$ for
# the keys. *1.* If $S^{-\top} = S$, gradients change as the weights do, and so do the sums that momentum and decay make of them. If $S$ is respected, the first
# step shows $S^{-\top} A = S A$; as $W_K$ can have rank $D$, $A = W_K \Gamma$ can be any matrix, and $S^\top S = I$. *2.* What Adam does to an entry is one odd
# function of the history of that entry, so it respects signed permutations. Conversely its first step is $-\eta \operatorname{sign}(A)$, so
# $S \operatorname{sign}(A) = \operatorname{sign}(S^{-\top} A)$ for almost all $A$: $S$ turns every vector of signs into a vector of signs. Row $i$ of $S$ then
# has $\sum_j \pm S_{ij} = \pm 1$ for every choice of signs. One choice makes the sum $\sum_j |S_{ij}|$, which is therefore 1; turning one sign changes it by
# $2 |S_{ij}|$ and must lead to $1$ or $-1$, so each $|S_{ij}|$ is 0 or 1, and exactly one of them is 1. As $S$ is nonsingular, these stand in different
# columns.
#
# (Of {prf:ref}`prop-rho`.) *1.* Setting the derivative in $T$ to zero gives $(T W_Q - \delta W_Q) W_Q^\top + W_K (T^\top W_K + \delta W_K)^\top = 0$, the
# Sylvester equation. Multiplied by $v_i^\top$ and $u_j$ it reads $(k_i + p_j)\, v_i^\top T u_j = v_i^\top Z u_j$. *2.* What is left of the step is orthogonal
# to $\mathcal{T}$, so $\rho$ is the squared cosine of an angle. The numerator is $\langle T, T P_Q \rangle + \langle T, P_K T \rangle = \langle T, Z \rangle$,
# which is the sum. A step is orthogonal to $\mathcal{T}$ when $\langle T', Z \rangle = 0$ for all $T'$, that is, $Z = 0$; for a gradient this is
# {prf:ref}`lem-conserved`. *3.* $\mathcal{T}$ has dimension $D^2$, since $\mu > 0$ makes $T \mapsto (T W_Q, -T^\top W_K)$ injective. For a standard normal
# step, $\rho = x / (x + y)$ with independent $x \sim \chi^2_{D^2}$ and $y \sim \chi^2_{2DE - D^2}$.
#
# (Of {prf:ref}`prop-conserved-bias`.) By {prf:ref}`prop-joint-action` the loss has the symmetry of {prf:ref}`lem-conserved` in the matrices $(W_Q\; b_Q)$ and
# $(W_K\; b_K)$, which shows the first half of *1*; the second is {prf:ref}`lem-key-bias`. Part 1 of {prf:ref}`lem-conserved` now reads
# $A W_Q^\top + a b_Q^\top = W_K B^\top$, since the gradient of $b_K$ is zero. The terms of first order in the step's change of $\Delta$ are therefore
# $-\eta (A W_Q^\top - W_K B^\top)$ plus its transpose, $\eta (a b_Q^\top + b_Q a^\top)$: this is *2*. In *3*,
# $Z = -\eta (A W_Q^\top - W_K B^\top) = \eta\, a b_Q^\top$; put it into {prf:ref}`prop-rho`.
# ```

# %% [markdown]
# ## The same symbols in code
#
# Two heads, $E = 6$, $D = C = 3$, causal softmax: the layer learns to imitate another one on eight fixed sequences. Automatic differentiation, which knows
# nothing of $\Gamma$, finds $A W_Q^\top = W_K B^\top$.

# %%
from functools import partial

import numpy as np
import torch
from scipy.integrate import solve_ivp
from scipy.linalg import solve_sylvester
from scipy.stats import beta as beta_distribution, kstest

from attnid import Attention, figures, forward, head_metrics, measure
from attnid.claims import check
from attnid.layer.attention import random_inputs, rotate
from attnid.layer.metrics import with_bias
from attnid.tensors import normal, rank, relative_change as apart


# %%
def imitation(layer):
    """Weights to start from, and the loss: the mean squared distance to a teacher."""
    x = random_inputs(layer, 8, 6, seed=2)  # 8 sequences of 6 tokens
    taught = forward(layer, layer.random_parameters(seed=1), x)
    loss = lambda p, t=0, a=layer: (forward(a, p, x) - taught).square().sum(-1).mean()
    return layer.random_parameters(seed=0), loss


imbalance = lambda p: p["W_Q"] @ p["W_Q"].mT - p["W_K"] @ p["W_K"].mT  # (..., H, D, D)
layer = Attention(6, 2)
H, D, E = layer.H, layer.D, layer.E
start, loss = imitation(layer)
gradient = torch.func.grad(loss)
g = gradient(start)
A, B = g["W_Q"], g["W_K"]
check("lemma-5.1", balance=apart(A @ start["W_Q"].mT, start["W_K"] @ B.mT))


# %%
def flow(loss, start, tolerance, time=2.0, longest=np.inf):
    """201 states along the flow, gradients cut to a length: name -> (201, ...)."""
    sizes, gradient = [t.numel() for t in start.values()], torch.func.grad(loss)
    pack = lambda p: torch.cat([t.flatten() for t in p.values()])
    unpack = lambda v: {
        name: part.view(*v.shape[:-1], *start[name].shape)
        for name, part in zip(start, v.split(sizes, -1))
    }

    def downhill(t, v):
        g = pack(gradient(unpack(torch.from_numpy(v)), t)).numpy()
        return -g * min(1, longest / np.linalg.norm(g))

    precise, at = {"rtol": tolerance, "atol": tolerance}, np.linspace(0, time, 201)
    run = solve_ivp(downhill, at[[0, -1]], pack(start).numpy(), "DOP853", at, **precise)
    return unpack(torch.from_numpy(run.y.T.copy()))


def trail(path, of=imbalance):
    """How far a function of the weights is from its start, relative to its norm."""
    values = of(path)
    return (values - values[0]).flatten(1).norm(dim=1) / values[0].norm()


strayed = lambda *path_and_function: float(trail(*path_and_function).max())


# %% [markdown]
# ## The check
#
# **What the flow keeps.** The loss falls, the weights move, and the imbalance does not. With a solver a million times as sloppy it moves by as much as that
# solver errs: the agreement is not built in.
#
# ```{prf:remark} The layout matters
# :label: rem-11-layout
#
# Weights are $D \times E$ here, as in the paper and in `torch.nn.Linear`. The $E \times E$ matrix $W_Q^\top W_Q - W_K^\top W_K$ looks as good as $\Delta$ and
# is *not* conserved; it is the right one for weights stored as $E \times D$.
# ```

# %%
path = flow(loss, start, 1e-12)
wrong = lambda p: p["W_Q"].mT @ p["W_Q"] - p["W_K"].mT @ p["W_K"]  # (..., H, E, E)
fallen = loss({matrix: along[-1] for matrix, along in path.items()}) / loss(start)
assert fallen < 0.1 and strayed(path, wrong) > 0.1
print(f"the loss falls to {fallen:.2f} of itself,")
print(f"W_Q moves by {apart(path['W_Q'][-1], start['W_Q']):.2f} of its norm,")
print(f"the E x E matrix by {strayed(path, wrong):.2f}")
check("lemma-5.1", flow=strayed(path), sloppy=strayed(flow(loss, start, 1e-6)))

# %% [markdown]
# **Clipping.** A head with $D = E = 2$ follows the gradient of $\frac12 \lVert M - M_\star \rVert^2$, cut to length 1 where it is longer. With a fixed
# $M_\star$ it ends where the flow without a cut ends, with one that moves before it settles it does not; the imbalance stays in all four runs.

# %%
goal = torch.tensor([[2.0, -1.0], [1.0, 0.5]]).double()
pair = {"W_Q": torch.tensor([[1.0, 0.2], [0.0, 0.8]]).double()}
pair["W_K"] = torch.tensor([[1.1, 0.0], [-0.3, 1.2]]).double()
kept, far = [], []
for swing in (0, 8):
    pull = lambda t: (1 + swing * np.exp(-t) * np.cos(3 * t)) * goal
    off = lambda p, t: (p["W_K"].mT @ p["W_Q"] - pull(t)).square().sum() / 2
    cut, whole = (flow(off, pair, 1e-12, 40, longest) for longest in (1, np.inf))
    kept += [strayed(cut), strayed(whole)]
    far.append(apart(cut["W_Q"][-1], whole["W_Q"][-1]))
check("lemma-5.1", clipped=kept, clipped_fixed=far[0], clipped_moving=far[1])

# %% [markdown]
# **How many numbers.** {prf:ref}`prop-conserved-count` counts what gradients and their brackets fail to span: a rank. Each entry of $M$, or of all $M_\delta$,
# is a quadratic form in the $2DE$ weights $w$. With its Hessian $Y$, by automatic differentiation, its gradient is $Y w$, and the bracket of two gradients is
# $(Y_1 Y_2 - Y_2 Y_1) w$. A second count is that of the symmetric $T$ that commute with the rotations: for these $\langle T, \Delta \rangle$ is conserved.
# There are four plain heads, $D = 1, \dots, 4$, and three rotary ones with $D = 4$: two planes that turn differently, two that turn alike ($n$ such planes
# conserve the $n^2$ real numbers of a Hermitian matrix), and one beside two still coordinates. The last check is the exception of part 3: a plane with
# $(q_i, k_i) = 0$ keeps all its 16 numbers, beside the one of the other plane.


# %%
def rotations(angles, D):
    """R_0, ..., R_{D-1}, (D, D, D), as the package turns its planes."""
    vectors = torch.eye(D, dtype=torch.float64)[:, None].expand(D, D, D)
    return rotate(Attention(D, 1, rotary=angles), vectors).permute(1, 2, 0)


def room_left(R, E=4, zero=()):
    """2 D E minus the rank of gradients and brackets, at random weights (rows zero)."""
    D = R.shape[-1]
    w = normal(2, D, E, seed=3)
    w[:, list(zero)] = 0
    products = lambda w: (w.view(2, D, E)[1].mT @ R @ w.view(2, D, E)[0]).flatten()
    hessians = torch.func.hessian(products)(torch.zeros_like(w.flatten()))
    once = hessians @ w.flatten()  # (entries, 2DE)
    twice = torch.einsum("aij,bj->abi", hessians, once)
    spanned = torch.cat((once, (twice - twice.transpose(0, 1)).flatten(0, 1)))
    return 2 * D * E - rank(spanned, 1e-9)


def symmetric_commutant(R):
    D = R.shape[-1]
    T = torch.eye(D * D, dtype=torch.float64).view(-1, 1, D, D)
    T = T + T.mT  # spans the symmetric matrices
    return D * (D + 1) // 2 - rank((T @ R - R @ T).flatten(1), 1e-9)


# %%
turning = [rotations((), d) for d in (1, 2, 3, 4)]
turning += [rotations(angles, 4) for angles in ((1.0, 0.3), (0.5, 0.5), (1.0,))]
formula = [d * (d + 1) // 2 for d in (1, 2, 3, 4)] + [1 + 1, 2**2, 1 + 3]
brackets, symmetric = (list(map(f, turning)) for f in (room_left, symmetric_commutant))
check("beta-tau-mu", formula=formula, brackets=brackets, symmetric=symmetric)
check("beta-tau-mu", plane_at_zero=room_left(turning[4], zero=(0, 1)))

# %% [markdown]
# ### The drift of steps
#
# One large step, $\eta = 0.3$, without decay and with $\lambda = 0.5$, against the formulas. For $\Gamma$ we differentiate a head of width $E$ with queries
# $M X$ and keys $X$, which has the same scores (the code divides scores by the root of the width, hence $\sqrt{E/D}$).

# %%
eta, decay = 0.3, 0.5
wide = Attention(E, H, head_dim=E, value_dim=D)
same = {"W_K": torch.eye(E, dtype=torch.float64).expand(H, E, E)}
of_M = lambda M: loss(start | {"W_Q": (E / D) ** 0.5 * M} | same, a=wide)
Gamma = torch.func.grad(of_M)(start["W_K"].mT @ start["W_Q"])  # (H, E, E)
by_Gamma = {"W_Q": start["W_K"] @ Gamma, "W_K": start["W_Q"] @ Gamma.mT}
drift = eta**2 * imbalance(by_Gamma)
moved = lambda s: imbalance({w: s * start[w] - eta * g[w] for w in ("W_Q", "W_K")})
contracted = (1 - eta * decay) ** 2 * imbalance(start)
check("lemma-5.1", one_step=apart(moved(1) - imbalance(start), drift))
check("lemma-5.1", decay=apart(moved(1 - eta * decay), contracted + drift))

# %% [markdown]
# Now whole runs of $n$ steps for the time $t = 2$: gradient descent at the rate $t/n$, the heavy ball with $\gamma = 0.9$ at a tenth of it, to move as fast,
# and Adam at $t/(4n)$. The drift over $t/n$ must tend to $\Lambda$ (by the trapezoidal rule on the solver's path) for gradient descent and to $19\, \Lambda$
# for the heavy ball, with an error that halves with the rate; Richardson's extrapolation must come within 5%. Adam's drift at an eighth of the rate is still
# more than half of what it was. Last, the recursion of {prf:ref}`prop-heavy-ball` rebuilds a run's imbalance from its velocities.


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
after = lambda make, n: imbalance(train(make(n), start, loss, n)[-1])
drifts = {
    way: {n: after(make, n) - imbalance(start) for n in sizes}
    for way, make in optimisers.items()
}
integrand = imbalance(torch.func.vmap(gradient)(path))  # A A^T - B B^T: (201, H, D, D)
integral = torch.trapezoid(integrand, dx=0.01, dim=0)


def error_of_limit(drift, factor):
    per_rate = {n: drift[n] * n / 2 for n in sizes}
    coarse, fine = (apart(per_rate[n], factor * integral) for n in sizes[-2:])
    assert 0.4 * coarse < fine < 0.6 * coarse
    return apart(2 * per_rate[sizes[-1]] - per_rate[sizes[-2]], factor * integral)


check("optimisers", descent=error_of_limit(drifts["gradient descent"], 1))
check("optimisers", heavy_ball=error_of_limit(drifts["heavy ball"], 19))
check("optimisers", adam=drifts["Adam"][320].norm() / drifts["Adam"][40].norm())

# %%
ball = train(optimisers["heavy ball"](40), start, loss, 40)
rebuilt, Y, Phi, misfits = imbalance(start), 0, 0, []
for old, new in zip(ball, ball[1:]):
    Y = 0.9 * (Y + 2 * Phi)
    Phi = imbalance({part: new[part] - old[part] for part in new})
    rebuilt = rebuilt + Y + Phi
    misfits.append(apart(rebuilt, imbalance(new)))
check("optimisers", recursion=max(misfits))

# %% [markdown]
# For $D = E = 1$ all of this can be drawn ({numref}`fig-imbalance-paths`). The loss $\ell = \frac{1}{2} (W_K W_Q - 1)^2$ is constant on hyperbolas, the
# imbalance $W_Q^2 - W_K^2$ on those that cross them at right angles. All four runs end in the valley, at one function and four pairs of weights; only the
# flow's is known beforehand, by the imbalance of the start.

# %%
toy = {"W_Q": torch.tensor([[-0.9]]).double(), "W_K": torch.tensor([[1.9]]).double()}
toy_loss = lambda p, t=0: (p["W_K"] * p["W_Q"] - 1).square().sum() / 2
flat = lambda p: torch.cat((p["W_Q"], p["W_K"]), -1).squeeze(-2)  # (n, 2)
plane = {"flow": flat(flow(toy_loss, toy, 1e-12, time=4.0))}
for way, make in {
    "gradient descent": partial(SGD, lr=0.1),
    "heavy ball": partial(SGD, lr=0.01, momentum=0.9),
    "Adam": partial(Adam, lr=0.1),
}.items():
    plane[way] = torch.stack([flat(at) for at in train(make, toy, toy_loss, 150)])
ends = torch.stack([passed[-1] for passed in plane.values()])
assert (ends.prod(1) - 1).abs().max() < 0.1 and torch.pdist(ends).min() > 0.01
size = float(imbalance(start).norm())
sizes_of = lambda by: {n: float(drift.norm()) / size for n, drift in by.items()}
relative = {way: sizes_of(by) for way, by in drifts.items()}
descent = 2 * float(integral.norm()) / size
predicted = {"gradient descent": descent, "heavy ball": 19 * descent}

# %% mystnb={"image": {"alt": "Left: the plane of two weights with two families of hyperbolas. From one point the flow follows a grey hyperbola to the valley; gradient descent leaves it a little, the heavy ball and Adam far. Right: drift against number of steps, log-log. Gradient descent and heavy ball fall with slope minus one, the second nineteen times higher; Adam stays at the top."}, "figure": {"caption": "Left: a head of two numbers. Colour and white lines: the loss, lowest on the orange valley. Grey: the lines that keep $W_Q^2 - W_K^2$. Only the flow stays on its own. Right: the drift of the small layer after the same time, relative to the norm of its imbalance, against the number of steps. Lines are the predictions $\\eta \\Lambda$ and $19\\, \\eta \\Lambda$, points the runs.", "name": "fig-imbalance-paths"}}
figures.imbalance_paths(plane, relative, predicted)

# %% [markdown]
# ### The projection
#
# {prf:ref}`prop-rho` in three ways: a projection on an orthonormal basis of $\mathcal{T}$, from its $D^2$ directions as columns; the Sylvester equation; and
# `attnid.head_metrics`. LAPACK's least squares on the columns gives $T$ itself.


# %%
def null_columns(W_Q, W_K, sign=-1):
    T = torch.eye(len(W_Q) ** 2, dtype=torch.float64).view(-1, *2 * [len(W_Q)])
    on_keys = sign * (T.mT @ W_K).flatten(1)
    return torch.cat(((T @ W_Q).flatten(1), on_keys), 1).mT  # (2 D E, D D)


as_vector = lambda dQ, dK: torch.cat((dQ.flatten(), dK.flatten()))


def rho_by_basis(W_Q, W_K, dQ, dK, sign=-1):
    columns = null_columns(W_Q, W_K, sign)
    basis = torch.linalg.svd(columns, full_matrices=False).U[:, : rank(columns)]
    return (basis.mT @ as_vector(dQ, dK)).norm() ** 2 / as_vector(dQ, dK).norm() ** 2


rho_of = lambda q, k, dQ, dK: head_metrics(q, k, q + dQ, k + dK)["rho"]


def sylvester(W_Q, W_K, dQ, dK, printed=False):
    (p, u), (k, v) = torch.linalg.eigh(W_Q @ W_Q.mT), torch.linalg.eigh(W_K @ W_K.mT)
    Z = v.mT @ (dQ @ W_Q.mT - W_K @ dK.mT) @ u
    return v @ (Z / (p[:, None] + k if printed else k[:, None] + p)) @ u.mT


# %%
W_Q, W_K, T = start["W_Q"][0], start["W_K"][0], normal(D, D, seed=4)
directions = {
    "random": tuple(normal(2, D, E, seed=5)),
    "sign of the gradient": (A[0].sign(), B[0].sign()),
    "gradient": (A[0], B[0]),
    "null": (T @ W_Q, -T.mT @ W_K),
}
rhos, off = {}, {"basis": [], "eigenbases": [], "solver": []}
for name, step in directions.items():
    T, columns = sylvester(W_Q, W_K, *step), null_columns(W_Q, W_K)
    solved = torch.linalg.lstsq(columns, as_vector(*step)[:, None]).solution
    rhos[name] = rho_of(W_Q, W_K, *step)
    share = as_vector(T @ W_Q, -T.mT @ W_K).norm() / as_vector(*step).norm()
    off["basis"].append(abs(rho_by_basis(W_Q, W_K, *step) - rhos[name]))
    off["eigenbases"].append(abs(share**2 - rhos[name]))
    off["solver"].append((solved.view(D, D) - T).norm() / (1 + T.norm()))
    print(f"{name:>20}: rho = {rhos[name]:.2f}")
basis, eigenbases, solver = map(max, off.values())
check("least-squares", basis=basis, eigenbases=eigenbases, solver=solver)

# %% [markdown]
# ```{prf:remark} Departure from the paper
# :label: rem-11-sign
#
# The paper prints the second term of the objective with a minus sign, $\lVert \delta W_K - T^\top W_K \rVert^2$ in our letters. Its Sylvester equation belongs
# to a plus sign; the space of all $(T W_Q, T^\top W_K)$ is not null, and a gradient has a large component in it. Further on, entry $d, d'$ of the solution in
# the eigenbases is divided by $\lambda_{Q,d} + \lambda_{K,d'}$; rows belong to keys and columns to queries, so it should be $\lambda_{K,d} + \lambda_{Q,d'}$.
# ```
#
# The cell puts both to the test: the share of a gradient in the printed space, and by how much the equation fails with the printed indices.
#
# **Null steps have $\rho = 1$**, also those that `measure` finds in the outputs of the whole layer; we take their part in the first head's queries and keys.
# **Isotropic steps** have the mean $D/(2E) = 1/4$: exactly over the $2DE$ unit steps, each a change of one weight, and to within 0.01 over 4,000 random ones,
# which the test of Kolmogorov and Smirnov compares with the beta distribution at the level 0.001.

# %%
P_Q, P_K = W_Q @ W_Q.mT, W_K @ W_K.mT
dQ, dK = directions["random"]
T = sylvester(W_Q, W_K, dQ, dK, printed=True)
interchanged = apart(T @ P_Q + P_K @ T, dQ @ W_Q.mT - W_K @ dK.mT)
check("least-squares", gradient=rhos["gradient"], printed_indices=interchanged)
check("least-squares", printed_sign=rho_by_basis(W_Q, W_K, A[0], B[0], sign=+1))
null = measure(layer, parameters=start).null_space
null_Q, null_K = null["W_Q"][:, 0], null["W_K"][:, 0]  # (36, D, E)
of_steps = lambda dQ, dK: rho_of(W_Q.expand_as(dQ), W_K.expand_as(dK), dQ, dK)
assert rank(torch.cat((null_Q, null_K), 2).flatten(1), 1e-8) == D**2
check("rho", null_steps=(of_steps(null_Q, null_K) - 1).abs().max())
units = torch.eye(2 * D * E, dtype=torch.float64).view(-1, 2, D, E).transpose(0, 1)
sample = of_steps(*normal(2, 4000, D, E, seed=6))
law = beta_distribution(D**2 / 2, (2 * D * E - D**2) / 2)
check("rho", unit_steps=abs(of_steps(*units).mean() - D / (2 * E)))
check("rho", random_steps=abs(sample.mean() - D / (2 * E)), largest=sample.max())
check("rho", distribution=kstest(sample.numpy(), law.cdf).pvalue)
paper = beta_distribution(64**2 / 2, (2 * 64 * 384 - 64**2) / 2)
print(f"{(sample > D / (2 * E)).double().mean():.0%} of the random steps lie above 1/4")
print(f"D = 64, E = 384: mean {paper.mean():.4f}, standard deviation {paper.std():.4f}")

# %% [markdown]
# ```{prf:remark} Departure from the paper
# :label: rem-11-mean
#
# The paper draws $1/(2H)$ in its figures as a boundary. It is what steps without any preference have on average, and nothing keeps a step from exceeding it:
# nearly half of all random steps do here, and a null step has $\rho = 1$. For the paper's $D = 64$, $E = 384$ the beta distribution is narrow, so that there a
# value far from $1/(2H)$, on either side, does mean a preference.
# ```
#
# ### A step that beta and tau do not see
#
# First the numbers themselves, against formulas in the singular values of $W_Q$ and $W_K$, without a Gram matrix.

# %%
sigma, kappa = torch.linalg.svdvals(W_Q), torch.linalg.svdvals(W_K)
overlap = (W_Q.mT @ W_K).square().sum()
moved = {"W_Q": W_Q + dQ, "W_K": W_K + dK}
explicit = {
    "beta": (sigma.pow(4).sum() + kappa.pow(4).sum() - 2 * overlap).sqrt(),
    "tau": sigma.square().sum() - kappa.square().sum(),
    "mu": sigma.min() ** 2 + kappa.min() ** 2,
    "drift": (imbalance(moved) - (P_Q - P_K)).norm(),
}
ours = head_metrics(W_Q, W_K, *moved.values())
error = {metric: abs(ours[metric] / explicit[metric] - 1) for metric in explicit}
check("beta-tau-mu", **error)

# %% [markdown]
# Solve $T P_Q + P_K T = Z$ with a skew $Z$ and step along $(T W_Q, -T^\top W_K)$. All of the step is null, $\rho = 1$, and nothing of it shows in $\Delta$ to
# first order: half the step has a quarter of the drift. With a symmetric $Z$ it has half. How many of the nine null directions $\Delta$ sees is a rank: of
# those written down, and of those that `measure` found.

# %%
falls = {}
for name, sign in (("skew", -1), ("symmetric", +1)):
    Z = normal(D, D, seed=7)
    Z = Z + sign * Z.mT
    T = torch.from_numpy(solve_sylvester(P_K.numpy(), P_Q.numpy(), Z.numpy()))
    steps = [(h * T @ W_Q, -h * T.mT @ W_K) for h in (1e-4, 5e-5)]
    long, short = (head_metrics(W_Q, W_K, W_Q + q, W_K + k) for q, k in steps)
    assert abs(long["rho"] - 1) < 1e-10
    falls[name] = long["drift"] / short["drift"]
check("beta-tau-mu", skew_step=falls["skew"], symmetric_step=falls["symmetric"])
half = lambda dQ, dK: dQ @ W_Q.mT - dK @ W_K.mT
rate = lambda dQ, dK: half(dQ, dK) + half(dQ, dK).mT  # of the imbalance
written = null_columns(W_Q, W_K).mT.view(-1, 2, D, E).unbind(1)
seen = rank(rate(*written).flatten(1)), rank(rate(null_Q, null_K).flatten(1), 1e-8)
check("beta-tau-mu", explicit=seen[0], outputs=seen[1])

# %% [markdown]
# ```{prf:remark} Departure from the paper
# :label: rem-11-unseen
#
# The paper proposes the change of $\beta$ as a measure of how much a run uses its unidentified parameters. Even $\Delta$ misses three of nine directions here,
# and $D(D-1)/2 = 2{,}016$ of 4,096 for $D = 64$; and it can change while $\beta$ and $\tau$ stay. In the limit of small steps $\beta$ is constant for a run
# that keeps off the null directions, but a constant $\beta$ does not show that it does.
# ```
#
# ## Break it
#
# **Biases**, which the paper's runs have. With all four, none zero at the start, the flow keeps the joint matrix and the key bias, and the weights alone lose
# their law. **Rotary positions** break it too; the trace of each plane's $2 \times 2$ block stays, two numbers of ten.

# %%
biased = Attention(6, 2, bias="qkvo")
start_b, loss_b = imitation(biased)
path_b = flow(loss_b, start_b, 1e-12)
with_biases = lambda p: {w: with_bias(p[w], p["b" + w[1:]]) for w in ("W_Q", "W_K")}
joint = lambda p: imbalance(with_biases(p))
key_bias = strayed(path_b, lambda p: p["b_K"])
check("conserved-biases", joint=strayed(path_b, joint), key_bias=key_bias)
check("conserved-biases", weights_alone=strayed(path_b))
print(f"weights alone: the imbalance moves by {strayed(path_b):.2f} of its norm")
rotary = Attention(8, 2, rotary=(1.0, 0.3))  # D = 4
start_r, loss_r = imitation(rotary)
path_r = flow(loss_r, start_r, 1e-12)
diagonal = lambda p: imbalance(p).diagonal(dim1=-2, dim2=-1)
planes = lambda p: diagonal(p).unflatten(-1, (2, 2)).sum(-1)  # (..., H, planes)
check("beta-tau-mu", rotary_all=strayed(path_r), rotary_planes=strayed(path_r, planes))

# %% [markdown]
# One step at the rate 0.1: the change of $\Delta$, and the formula for $\rho$ against `head_metrics` and the explicit projection.

# %%
g_b = torch.func.grad(loss_b)(start_b)
A_b, B_b, a = g_b["W_Q"], g_b["W_K"], g_b["b_Q"]
W_Qb, W_Kb = start_b["W_Q"], start_b["W_K"]
first = a[:, :, None] * start_b["b_Q"][:, None, :]
p_b, u_b = torch.linalg.eigh(W_Qb @ W_Qb.mT)
k_b, v_b = torch.linalg.eigh(W_Kb @ W_Kb.mT)
inside = (v_b.mT @ first @ u_b).square() / (k_b[..., None] + p_b[:, None])
formula = inside.sum((1, 2)) / (A_b.square() + B_b.square()).sum((1, 2))
by_basis = [rho_by_basis(W_Qb[h], W_Kb[h], A_b[h], B_b[h]) for h in range(H)]
stepped = {one: start_b[one] - 0.1 * g_b[one] for one in start_b}
step_b = [*with_biases(start_b).values(), *with_biases(stepped).values()]
change = 0.1 * (first + first.mT) + 0.1**2 * imbalance(g_b)
gone = imbalance(stepped) - imbalance(start_b)
found = rho_of(W_Qb, W_Kb, -0.1 * A_b, -0.1 * B_b)
check("conserved-biases", rho_formula=apart(found, formula), rho_alone=formula)
check("conserved-biases", rho_projection=apart(torch.stack(by_basis), formula))
check("conserved-biases", one_step=apart(gone, change))
check("conserved-biases", rho_joint=head_metrics(*step_b)["rho"])

# %%
times = torch.linspace(0, 2, 201, dtype=torch.float64)
curves = {
    "$E \\times E$, weights alone": trail(path_b, wrong),
    "$D \\times D$, weights alone": trail(path_b),
    "$D \\times D$, with biases": trail(path_b, joint),
}
marks = {"gradient": 0.0, "its signs": float(rhos["sign of the gradient"])}
marks["null step"] = float(rhos["null"])

# %% mystnb={"image": {"alt": "Left: a histogram of rho for random steps, centred near a quarter, under the curve of a beta distribution, a dashed line at D over 2E; marks show a gradient at zero, its signs in between, and a null step at one. Right: the change of three matrices along a flow, on a logarithmic scale; two rise above one percent, the imbalance with biases stays below 1e-12."}, "figure": {"caption": "Left: $\\rho$ of 4,000 isotropic steps, the beta distribution that it follows, its mean $D/(2E)$ (dashed), and three steps that are not isotropic. Right: the relative change of three matrices along the flow of a layer with biases. Only the imbalance of weights and biases together is conserved.", "name": "fig-rho-and-biases"}}
figures.rho_and_biases(sample, law, D / (2 * E), marks, times, curves)

# %% [markdown]
# **Other optimisers**, by {prf:ref}`prop-respects`: after 20 steps from moved weights an optimiser is either at the moved end, to $10^{-7}$ (Adam has
# $\varepsilon = 10^{-8}$ here), or somewhere else.

# %%
changes = {
    "signed permutation": torch.tensor([[0, 0, 1], [1, 0, 0], [0, -1, 0]]).double(),
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
# A head trained by gradient flow carries $D(D+1)/2$ numbers from its random start to the end of training, and no data can change them. Gradient descent changes
# them slowly, momentum many times faster, both in proportion to the rate; decay forgets them at a known pace; Adam changes them at any rate tried.
#
# Three cautions. A step with $\rho = 0$ is orthogonal to the null space *where it is taken*; many such steps can still lead along an {term}`orbit`, in the
# $D(D-1)/2$ dimensions that {prf:ref}`prop-conserved-count` leaves. A step with $\rho = 1$ need not show in $\beta$ or $\tau$. And with biases all three must
# be computed from weights and biases together; {doc}`13_nanogpt` does both.
#
# ## Exercises
#
# **1. Low rank.** Take $W_Q$, then both weights, of rank $D - 1$. What becomes of $\mathcal{T}$ and of $\mu$? **2. Silent steps.** Has every step that keeps
# $M$ to first order $\rho = 1$?
#
# ```{admonition} Answers
# :class: dropdown
#
# *1.* With one deficient weight $\mu$ stays positive and $\mathcal{T}$ keeps its $D^2 = 9$ dimensions. With both $\mu$ is zero and $\mathcal{T}$ has eight;
# $\rho$ is still the share in it. *2.* At full rank, yes ({prf:ref}`cor-dimension`). If both have rank $D - 1$, with $D \le E$, such steps have
# $2DE - E^2 + (E - D + 1)^2$ dimensions (chapter 1, exercise 2), here 16, of which $\mathcal{T}$ holds $D^2 - 1 = 8$. So over an orthonormal basis of them
# $\rho$ is $1/2$ in the mean, and it takes all values from 0 to 1.
# ```


# %% tags=["hide-cell"]
def deficient(W):
    U, s, Vh = torch.linalg.svd(W, full_matrices=False)
    return U[:, :-1] * s[:-1] @ Vh[:-1]


low = deficient(W_Q), deficient(W_K)
heads = [(W_Q, W_K), (low[0], W_K), low]
shares = [(rho_by_basis(*head, dQ, dK), rho_of(*head, dQ, dK)) for head in heads]
positive = [int(head_metrics(*head, *head)["mu"] > 1e-3) for head in heads]
families = [rank(null_columns(*head)) for head in heads]
check("beta-tau-mu", families=families, positive_mu=positive)
check("rho", deficient_rank=[abs(basis - ours) for basis, ours in shares])
product = lambda both: both[1].mT @ both[0]
J = torch.func.jacrev(product)(torch.stack(low)).reshape(E * E, -1)
kept = torch.linalg.svd(J).Vh[rank(J) :].view(-1, 2, D, E)  # an orthonormal basis
mean = rho_of(*(W.expand(len(kept), D, E) for W in low), *kept.unbind(1)).mean()
check("rho", silent_steps=len(kept), silent_mean=mean)

# %% [markdown]
# **Next:** {doc}`12_rebalancing` chooses the imbalance instead: it sets it to zero without a change to the function.
