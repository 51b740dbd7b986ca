"""Symmetries of the residual stream and of the embeddings: norms, all-ones, rotations, scale,
shifts.

One method a term; each returns the number of its coefficients, and a map from coefficients (k,
number) to parts of k directions, which add up.
"""

import scipy.linalg
import torch
from jaxtyping import Float
from torch import Tensor

from .weights import centre, split_space


def half(d):
    """How many numbers a symmetric d x d matrix has."""
    return d * (d + 1) // 2


def symmetric(a: Float[Tensor, "k n"], d) -> Float[Tensor, "k d d"]:
    """M + M^T (k, d, d) for the upper triangular M with entries a (k, d (d + 1) / 2)."""
    M = a.new_zeros(len(a), d, d)
    i, j = torch.triu_indices(d, d)
    M[:, i, j] = a
    return M + M.mT


def symmetric_outer(x: Float[Tensor, "m d"], y: Float[Tensor, "m d"]) -> Float[Tensor, "m n"]:
    """Rows such that row i times a is x_i^T symmetric(a) y_i, for x, y (m, d)."""
    i, j = torch.triu_indices(x.shape[1], x.shape[1])
    return x[:, i] * y[:, j] + x[:, j] * y[:, i]


def solved(conditions: Float[Tensor, "m N"]):
    """How many of N numbers are free under m independent linear conditions (m, N), and the map from
    those to all N.
    """
    m, N = conditions.shape
    if N <= m:
        return 0, None
    order = torch.from_numpy(
        scipy.linalg.lu(conditions.T.numpy(), p_indices=True)[0]
    ).argsort()  # the first m are pivots
    solution = torch.linalg.solve(conditions[:, order[:m]], conditions[:, order[m:]])
    return N - m, lambda free: torch.cat((-free @ solution.T, free), 1)[:, order.argsort()]


