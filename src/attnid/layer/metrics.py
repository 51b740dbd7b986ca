"""What gradient flow conserves, and how far a step of training departs from it.

Per head, with P_Q = W_Q W_Q^T and P_K = W_K W_K^T: where the loss sees M = W_K^T W_Q alone,
gradient flow keeps P_Q - P_K (Lemma 5.1).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from .parameters import check_heads
from .scaling import exponent

# a sum of eigenvalues below this, relative to the head's largest, belongs to a T that moves
# neither factor
IDLE = 1e-12


def head_metrics(
    W_Q: Float[Tensor, "*heads D E"],
    W_K: Float[Tensor, "*heads D E"],
    W_Q_next: Float[Tensor, "*heads D E"],
    W_K_next: Float[Tensor, "*heads D E"],
) -> dict[str, Float[Tensor, "*heads"]]:
    """How one step from (W_Q, W_K) to (W_Q_next, W_K_next) lies to the null space of the score
    product, head by head.

    All weights have shape (..., D, E); every value returned has shape (...), float64:
      rho    share of the squared step in the null space {(T W_Q, -T^T W_K)}, in [0, 1]; 0 for a
             step of zero
      beta   ||P_Q - P_K||_F, tau = trace(P_Q - P_K) and mu = lambda_min(P_Q) + lambda_min(P_K),
             before the step
      drift  ||(P_Q - P_K)_next - (P_Q - P_K)||_F
    Where mu = 0 some T move neither factor; rho then takes the T of least norm, which leaves its
    value as it is. Weights with their biases as one more column, (..., D, E + 1), give the same of
    the joint action (T W, T b), which is what a head with biases has. Computed in float64, on the
    CPU where the device has none; rho at any scale, and the others as far as float64 reaches:
    beyond they are infinite or zero.

    Raises ValueError naming the argument whose shape differs, that is no tensor of real numbers, or
    that is not finite. Source: section 5.1 of the paper, whose objective has a sign slip; the
    Sylvester equation is solved by two eigendecompositions, as there.

    >>> from attnid.tensors import normal
    >>> W_Q, W_K, T = normal(2, 8), normal(2, 8, seed=1), normal(2, 2, seed=2)
    >>> found = head_metrics(W_Q, W_K, W_Q + T @ W_Q, W_K - T.mT @ W_K)  # a null direction
    >>> round(float(found["rho"]), 6)
    1.0
    """
    check_heads(W_Q=W_Q, W_K=W_K, W_Q_next=W_Q_next, W_K_next=W_K_next)
    device = "cpu" if W_Q.device.type == "mps" else W_Q.device
    given = (W_Q, W_K, W_Q_next, W_K_next)
    weights = [W.detach().to(device, torch.float64).contiguous() for W in given]
    power = exponent(*weights)  # no number is squared that is not near one
    W_Q, W_K, W_Q_next, W_K_next = (W * 2.0**-power for W in weights)
    found = metrics_of_products(step_products(W_Q, W_Q_next), step_products(W_K, W_K_next))
    size = 2.0 ** power[..., 0, 0]
    return {n: value if n == "rho" else value * size * size for n, value in found.items()}


def step_products(
    W: Float[Tensor, "*heads D E"], W_next: Float[Tensor, "*heads D E"]
) -> Float[Tensor, "3 *heads D D"]:
    """W W^T, dW W^T and dW dW^T of a step dW = W_next - W, as (3, ..., D, D). A bias adds its own,
    those of one column (..., D, 1).
    """
    step = W_next - W
    return torch.stack((W @ W.mT, step @ W.mT, step @ step.mT))


def metrics_of_products(
    queries: Float[Tensor, "3 *heads D D"], keys: Float[Tensor, "3 *heads D D"]
) -> dict[str, Float[Tensor, "*heads"]]:
    """What head_metrics returns, from the step_products of both factors."""
    (P_Q, cross_Q, square_Q), (P_K, cross_K, square_K) = queries, keys
    # (2, ..., D), ascending, and (2, ..., D, D)
    (p, k), (U_Q, U_K) = torch.linalg.eigh(torch.stack((P_Q, P_K)))
    # T P_Q + P_K T = dQ W_Q^T - W_K dK^T, in the eigenbases of P_K and P_Q
    right = U_K.mT @ (cross_Q - cross_K.mT) @ U_Q
    # of P_Q - P_K, without a difference of large numbers
    change = cross_Q + cross_Q.mT + square_Q - cross_K - cross_K.mT - square_K
    return {
        "rho": _null_share(right, k[..., :, None] + p[..., None, :], trace(square_Q + square_K)),
        "beta": torch.linalg.matrix_norm(P_Q - P_K),
        "tau": trace(P_Q - P_K),
        "mu": p[..., 0].clamp_min(0) + k[..., 0].clamp_min(0),
        "drift": torch.linalg.matrix_norm(change),
    }


def trace(A: Float[Tensor, "*heads D D"]) -> Float[Tensor, "*heads"]:
    """The sum of the diagonal of A (..., D, D)."""
    return A.diagonal(dim1=-2, dim2=-1).sum(-1)


def with_bias(
    W: Float[Tensor, "*heads D E"], b: Float[Tensor, "*heads D"]
) -> Float[Tensor, "*heads D _"]:
    """A weight (..., D, E) with its bias (..., D) as one more column: (..., D, E + 1).

    >>> with_bias(torch.ones(2, 3, 8), torch.zeros(2, 3)).shape
    torch.Size([2, 3, 9])
    """
    return torch.cat((W, b.unsqueeze(-1)), -1)


def _null_share(right, sums, step):
    # entry by entry T = right / sums, and ||T W_Q||^2 + ||T^T W_K||^2 = <T, T P_Q + P_K T>, the sum
    # of right^2 / sums
    idle = sums <= IDLE * sums.amax((-2, -1), keepdim=True)
    inside = (right.square() / sums).masked_fill(idle, 0).sum((-2, -1))
    return (inside / step).masked_fill(step == 0, 0).clamp_max(1)
