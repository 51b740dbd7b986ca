"""Generators for a whole network: for each term of its count a linear family of null directions.

A family maps coefficients (k, dimension) to k directions, name -> (k, *shape), so that a network of any size can be moved
along random members of it. Weights of maps that read a norm act on x = (n, 1): n is the normalised input before gain and
bias, and x has the 1 only where the maps have biases. Directions are found in these coordinates and written back through
the norm's gain and bias.
"""

import scipy.linalg
import torch

from .gauge import product_kernel
from .generators import generators
from .gpt import GPTConfig
from .network import check_parameters, count_network

TINY = 1e-9  # relative; singular values below are zero


def split_space(rows):
    """Orthonormal columns that span the rows (m, d), and columns that span the rest of R^d."""
    rows = torch.linalg.qr(rows, mode="r").R if len(rows) > rows.shape[1] else rows
    _, values, Vh = torch.linalg.svd(rows)
    rank = int((values > TINY * values[0]).sum())
    return Vh[:rank].T, Vh[rank:].T


def centre(W):
    """Rows minus their mean: what a softmax over the rows sees of them."""
    return W - W.mean(0)


def solved(conditions):
    """How many of N numbers are free under m independent linear conditions (m, N), and the map from those to all N."""
    m, N = conditions.shape
    if N <= m:
        return 0, None
    order = torch.from_numpy(scipy.linalg.lu(conditions.T.numpy(), p_indices=True)[0]).argsort()  # the first m are pivots
    solution = torch.linalg.solve(conditions[:, order[:m]], conditions[:, order[m:]])
    return N - m, lambda free: torch.cat((-free @ solution.T, free), 1)[:, order.argsort()]


class Weights:
    """A network's parameters, by what they do: readers of norms, and writers into the residual stream."""

    def __init__(self, config, parameters):
        c, self.c, self.p = config, config, parameters
        self.blocks = [f"transformer.h.{layer}." for layer in range(c.n_layer)]
        self.centred = c.norm == "layernorm"
        self.ones = torch.ones(c.n_embd, dtype=torch.float64)
        # orthonormal columns (E, n) of what a norm sees of the stream
        self.seen = split_space(self.ones[None])[1] if self.centred else torch.eye(c.n_embd, dtype=torch.float64)
        self.readers = [(b + norm, b + maps) for b in self.blocks for norm, maps in (("ln_1", "attn.c_attn"), ("ln_2", "mlp.c_fc"))]
        self.writers = [b + maps for b in self.blocks for maps in ("attn.c_proj", "mlp.c_proj")]
        self.embeddings = [n for n in ("transformer.wte.weight", "transformer.wpe.weight") if n in parameters]

    def norm(self, name):
        """Gain and bias of a norm; a bias of zeros where it has none."""
        gain = self.p[name + ".weight"]
        return gain, self.p.get(name + ".bias", torch.zeros_like(gain))

    def read(self, norm, maps):
        """The matrix (rows, E), or (rows, E + 1) with biases, by which maps read (n, 1)."""
        gain, shift = self.norm(norm)
        W = self.p[maps + ".weight"]
        return torch.cat((W * gain, (W @ shift + self.p[maps + ".bias"])[:, None]), 1) if self.c.bias else W * gain

    def write(self, norm, maps, change):
        """The direction whose change of that matrix is `change` (k, rows, E) or (k, rows, E + 1)."""
        gain, shift = self.norm(norm)
        dW = change[..., :self.c.n_embd] / gain
        return {maps + ".weight": dW} | ({maps + ".bias": change[..., -1] - dW @ shift} if self.c.bias else {})

    def head(self, dW):
        """The direction of an untied head, dW (k, V, E) up to what brings the logits of the last norm's bias back.

        What is put along 1 / gain meets centred inputs with nothing, and the norm's bias with any constant.
        """
        gain, shift = self.norm("transformer.ln_f")
        if shift.any():
            dW = dW - (dW @ shift)[..., None] / gain / (shift / gain).sum()
        return {"lm_head.weight": dW}

    def features(self):
        """What the first layer's attention reads: (n, 1) of every token at every position, as rows, positions (T or 1) first."""
        return self.normalised(self.stream())

    def stream(self):
        wte, wpe = self.p["transformer.wte.weight"], self.p.get("transformer.wpe.weight")
        return wte[None] if wpe is None else wpe[:, None] + wte  # (T, V, E)

    def normalised(self, x):
        x = x - x.mean(-1, keepdim=True) if self.centred else x
        n = x / (x.square().mean(-1, keepdim=True) + self.c.eps).sqrt()
        return torch.cat((n, torch.ones_like(n[..., :1])), -1) if self.c.bias else n