class StreamFamilies:
    """The terms of a network's count that have to do with its residual stream; c, p, w:
    description, parameters, Weights.
    """

    # ---- norms

    def norm_gains(self):
        """A gain up, the columns that read it down; a norm's bias goes with its gain."""
        w, E = self.w, self.c.n_embd
        readers = w.readers + ([] if self.c.tied else [("transformer.ln_f", "lm_head")])

        def directions(t):
            for (norm, maps), t in zip(readers, t.unflatten(1, (-1, E)).unbind(1)):
                yield {
                    norm + part: t * self.p[norm + part]
                    for part in (".weight", ".bias")
                    if norm + part in self.p
                }
                yield {maps + ".weight": -self.p[maps + ".weight"] * t[:, None]}

        return E * len(readers), directions

    def norm_biases(self):
        """A norm's bias against the biases of what reads it; the last one's against the head, or
        where no logit sees it.
        """
        w, E = self.w, self.c.n_embd
        last = (
            split_space(centre(self.p["transformer.wte.weight"]))[1].T
            if self.c.tied
            else torch.eye(E, dtype=torch.float64)
        )

        def directions(u):
            for (norm, maps), t in zip(
                w.readers, u[:, len(last) :].unflatten(1, (-1, E)).unbind(1)
            ):
                yield {norm + ".bias": t, maps + ".bias": -t @ self.p[maps + ".weight"].T}
            u = u[:, : len(last)] @ last
            yield {"transformer.ln_f.bias": u}
            if not self.c.tied:
                gain, shift = w.norm("transformer.ln_f")
                yield {
                    "lm_head.weight": -(u @ self.p["lm_head.weight"].T)[..., None]
                    / gain
                    / (shift / gain).sum()
                }

        return E * len(w.readers) + len(last), directions

    def centred_inputs(self):
        """Rows that read a centred input, moved along all-ones."""
        w, rows = self.w, [len(self.p[maps + ".weight"]) for _, maps in self.w.readers]
        head = 0 if self.c.tied or self.c.bias else self.c.vocab_size - 1

        def directions(a):
            for (norm, maps), part in zip(w.readers, a[:, head:].split(rows, 1)):
                yield w.write(norm, maps, part[..., None] * w.ones)
            if head:
                every = torch.cat((a[:, :head], torch.zeros_like(a[:, :1])), 1)
                yield {"lm_head.weight": every[..., None] / self.p["transformer.ln_f.weight"]}

        return head + sum(rows), directions

    def writing_along_ones(self):
        """What writes into the stream, moved along all-ones, which every norm takes out again."""
        columns = {maps + ".weight": self.p[maps + ".weight"].shape[1] for maps in self.w.writers}
        columns |= {maps + ".bias": 1 for maps in self.w.writers if self.c.bias}
        columns |= {
            name: len(self.p[name])
            for name in self.w.embeddings
            if "wpe" in name or not self.c.tied
        }
        common = (
            self.c.tied and self.c.positions != "learned"
        )  # all tokens alike: their logits then shift alike

        def directions(a):
            for (name, size), part in zip(
                columns.items(), a.split([*columns.values(), *[1] * common], 1)
            ):
                ones = self.w.ones.expand(len(a), size, -1)
                moved = part[..., None] * ones
                yield {
                    name: moved
                    if name in self.w.embeddings
                    else moved.mT
                    if name.endswith("weight")
                    else moved[:, 0]
                }
            if common:
                yield {
                    "transformer.wte.weight": a[:, -1:, None].expand(
                        -1, *self.p["transformer.wte.weight"].shape
                    )
                }

        return sum(columns.values()) + common, directions

    # ---- the residual stream

    def residual_rotations(self):
        """x -> x + Ax for skew A: embeddings and writers move along, readers and the head take it
        back.
        """
        if self.c.tied:
            return self._tied_rotations()
        n = self.w.seen.shape[1]
        i, j = torch.triu_indices(n, n, 1)

        def directions(a):
            A = a.new_zeros(len(a), n, n)
            A[:, i, j], A[:, j, i] = a, -a
            A = self.w.seen @ A @ self.w.seen.T
            yield from self._rotate(A)
            gain = self.p["transformer.ln_f.weight"]
            yield self.w.head(-self.p["lm_head.weight"] * gain @ A / gain)

        return n * (n - 1) // 2, directions

    def _rotate(self, A):
        """The change of everything but the head when the stream is rotated, A (k, E, E)."""
        for name in self.w.embeddings:
            yield {name: -self.p[name] @ A}
        for maps in self.w.writers:
            yield {maps + ".weight": A @ self.p[maps + ".weight"]}
            if self.c.bias:
                yield {maps + ".bias": self.p[maps + ".bias"] @ A.mT}
        for norm, maps in self.w.readers:
            yield self.w.write(norm, maps, -self.w.read(norm, maps)[:, : self.c.n_embd] @ A)

    def _tied_rotations(self):
        """Rotations whose trace in the logits, W S n with the symmetric S = GA - AG + dG, the
        vocabulary W does not tell.

        S is any form on what W sees as constant; where inputs are centred, also on the plane of
        all-ones and the gain, and then A must keep all-ones still. A is S over differences of
        gains, dG the diagonal of S.
        """
        W, (gain, shift) = self.p["transformer.wte.weight"], self.w.norm("transformer.ln_f")
        blind = split_space(centre(W))[1]
        plane = torch.stack((self.w.ones, gain), 1) if self.w.centred else blind[:, :0]
        over = 1 / (
            gain[:, None] - gain + torch.diag(torch.full_like(gain, torch.inf))
        )  # A = over * S
        # row i of A 1 in the coefficients of both forms; the rows sum to zero, so that one may go
        still = torch.cat([symmetric_outer(basis, over @ basis) for basis in (blind, plane)], 1)[1:]
        size, fill = solved(still) if self.w.centred else (still.shape[1], lambda a: a)

        def directions(a):
            M, C = fill(a).split([half(basis.shape[1]) for basis in (blind, plane)], 1)
            lift = plane @ symmetric(C, plane.shape[1])  # (k, E, 2)
            S = blind @ symmetric(M, blind.shape[1]) @ blind.T + lift @ plane.T
            A = over * S
            yield from self._rotate(A)
            yield {"transformer.ln_f.weight": S.diagonal(dim1=1, dim2=2)}
            if self.w.centred:
                yield {"transformer.wte.weight": -(W @ lift[..., 1:]).expand(-1, -1, self.c.n_embd)}
                if self.c.bias:
                    yield {"transformer.ln_f.bias": shift @ A.mT + lift[..., 1] * shift.sum()}

        return size, directions

    def residual_scale(self):
        """Everything that writes into the stream, scaled; tied logits are scaled back by the last
        norm.
        """
        up = self.w.embeddings + [
            maps + part
            for maps in self.w.writers
            for part in (".weight", ".bias")
            if maps + part in self.p
        ]
        down = [
            "transformer.ln_f" + part
            for part in (".weight", ".bias")
            if self.c.tied and "transformer.ln_f" + part in self.p
        ]

        def directions(t):
            yield {name: torch.tensordot(t, self.p[name][None], 1) for name in up}
            yield {name: -torch.tensordot(t, self.p[name][None], 1) for name in down}

        return 1, directions

    # ---- embeddings

    def embedding_against_positions(self):
        """All tokens up, all positions down."""
        shifts = (
            self.w.seen
            if self.w.centred and not self.c.tied
            else torch.eye(self.c.n_embd, dtype=torch.float64)
        )

        def directions(a):
            u = (a @ shifts.T)[:, None]
            for sign, name in zip((1, -1), self.w.embeddings):
                yield {name: (sign * u).expand(-1, len(self.p[name]), -1)}

        return shifts.shape[1], directions

    def embedding_against_values(self):
        """All inputs moved alike and the first layer's output moved back, where its readers can
        make up for the move.
        """
        w, learned = self.w, self.c.positions == "learned"
        centred = w.stream().flatten(0, 1) @ w.seen
        shifts = w.seen @ (
            split_space(centred)[1] if learned else torch.eye(w.seen.shape[1], dtype=torch.float64)
        )
        back = torch.linalg.pinv(w.features().flatten(0, 1)).T  # (V T, E or E + 1)

        def directions(a):
            u = a @ shifts.T
            yield {w.embeddings[-1]: u[:, None].expand(-1, len(self.p[w.embeddings[-1]]), -1)}
            change = lambda u: torch.func.jvp(
                w.normalised, (w.stream(),), (u.expand_as(w.stream()),)
            )[1].flatten(0, 1)
            undo = [-self._reading_all(0) @ (change(each).T @ back) for each in u]
            yield w.write(w.blocks[0] + "ln_1", w.blocks[0] + "attn.c_attn", torch.stack(undo))
            yield from self._constant_output(0, -u)

        return shifts.shape[1], directions

    def _reading_all(self, layer):
        return self.w.read(self.w.blocks[layer] + "ln_1", self.w.blocks[layer] + "attn.c_attn")

    def softmax_shift(self):
        """One row added to all of the head's."""
        return self.c.n_embd, lambda a: [
            {"lm_head.weight": a[:, None].expand(-1, self.c.vocab_size, -1)}
        ]
