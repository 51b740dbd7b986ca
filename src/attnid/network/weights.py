"""A network's parameters by what they do, and what its attention meets of its inputs.

Weights of maps that read a norm act on x = (n, 1): n is the normalised input before gain and bias,
and x has the 1 only where the maps have biases. Directions are found in these coordinates and
written back through the norm's gain and bias.
"""

import torch
from jaxtyping import Float
from torch import Tensor

TINY = 1e-9  # relative; singular values below are zero


def split_space(rows: Float[Tensor, "m d"]) -> tuple[Float[Tensor, "d r"], Float[Tensor, "d rest"]]:
    """Orthonormal columns that span the rows (m, d), and columns that span the rest of R^d."""
    rows = torch.linalg.qr(rows, mode="r").R if len(rows) > rows.shape[1] else rows
    _, values, Vh = torch.linalg.svd(rows)
    rank = int((values > TINY * values[0]).sum())
    return Vh[:rank].T, Vh[rank:].T


def centre(W: Float[Tensor, "m d"]) -> Float[Tensor, "m d"]:
    """Rows minus their mean: what a softmax over the rows sees of them."""
    return W - W.mean(0)


class Weights:
    """A network's parameters, by what they do: readers of norms, and writers into the residual
    stream.
    """

    def __init__(self, config, parameters):
        c, self.c, self.p = config, config, parameters
        self.blocks = [f"transformer.h.{layer}." for layer in range(c.n_layer)]
        self.centred = c.norm == "layernorm"
        self.ones = torch.ones(c.n_embd, dtype=torch.float64)
        # orthonormal columns (E, n) of what a norm sees of the stream
        self.seen = (
            split_space(self.ones[None])[1]
            if self.centred
            else torch.eye(c.n_embd, dtype=torch.float64)
        )
        self.readers = [
            (b + norm, b + maps)
            for b in self.blocks
            for norm, maps in (("ln_1", "attn.c_attn"), ("ln_2", "mlp.c_fc"))
        ]
        self.writers = [b + maps for b in self.blocks for maps in ("attn.c_proj", "mlp.c_proj")]
        self.embeddings = [
            n for n in ("transformer.wte.weight", "transformer.wpe.weight") if n in parameters
        ]

    def norm(self, name):
        """Gain and bias of a norm; a bias of zeros where it has none."""
        gain = self.p[name + ".weight"]
        return gain, self.p.get(name + ".bias", torch.zeros_like(gain))

    def read(self, norm, maps):
        """The matrix (rows, E), or (rows, E + 1) with biases, by which maps read (n, 1)."""
        gain, shift = self.norm(norm)
        W = self.p[maps + ".weight"]
        return (
            torch.cat((W * gain, (W @ shift + self.p[maps + ".bias"])[:, None]), 1)
            if self.c.bias
            else W * gain
        )

    def write(self, norm, maps, change):
        """The direction that changes that matrix by `change` (k, rows, E) or (k, rows, E + 1); with
        biases, E columns leave the last one as it is.
        """
        gain, shift = self.norm(norm)
        dW = change[..., : self.c.n_embd] / gain
        direction = {maps + ".weight": dW}
        if self.c.bias:
            direction[maps + ".bias"] = change[..., self.c.n_embd :].sum(-1) - dW @ shift
        return direction

    def head(self, dW):
        """The direction of an untied head, dW (k, V, E) up to what brings the logits of the last
        norm's bias back.

        What is put along 1 / gain meets centred inputs with nothing, and the norm's bias with any
        constant.
        """
        gain, shift = self.norm("transformer.ln_f")
        if shift.any():
            dW = dW - (dW @ shift)[..., None] / gain / (shift / gain).sum()
        return {"lm_head.weight": dW}

    def features(self):
        """What the first layer's attention reads: (n, 1) of every token at every position, as rows,
        positions (T or 1) first.
        """
        return self.normalised(self.stream())

    def stream(self):
        wte, wpe = self.p["transformer.wte.weight"], self.p.get("transformer.wpe.weight")
        return wte[None] if wpe is None else wpe[:, None] + wte  # (T, V, E)

    def normalised(self, x):
        x = x - x.mean(-1, keepdim=True) if self.centred else x
        n = x / (x.square().mean(-1, keepdim=True) + self.c.eps).sqrt()
        return torch.cat((n, torch.ones_like(n[..., :1])), -1) if self.c.bias else n


class Met:
    """What a layer's attention meets of R^E or R^(E + 1): orthonormal columns for its keys and
    values, and for its queries; the rest, but for what centring takes out; and the row that is 1 on
    everything met, where there is one.
    """

    def __init__(self, w, layer):
        bias = w.c.bias
        everything = (
            torch.block_diag(w.seen, torch.ones(1, 1, dtype=torch.float64)) if bias else w.seen
        )
        x = w.features() @ everything if layer == 0 else None
        keys = queries = torch.eye(everything.shape[1], dtype=torch.float64)
        keys_beyond = queries_beyond = keys[:, :0]
        if layer == 0:
            keys, keys_beyond = split_space(x.flatten(0, 1))
            queries, queries_beyond = (
                split_space(x[1:].flatten(0, 1)) if len(x) > 1 else (keys, keys_beyond)
            )
        self.keys, self.queries, self.keys_beyond, self.queries_beyond = (
            everything @ part for part in (keys, queries, keys_beyond, queries_beyond)
        )
        self.one = None
        if bias:
            self.one = self.keys @ self.keys[-1]  # (0, 1), as far as it is met
        elif layer == 0 and w.c.positions != "learned" and keys.shape[1] == w.c.vocab_size:
            self.one = everything @ torch.linalg.pinv(x[0]).sum(1)
        # columns that span what varies
        self.varying = (
            self.keys
            if self.one is None
            else self.keys @ split_space((self.keys.T @ self.one)[None])[1]
        )
