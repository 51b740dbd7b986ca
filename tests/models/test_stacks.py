"""A stack is the sequence of layers that it abbreviates."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnid.models.architectures import read_architecture
from attnid.models.stacks import Stack


def test_more_layers_than_a_sequence_can_number_are_refused():
    with pytest.raises(ValueError, match=f"^layers={3 * 2**62}: are more than can be numbered"):
        read_architecture(
            {"model_type": "whisper", "encoder_layers": 2**62, "decoder_layers": 2**62}
        )


nested = st.recursive(
    st.sampled_from("abc"), lambda inner: st.lists(st.tuples(inner, st.integers(0, 3)), max_size=3)
)


def stack_and_list(parts):
    """The same layers as a Stack and one by one."""
    if isinstance(parts, str):
        return parts, [parts]
    both = [(stack_and_list(part), times) for part, times in parts]
    stack = Stack(tuple((part, times) for (part, _), times in both))
    return stack, [layer for (_, listed), times in both for layer in listed * times]


@settings(max_examples=50)
@given(st.lists(st.tuples(nested, st.integers(0, 3)), max_size=3))
def test_a_stack_is_the_sequence_that_it_abbreviates(parts):
    stack, listed = stack_and_list(parts)
    assert list(stack) == listed == [stack[i] for i in range(len(stack))] == list(Stack.of(listed))
    assert [stack[-i - 1] for i in range(len(stack))] == listed[::-1]
    assert stack[1:4] == tuple(listed[1:4]) and stack[::-2] == tuple(listed[::-2])
    assert stack.numbers == dict(Counter(listed)) and list(stack.numbers) == list(Counter(listed))
    with pytest.raises(IndexError):
        stack[len(listed)]


def test_a_stack_of_runs_is_kept_as_runs():
    stack = Stack.of(["a", "a", "b", "a"])
    assert stack.parts == (("a", 2), ("b", 1), ("a", 1)) and len(stack) == 4
    assert (stack.count("a"), stack.count("b"), stack.count("c")) == (3, 1, 0)
    assert stack == Stack((("a", 2), ("c", 0), ("b", 1), ("a", 1)))  # none in a row are none
    assert hash(stack) == hash(Stack.of("aaba")) and stack != Stack.of("abaa")
