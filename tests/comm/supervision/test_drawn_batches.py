"""Which batches count for which workers, and for how long."""

from __future__ import annotations

from gridwise.comm.supervision.drawn_batches import KEPT, DrawnBatch, DrawnBatches


def test_only_loaders_of_the_whole_team_count():
    drawn = DrawnBatches()
    assert not drawn
    drawn.draw("a", DrawnBatch((0, 1, 2), 5, "a1"))
    drawn.draw("b", DrawnBatch((0, 1), 6, "b1", "lost"))
    assert drawn.of((0, 1)) == (5 ^ 6, "b1: lost")
    assert drawn.of((1, 2)) == (5, None)
    assert drawn.of((0, 3)) == (0, None)
    assert drawn.describe((0, 1)) == "a1; b1"
    assert drawn.describe((0, 3)) == "no batch"


def test_the_last_batch_of_a_loader_replaces_the_one_before():
    drawn = DrawnBatches()
    drawn.draw("a", DrawnBatch((0, 1), 5, "a1", "lost"))
    assert drawn.has_unreported_problem("a")
    drawn.draw("a", DrawnBatch((0, 1), 7, "a2"))
    assert drawn.of((0, 1)) == (7, None)
    assert not drawn.has_unreported_problem("a")


def test_the_order_of_loaders_does_not_matter_and_old_ones_go():
    one, other = DrawnBatches(), DrawnBatches()
    for name, key in (("a", 1), ("b", 2)):
        one.draw(name, DrawnBatch((0, 1), key, name))
    for name, key in (("b", 2), ("a", 1)):
        other.draw(name, DrawnBatch((0, 1), key, name))
    assert one.of((0, 1)) == other.of((0, 1))
    for i in range(KEPT):
        one.draw(str(i), DrawnBatch((0, 1), 0, ""))
    assert one.of((0, 1)) == (0, None)


def test_what_was_told_is_forgotten():
    drawn = DrawnBatches()
    drawn.draw("a", DrawnBatch((0, 1, 2), 5, "a1", "lost"))
    drawn.draw("b", DrawnBatch((0, 1), 6, "b1", "lost"))
    drawn.forget_of((1, 2))
    assert drawn.of((0, 1)) == (6, "b1: lost")
    drawn.forget("b")
    assert not drawn