class Met:
    """What a layer's attention meets of R^E or R^(E + 1): orthonormal columns for its keys and values, and for its queries; the
    rest, but for what centring takes out; and the row that is 1 on everything met, where there is one."""

    def __init__(self, w, layer):
        E, bias = w.c.n_embd, w.c.bias
        everything = torch.block_diag(w.seen, torch.ones(1, 1, dtype=torch.float64)) if bias else w.seen
        x = w.features() @ everything if layer == 0 else None
        keys = queries = torch.eye(everything.shape[1], dtype=torch.float64)
        keys_beyond = queries_beyond = keys[:, :0]
        if layer == 0:
            keys, keys_beyond = split_space(x.flatten(0, 1))
            queries, queries_beyond = split_space(x[1:].flatten(0, 1)) if len(x) > 1 else (keys, keys_beyond)
        self.keys, self.queries, self.keys_beyond, self.queries_beyond = (
            everything @ part for part in (keys, queries, keys_beyond, queries_beyond))
        self.one = None
        if bias:
            self.one = self.keys @ self.keys[-1]  # (0, 1), as far as it is met
        elif layer == 0 and w.c.positions != "learned" and keys.shape[1] == w.c.vocab_size:
            self.one = everything @ torch.linalg.pinv(x[0]).sum(1)
        # columns that span what varies
        self.varying = self.keys if self.one is None else self.keys @ split_space((self.keys.T @ self.one)[None])[1]


