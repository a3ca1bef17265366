"""Two censuses name the tensors that keep autograd graphs, and what these graphs keep."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from test_holders import explained


WIDTH = 512


@pytest.fixture
def torch() -> Any:
    """Not loaded before the first test needs it: a census of what it brings along takes seconds."""
    return pytest.importorskip("torch")


def layers(torch: Any, count: int) -> Any:
    """Each layer saves its input, a tensor that is known to Python and has a graph itself."""
    return torch.nn.Sequential(*(layer for _ in range(count) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())))


def loss_of(torch: Any, model: Any) -> Any:
    return model(torch.ones(128, WIDTH)).square().mean()


def leak(size: int) -> None:
    """Growth that is no object of the interpreter."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    ctypes.memset(library.malloc(size), 1, size)


def test_losses_with_their_graphs_are_named(torch: Any):
    weights = torch.ones(1500, 1500, requires_grad=True)
    losses = []
    # Too large for what the allocator kept of other tests.
    explanation = explained(lambda: losses.extend((torch.ones(1500, 1500) @ weights).relu().sum() for _ in range(12)))
    assert explanation.graphs and "'losses'" in explanation.graphs[0]["chain"], explanation
    # One that lies where another object was at the first census is not known to be new.
    assert 6 <= explanation.graphs[0]["count"] <= 14, explanation.graphs
    assert "autograd graph came into list 'losses'" in str(explanation)


def test_a_total_of_losses_that_keeps_all_their_graphs_is_named(torch: Any):
    weights = torch.ones(1500, 1500, requires_grad=True)
    total = torch.zeros(())

    def step(number: int) -> None:
        nonlocal total
        total = total + (torch.ones(1500, 1500) @ weights).relu().sum()

    step(0)
    explanation = explained(lambda: [step(number) for number in range(20)] and None)
    assert explanation.graph is not None and "'total'" in explanation.graph["chain"], explanation
    assert explanation.graph["operations"] > 60 > 20 > explanation.graph["before"] > 2
    assert "grew from" in str(explanation) and "loss.detach()" in str(explanation)


def test_a_graph_that_is_as_large_in_every_step_is_none_that_grows(torch: Any):
    weights = torch.ones(100, 100, requires_grad=True)
    state, kept = torch.zeros(100, 100), []
    for _ in range(60):
        state = state + weights @ torch.ones(100, 100)

    def grow() -> None:
        nonlocal state
        state = torch.zeros(100, 100)
        for _ in range(60):
            state = state + weights @ torch.ones(100, 100)
        kept.append(ctypes.create_string_buffer(b"x", 50_000_000))

    assert explained(grow).graph is None


def test_what_the_graphs_of_losses_save_is_held_by_their_list(torch: Any):
    model, losses = layers(torch, 12), []
    losses.extend(loss_of(torch, model) for _ in range(3))
    explanation = explained(lambda: losses.extend(loss_of(torch, model) for _ in range(10)))
    holder = explanation.holders[0]
    assert holder.what == "saved by autograd" and "list 'losses'" in (holder.chain or ""), explanation
    assert explanation.share > 0.7, explanation
    assert explanation.graphs and "'losses'" in explanation.graphs[0]["chain"], explanation


def test_a_total_is_found_among_the_many_tensors_that_its_graph_saves(torch: Any):
    model, totals = layers(torch, 12), {"loss": torch.zeros(())}

    def grow(steps: int) -> None:
        for _ in range(steps):
            totals["loss"] = totals["loss"] + loss_of(torch, model)

    grow(3)
    explanation = explained(lambda: grow(20))
    assert explanation.graph is not None and "'totals'" in explanation.graph["chain"], explanation
    assert explanation.holders[0].what == "saved by autograd" and explanation.share > 0.7, explanation


def test_an_input_that_a_graph_saves_is_said_to_be_most_likely_there(torch: Any):
    model, outputs = torch.nn.Linear(WIDTH, WIDTH), []
    explanation = explained(lambda: outputs.extend(model(torch.ones(WIDTH, WIDTH)) for _ in range(40)))
    assert any(holder.chain is None for holder in explanation.holders), explanation
    assert "most likely saved by the autograd graphs below" in str(explanation)


@pytest.mark.parametrize("first", [0, 2])
def test_the_graph_of_a_step_is_not_taken_for_one_that_grows(torch: Any, first: int):
    # The first census finds no graph or the beginning of one, since it came between two steps or in the middle of one.
    model = layers(torch, 12)
    state = model[:first](torch.ones(128, WIDTH))

    def grow() -> None:
        nonlocal state
        for _ in range(10):
            state = loss_of(torch, model)
        leak(200_000_000)

    explanation = explained(grow)
    assert explanation.graph is None and not explanation.graphs, explanation
    assert state.grad_fn is not None
