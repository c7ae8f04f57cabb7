import numpy as np
import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from clipmend.evaluation import ChoiceAccumulator, ExclusionAccumulator, RankAccumulator, auroc
from clipmend.evaluation.areas import macro


def test_ranks_in_parts_equal_the_whole() -> None:
    rng = np.random.default_rng(0)
    ranks = rng.integers(1, 30, 101)
    order = rng.permutation(101)
    parts = [RankAccumulator(ks=(1, 7)) for _ in range(3)]
    for number, rows in enumerate(np.array_split(order, 9)):
        parts[number % 3].update(rows, ranks[rows])
    parts[2].update(order[:5], ranks[order[:5]])  # a sampler's padding: seen twice, counted once
    found = parts[0].merge(*parts[1:]).compute()
    assert found == {"recall@1": (ranks <= 1).mean(), "recall@7": (ranks <= 7).mean(), "median_rank": np.median(ranks)}
    again = RankAccumulator(ks=(1, 7)).load_state_dict(parts[0].state_dict())
    assert again.compute() == found
    again.reset()
    with pytest.raises(ValueError, match="nothing to compute"):
        again.compute()
    assert again.state_dict() == {}


def test_accumulators_refuse() -> None:
    ranks = RankAccumulator()
    ranks.update([0], [3])
    ranks.update([0], [4])
    with pytest.raises(ValueError, match="added twice with different rank"):
        ranks.compute()
    with pytest.raises(ValueError, match="start at 1"):
        ranks.update([1], [0])
    with pytest.raises(ValueError, match="differ in number"):
        ranks.update([1, 2], [1])
    with pytest.raises(ValueError, match="cannot merge"):
        ranks.merge(ChoiceAccumulator())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="1 or more"):
        RankAccumulator(ks=(0,))
    with pytest.raises(ValueError, match="question 7: a score is NaN"):
        ChoiceAccumulator().update([6, 7], [[1, 0], [np.nan, 0]], [0, 0])
    with pytest.raises(ValueError, match="two options or more"):
        ChoiceAccumulator().update([0], [[1]], [0])
    with pytest.raises(ValueError, match="without a score"):
        ChoiceAccumulator().update([0], [[1, 2, -np.inf]], [2])
    with pytest.raises(ValueError, match="must both be"):
        ExclusionAccumulator(["cat"]).update([0], [[1, 2]], [[True, False]])


def test_choice_merges_and_counts_ties_as_wrong() -> None:
    one, two = ChoiceAccumulator(), ChoiceAccumulator()
    one.update([0, 1], [[2, 1, -np.inf], [1, 1, 0]], [0, 0])
    two.update([3, 2], [[0, 5, 1], [0, 1, 2]], [0, 2])
    assert one.merge(two).compute() == {"acc": 0.5}
    chosen, correct = one.outcome()
    assert chosen.tolist() == [0, -1, 2, 1]
    assert correct.tolist() == [True, False, True, False]


def test_exclusion_merges() -> None:
    rng = np.random.default_rng(0)
    kinds = ["cat", "cat", "dog", "unicorn"]
    scores, present = rng.normal(size=(40, 4)).astype(np.float32), rng.random((40, 4)) < 0.5
    present[:, 3] = False
    parts = [ExclusionAccumulator(kinds) for _ in range(2)]
    for i in range(40):
        parts[i % 2].update([i], scores[i : i + 1], present[i : i + 1])
    found = parts[1].merge(parts[0]).compute()
    values = [auroc(scores[:, q], ~present[:, q]) for q in range(4)]
    assert found == {"auroc": pytest.approx(macro(values, kinds)), "skipped": 1}


def _one_process(rank: int, init: str, out: str) -> None:
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=2)
    ranks = np.arange(1, 12)
    metric = RankAccumulator(ks=(3,))
    metric.update(np.arange(11)[rank::2], ranks[rank::2])
    if rank == 1:
        metric.update([0], [1])  # padded
    np.save(f"{out}/{rank}.npy", np.array(list(metric.gather().compute().values())))
    dist.destroy_process_group()


def test_gather_across_two_processes(tmp_path) -> None:  # type: ignore[no-untyped-def]
    mp.spawn(_one_process, args=(f"file://{tmp_path}/meet", str(tmp_path)), nprocs=2)
    for rank in range(2):
        np.testing.assert_allclose(np.load(tmp_path / f"{rank}.npy"), [3 / 11, 6.0])


def test_gather_alone_is_nothing() -> None:
    metric = RankAccumulator()
    metric.update([0], [1])
    assert metric.gather().compute()["recall@1"] == 1.0