class Families:
    """One method a term; each returns the number of its coefficients, and the map from coefficients to directions."""

    def __init__(self, config, parameters):
        self.c, self.p, self.w = config, parameters, Weights(config, parameters)
        self.met = [Met(self.w, layer) for layer in range(config.n_layer)]

    # ---- norms

    def norm_gains(self):
        """A gain up, the columns that read it down; a norm's bias goes with its gain."""
        w, E = self.w, self.c.n_embd
        readers = w.readers + ([] if self.c.tied else [("transformer.ln_f", "lm_head")])

        def directions(t):
            for (norm, maps), t in zip(readers, t.unflatten(1, (-1, E)).unbind(1)):
                yield {norm + part: t * self.p[norm + part] for part in (".weight", ".bias") if norm + part in self.p}
                yield {maps + ".weight": -self.p[maps + ".weight"] * t[:, None]}
        return E * len(readers), directions

    def norm_biases(self):
        """A norm's bias against the biases of what reads it; the last one's against the head, or where no logit sees it."""
        w, E = self.w, self.c.n_embd
        last = split_space(centre(self.p["transformer.wte.weight"]))[1].T if self.c.tied else torch.eye(E, dtype=torch.float64)

        def directions(u):
            for (norm, maps), t in zip(w.readers, u[:, len(last):].unflatten(1, (-1, E)).unbind(1)):
                yield {norm + ".bias": t, maps + ".bias": -t @ self.p[maps + ".weight"].T}
            u = u[:, :len(last)] @ last
            yield {"transformer.ln_f.bias": u}
            if not self.c.tied:
                gain, shift = w.norm("transformer.ln_f")
                yield {"lm_head.weight": -(u @ self.p["lm_head.weight"].T)[..., None] / gain / (shift / gain).sum()}
        return E * len(w.readers) + len(last), directions

    def centred_inputs(self):
        """Rows that read a centred input, moved along all-ones."""
        w, rows = self.w, [len(self.p[maps + ".weight"]) for _, maps in self.w.readers]
        head = 0 if self.c.tied or self.c.bias else self.c.vocab_size - 1

        def directions(a):
            for (norm, maps), part in zip(w.readers, a[:, head:].split(rows, 1)):
                ones = part[..., None] * w.ones
                yield w.write(norm, maps, torch.cat((ones, torch.zeros_like(ones[..., :1])), -1) if self.c.bias else ones)
            if head:
                every = torch.cat((a[:, :head], torch.zeros_like(a[:, :1])), 1)
                yield {"lm_head.weight": every[..., None] / self.p["transformer.ln_f.weight"]}
        return head + sum(rows), directions

    def writing_along_ones(self):
        """What writes into the stream, moved along all-ones, which every norm takes out again."""
        columns = {maps + ".weight": self.p[maps + ".weight"].shape[1] for maps in self.w.writers}
        columns |= {maps + ".bias": 1 for maps in self.w.writers if self.c.bias}
        columns |= {name: len(self.p[name]) for name in self.w.embeddings if "wpe" in name or not self.c.tied}
        common = self.c.tied and self.c.positions != "learned"  # all tokens alike: their logits then shift alike

        def directions(a):
            for (name, size), part in zip(columns.items(), a.split([*columns.values(), *[1] * common], 1)):
                ones = self.w.ones.expand(len(a), size, -1)
                moved = part[..., None] * ones
                yield {name: moved if name in self.w.embeddings else moved.mT if name.endswith("weight") else moved[:, 0]}
            if common:
                yield {"transformer.wte.weight": a[:, -1:, None].expand(-1, *self.p["transformer.wte.weight"].shape)}
        return sum(columns.values()) + common, directions

    # ---- the residual stream

    def residual_rotations(self):
        """x -> x + Ax for skew A: embeddings and writers move along, readers and the head take it back."""
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
            change = -self.w.read(norm, maps)[:, :self.c.n_embd] @ A
            yield self.w.write(norm, maps, torch.cat((change, torch.zeros_like(change[..., :1])), -1) if self.c.bias else change)

    def _tied_rotations(self):
        """Rotations whose trace in the logits, W S n with the symmetric S = GA - AG + dG, the vocabulary W does not tell.

        S is any form on what W sees as constant; where inputs are centred, also on the plane of all-ones and the gain, and
        then A must keep all-ones still. A is S over differences of gains, dG the diagonal of S.
        """
        W, (gain, shift) = self.p["transformer.wte.weight"], self.w.norm("transformer.ln_f")
        blind = split_space(centre(W))[1]
        plane = torch.stack((self.w.ones, gain), 1) if self.w.centred else blind[:, :0]
        i, j = torch.triu_indices(blind.shape[1], blind.shape[1])
        k, l = torch.triu_indices(plane.shape[1], plane.shape[1])
        apart = gain[:, None] - gain + torch.diag(torch.full_like(gain, torch.inf))

        def forms(a):
            M, C = a.new_zeros(len(a), *[blind.shape[1]] * 2), a.new_zeros(len(a), *[plane.shape[1]] * 2)
            M[:, i, j], C[:, k, l] = a[:, :len(i)], a[:, len(i):]
            return blind @ (M + M.mT) @ blind.T, plane @ (C + C.mT)  # S = first + second plane^T

        def skew(a):
            M, C = forms(a)
            return (M + C @ plane.T) / apart

        size = len(i) + len(k)
        free, fill = size, lambda a: a
        if self.w.centred:  # coefficients for which A 1 = 0
            pull = torch.func.vjp(lambda a: skew(a).sum(-1)[0], gain.new_zeros(1, size))[1]
            free, fill = solved(torch.func.vmap(lambda e: pull(e)[0][0], chunk_size=64)(self.w.seen.T))

        def directions(a):
            a = fill(a)
            A, (M, C) = skew(a), forms(a)
            yield from self._rotate(A)
            yield {"transformer.ln_f.weight": (M + C @ plane.T).diagonal(dim1=1, dim2=2)}
            if self.w.centred:
                yield {"transformer.wte.weight": -(W @ C[..., 1:]).expand(-1, -1, self.c.n_embd)}
                if self.c.bias:
                    yield {"transformer.ln_f.bias": shift @ A.mT + C[..., 1] * shift.sum()}
        return free, directions

    def residual_scale(self):
        """Everything that writes into the stream, scaled; tied logits are scaled back by the last norm."""
        up = self.w.embeddings + [maps + part for maps in self.w.writers for part in (".weight", ".bias") if maps + part in self.p]
        down = ["transformer.ln_f" + part for part in (".weight", ".bias") if self.c.tied and "transformer.ln_f" + part in self.p]

        def directions(t):
            yield {name: torch.tensordot(t, self.p[name][None], 1) for name in up}
            yield {name: -torch.tensordot(t, self.p[name][None], 1) for name in down}
        return 1, directions

    # ---- attention

    def _heads(self, layer):
        """What queries, keys and values read, each (H, D, E) or (H, D, E + 1), and W_O (H, E, D)."""
        c, block = self.c, self.w.blocks[layer]
        Q, K, V = self.w.read(block + "ln_1", block + "attn.c_attn").unflatten(0, (3, c.n_head, c.head_dim))
        return Q, K, V, self.p[block + "attn.c_proj.weight"].unflatten(1, (c.n_head, -1)).transpose(0, 1)

    def _moved(self, layer, **changes):
        """The direction that changes what queries Q, keys K and values V read by (k, H, D, ...), and W_O by O (k, H, E, D)."""
        block = self.w.blocks[layer]
        if "O" in changes:
            yield {block + "attn.c_proj.weight": changes["O"].transpose(1, 2).flatten(2)}
        read = [changes.get(letter) for letter in "QKV"]
        some = next((change for change in read if change is not None), None)
        if some is not None:
            change = torch.stack([torch.zeros_like(some) if part is None else part for part in read], 1).flatten(1, 3)
            yield self.w.write(block + "ln_1", block + "attn.c_attn", change)

    def _per_layer(self, family):
        """One family for all layers, from one a layer."""
        sizes, maps = zip(*(family(layer) for layer in range(self.c.n_layer)))

        def directions(a):
            for layer, part in enumerate(a.split(sizes, 1)):
                if sizes[layer]:
                    yield from maps[layer](part)
        return sum(sizes), directions

    def query_key_maps(self):
        """Each head's S on its queries, -S^T on its keys: all S, or those that commute with the rotations."""
        return self._per_layer(self._turning_maps if self.c.rotary else self._query_key_maps)

    def _query_key_maps(self, layer):
        met, (Q, K, _, _) = self.met[layer], self._heads(layer)
        pairs = [pair_family(k @ met.varying, q @ met.queries) for q, k in zip(Q, K)]

        def directions(a):
            dK, dQ = stack(pairs, a)
            yield from self._moved(layer, Q=dQ @ met.queries.T, K=dK @ met.varying.T)
        return sum(size for size, _ in pairs), directions

    def _turning_maps(self, layer):
        Q, K, _, _ = self._heads(layer)

        def directions(a):
            x, y = a.unflatten(1, (self.c.n_head, -1, 2, 1)).unbind(3)  # (k, H, planes, 1)
            turn = lambda W, y: torch.stack((x * W[:, 0::2] - y * W[:, 1::2], y * W[:, 0::2] + x * W[:, 1::2]), 3).flatten(2, 3)
            yield from self._moved(layer, Q=turn(Q, y), K=-turn(K, -y))
        return self.c.n_embd, directions

    def key_constants(self):
        """A key that is the same for all tokens: a bias, or what the rows of few tokens make one of."""
        def family(layer):
            one = self.met[layer].one
            shape = (self.c.n_head, self.c.head_dim, 1)
            return self.c.n_embd * (one is not None), lambda a: self._moved(layer, K=a.unflatten(1, shape) * one)
        return self._per_layer(family)

    def value_output_maps(self):
        """Each head's S on its values and S^-1 on what reads them; what constants among the values then change is taken back."""
        return self._per_layer(self._value_output_maps)

    def _value_output_maps(self, layer):
        met, (_, _, V, O) = self.met[layer], self._heads(layer)
        pairs = [pair_family(o.T @ self.w.seen, v @ met.varying) for v, o in zip(V, O)]

        def directions(a):
            dO, dV = stack(pairs, a)
            dO, dV = self.w.seen @ dO.mT, dV @ met.varying.T
            if met.one is None:
                yield from self._moved(layer, O=dO, V=dV)
            else:
                lost = torch.einsum("khed,hd->ke", dO, V @ met.one / met.one.square().sum())
                yield from self._moved(layer, O=dO, V=dV)
                yield from self._constant_output(layer, -lost)
        return sum(size for size, _ in pairs), directions

    def _constant_output(self, layer, u):
        """Add u (k, E) to the layer's output everywhere, by its output bias, or else by a value that all tokens share."""
        block = self.w.blocks[layer]
        if self.c.bias:
            yield {block + "attn.c_proj.bias": u}
        else:
            v = torch.linalg.solve(self.p[block + "attn.c_proj.weight"], u.T).T.unflatten(1, (self.c.n_head, -1))
            yield from self._moved(layer, V=v[..., None] * self.met[layer].one)

    def value_constants(self):
        """A value that all tokens share against the output bias; without one, such a value that makes all-ones."""
        def family(layer):
            one, W_O = self.met[layer].one, self.p[self.w.blocks[layer] + "attn.c_proj.weight"]
            if one is None or not self.c.bias:
                return int(one is not None and self.w.centred), lambda a: self._constant_output(layer, a * self.w.ones)

            def directions(a):
                yield from self._moved(layer, V=a.unflatten(1, (self.c.n_head, -1, 1)) * one)
                yield from self._constant_output(layer, -a @ W_O.T)
            return self.c.n_embd, directions
        return self._per_layer(family)

    def inputs_never_met(self):
        """Rows of the first layer's queries, keys and values, moved along what no embedding has."""
        met, shape = self.met[0], (self.c.n_head, self.c.head_dim, -1)
        spaces = (met.queries_beyond, met.keys_beyond, met.keys_beyond)
        sizes = [self.c.n_embd * space.shape[1] for space in spaces]

        def directions(a):
            parts = zip("QKV", a.split(sizes, 1), spaces)
            yield from self._moved(0, **{letter: part.unflatten(1, shape) @ space.T for letter, part, space in parts if part.shape[1]})
        return sum(sizes), directions

    # ---- embeddings

    def embedding_against_positions(self):
        """All tokens up, all positions down."""
        shifts = self.w.seen if self.w.centred and not self.c.tied else torch.eye(self.c.n_embd, dtype=torch.float64)

        def directions(a):
            u = (a @ shifts.T)[:, None]
            for sign, name in zip((1, -1), self.w.embeddings):
                yield {name: (sign * u).expand(-1, len(self.p[name]), -1)}
        return shifts.shape[1], directions

    def embedding_against_values(self):
        """All inputs moved alike and the first layer's output moved back, where its readers can make up for the move."""
        w, learned = self.w, self.c.positions == "learned"
        centred = w.stream().flatten(0, 1) @ w.seen
        shifts = w.seen @ (split_space(centred)[1] if learned else torch.eye(w.seen.shape[1], dtype=torch.float64))
        back = torch.linalg.pinv(w.features().flatten(0, 1)).T  # (V T, E or E + 1)

        def directions(a):
            u = a @ shifts.T
            yield {w.embeddings[-1]: u[:, None].expand(-1, len(self.p[w.embeddings[-1]]), -1)}
            change = lambda u: torch.func.jvp(w.normalised, (w.stream(),), (u.expand_as(w.stream()),))[1].flatten(0, 1)
            undo = [-self._reading_all(0) @ (change(each).T @ back) for each in u]
            yield w.write(w.blocks[0] + "ln_1", w.blocks[0] + "attn.c_attn", torch.stack(undo))
            yield from self._constant_output(0, -u)
        return shifts.shape[1], directions

    def _reading_all(self, layer):
        return self.w.read(self.w.blocks[layer] + "ln_1", self.w.blocks[layer] + "attn.c_attn")

    def softmax_shift(self):
        """One row added to all of the head's."""
        return self.c.n_embd, lambda a: [{"lm_head.weight": a[:, None].expand(-1, self.c.vocab_size, -1)}]


