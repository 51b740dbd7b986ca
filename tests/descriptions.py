"""Random descriptions of attention layers, small enough to measure, over every field."""

import math

from hypothesis import assume
from hypothesis import strategies as st

from attnid import Attention

# equal, opposite, zero, half-turn, full-turn and full-turn-apart frequencies all occur
FREQUENCIES = (0.0, math.pi, 2 * math.pi, 1.0, -1.0, 0.37, 1.0 + 2 * math.pi, 2.2)


def biased(fields):
    """Whether queries or keys have a bias."""
    return bool(set("qk") & set(fields["bias"]))


@st.composite
def descriptions(draw, *, least_inputs=2, most_parameters=350, **fixed):
    """Descriptions with any fields fixed, whose inputs fill at least `least_inputs` dimensions."""
    inputs = draw(st.sampled_from(("free", "free", "centred")))
    heads = draw(st.integers(1, 4))
    head_dim = draw(st.integers(1, 8))
    fields = dict(
        embed_dim=draw(st.integers(least_inputs + (inputs == "centred"), 6)),
        heads=heads,
        kv_heads=draw(st.sampled_from([g for g in range(1, heads + 1) if heads % g == 0])),
        head_dim=head_dim,
        value_dim=draw(st.integers(1, 5)),
        bias="".join(draw(st.sets(st.sampled_from("qkvo")))),
        rotary=tuple(draw(st.lists(st.sampled_from(FREQUENCIES), max_size=head_dim // 2))),
        qk_norm=draw(st.sampled_from((None, None, "head", "head_gain", "layer_gain"))),
        score=draw(st.sampled_from(("softmax", "softmax", "softcap", "alibi", "sink"))),
        inputs=inputs,
        causal=draw(st.booleans()),
        gate=draw(st.sampled_from((None, None, "head", "channel"))),
    )
    fields |= fixed
    relative = fields.setdefault("relative", draw(st.sampled_from((None, None, "bias", "content"))))
    fields["span"] = draw(st.integers(1, 4)) if relative else None
    if relative == "content":
        fields |= dict(rotary=(), qk_norm=None)
        few = fields["embed_dim"] - (fields["inputs"] == "centred")
        fields["head_dim"] = min(fields["head_dim"], few) if biased(fields) else fields["head_dim"]
    attention = Attention(**fields)
    assume(attention.parameters <= most_parameters)
    # normalised numbers are signs, and have a count only where signs differ whatever the weights
    assume(
        not (
            attention.qk_norm
            and attention.D == 1
            and attention.inputs == "centred"
            and set("qk") & set(attention.bias)
        )
    )
    return attention
