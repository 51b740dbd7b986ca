"""What gradient flow conserves, and how far a step of training departs from it.

Per head, with P = W_Q W_Q^T and K = W_K W_K^T: the loss sees W_K^T W_Q alone, so gradient flow keeps P - K (Lemma 5.1).
"""

import torch

from .checks import require, require_finite

IDLE = 1e-12  # a sum of eigenvalues below this, relative to the largest, is a direction that moves neither factor


def head_metrics(W_Q, W_K, W_Q_next, W_K_next):
    """How one step from (W_Q, W_K) to (W_Q_next, W_K_next) lies to the null space of the score product, head by head.

    All weights have shape (..., D, E); every value returned has shape (...), float64:
      rho    share of the squared step in the null space {(S W_Q, -S^T W_K)}, in [0, 1]; 0 for a step of zero
      beta   ||P - K||_F, tau = trace(P - K) and mu = lambda_min(P) + lambda_min(K), before the step
      drift  ||(P - K)_next - (P - K)||_F
    Where mu = 0 some S move nothing; rho then takes the S of least norm, which leaves its value as it is.
    Weights with their biases as one more column, (..., D, E + 1), give the same of the joint action (S W, S b), which is
    what a head with biases has. Computed in float64, on the CPU where the device has none.

    Raises ValueError naming the argument whose shape differs, or that is no real tensor, or not finite.
    Source: section 5.1 of the paper, whose objective has a sign slip; the Sylvester equation is solved by two
    eigendecompositions, as there.
    """
    W_Q, W_K, W_Q_next, W_K_next = _checked(W_Q=W_Q, W_K=W_K, W_Q_next=W_Q_next, W_K_next=W_K_next)
    dQ, dK = W_Q_next - W_Q, W_K_next - W_K
    P, K = W_Q @ W_Q.mT, W_K @ W_K.mT
    (p, k), (U_Q, U_K) = torch.linalg.eigh(torch.stack((P, K)))  # (2, ..., D), ascending, and (2, ..., D, D)
    moved = 2 * (dQ @ W_Q.mT - dK @ W_K.mT) + dQ @ dQ.mT - dK @ dK.mT  # its symmetric part is the change of P - K
    return {
        "rho": _null_share(U_K.mT @ (dQ @ W_Q.mT - W_K @ dK.mT) @ U_Q, k[..., :, None] + p[..., None, :], dQ, dK),
        "beta": torch.linalg.matrix_norm(P - K),
        "tau": (P - K).diagonal(dim1=-2, dim2=-1).sum(-1),
        "mu": p[..., 0].clamp_min(0) + k[..., 0].clamp_min(0),
        "drift": torch.linalg.matrix_norm((moved + moved.mT) / 2),
    }


def _null_share(R, sums, dQ, dK):
    # S P + K S = R is elementwise in the eigenbases, and ||S W_Q||^2 + ||S^T W_K||^2 = <S, S P + K S> = sum of R^2 / sums
    idle = sums <= IDLE * sums.amax((-2, -1), keepdim=True)
    inside = torch.where(idle, 0, R.square() / torch.where(idle, 1, sums)).sum((-2, -1))
    step = dQ.square().sum((-2, -1)) + dK.square().sum((-2, -1))
    return torch.where(step > 0, inside / torch.where(step > 0, step, 1), 0).clamp_max(1)


def with_bias(W, b):
    """A weight (..., D, E) with its bias (..., D) as one more column: (..., D, E + 1)."""
    return torch.cat((W, b.unsqueeze(-1)), -1)


def _checked(**weights):
    shape = None
    for name, W in weights.items():
        require(isinstance(W, torch.Tensor) and not W.is_complex(), name, W, "must be a real tensor")
        require(W.dim() >= 2 and min(W.shape[-2:]) >= 1, name, tuple(W.shape), "shape must be (..., D, E)")
        shape = shape or tuple(W.shape)
        require(tuple(W.shape) == shape, name, tuple(W.shape), f"shape must be that of {next(iter(weights))}, {shape}")
        require_finite(name, W)
    return [W.detach().to("cpu" if W.device.type == "mps" else W.device).double() for W in weights.values()]