def pair_family(K, Q):
    """The directions (dK, dQ) that keep K^T Q, as a number of coefficients and a map from them."""
    d = len(K)
    if d <= min(K.shape[1], Q.shape[1]):
        return d * d, lambda a: (-a.unflatten(1, (d, d)).mT @ K, a.unflatten(1, (d, d)) @ Q)
    dK, dQ = product_kernel(K, Q)
    return len(dK), lambda a: (torch.tensordot(a, dK, 1), torch.tensordot(a, dQ, 1))


def stack(pairs, a):
    """The directions of all heads, (k, H, ...) each, from the coefficients of all."""
    return [torch.stack(parts, 1) for parts in zip(*(apply(part) for (_, apply), part in zip(pairs, a.split([s for s, _ in pairs], 1))))]


class NullSpace:
    """The null directions of a network at generic parameters, term by term, as maps from coefficients."""

    def __init__(self, config, parameters):
        self.config, self.parameters = config, check_parameters(config, parameters)
        families = Families(config, self.parameters)
        self.families = {term: getattr(families, term.replace(" ", "_").replace("-", "_"))() for term in count_network(config).terms}

    def directions(self, term, coefficients):
        """name -> (k, *shape), for coefficients (k, dimension of the term)."""
        total = {name: coefficients.new_zeros(len(coefficients), *shape) for name, shape in self.config.shapes.items()}
        for part in self.families[term][1](coefficients):
            for name, change in part.items():
                total[name] += change
        return total

    def random(self, term, k, seed=0):
        """k random members of a term's family."""
        generator = torch.Generator().manual_seed(seed)
        return self.directions(term, torch.randn(k, self.families[term][0], generator=generator, dtype=torch.float64))


@generators.register
def network_generators(config: GPTConfig, parameters):
    """Null directions of a network at generic parameters: term of `count` -> (name -> (dimension, *shape)), float64.

    The directions of all terms together are linearly independent. Raises ValueError for what `count` refuses and for
    parameters that do not fit the description.
    """
    null = NullSpace(config, parameters)
    return {term: null.directions(term, torch.eye(size, dtype=torch.float64)) for term, (size, _) in null.families.items()}
