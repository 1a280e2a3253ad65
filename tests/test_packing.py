"""Documents fill rows without loss, and what is masked in them is what was asked for."""

import numpy as np
import pytest
import torch
from conftest import loud

from hf_roformer import HFRoFormerConfig, HFRoFormerForCausalLM, HFRoFormerForMaskedLM
from hf_roformer.masking import Masking, mask_row, span_lengths
from hf_roformer.packing import Document, Frame, pack
from hf_roformer.pretraining_arguments import Stage
from hf_roformer.token_rows import EvaluationRows, HeldBatches, Plan, Shaping, TokenStore, stack

CLS, SEP, MASK, PAD = 2, 3, 4, 0
BOTH, FIRST = Frame(CLS, SEP, PAD), Frame(CLS, None, PAD)
FIXED = np.array([PAD, 1, CLS, SEP, MASK])


def documents(lengths, start=10):
    """Number all tokens on, so that each stands for itself."""
    made = []
    for length in lengths:
        made.append(Document(np.arange(start, start + length, dtype=np.int32), np.ones(length, bool)))
        start += length
    return made


def words(*sizes):
    """One document of words of so many tokens."""
    starts = [at == 0 for size in sizes for at in range(size)]
    return Document(np.arange(10, 10 + len(starts), dtype=np.int32), np.array(starts))


def test_a_document_goes_on_in_the_next_row():
    rows = list(pack(documents([3, 6]), 9, BOTH))
    assert rows[0].ids.tolist() == [CLS, 10, 11, 12, SEP, CLS, 13, 14, SEP]
    assert rows[0].pieces.tolist() == [1, 1, 1, 1, 1, 2, 2, 2, 2]
    assert rows[1].ids.tolist() == [CLS, 15, 16, 17, 18, SEP, PAD, PAD, PAD]
    assert rows[1].pieces.tolist() == [1, 1, 1, 1, 1, 1, 0, 0, 0]


def test_a_gap_that_would_hold_one_token_is_left():
    first, second = pack(documents([3, 6]), 8, BOTH)
    assert first.ids.tolist() == [CLS, 10, 11, 12, SEP, PAD, PAD, PAD]
    assert second.ids.tolist() == [CLS, 13, 14, 15, 16, 17, 18, SEP]


@pytest.mark.parametrize("frame", [BOTH, FIRST])
@pytest.mark.parametrize("length", [4, 7, 16, 64])
def test_no_token_is_lost_doubled_or_moved(frame, length):
    lengths = np.random.default_rng(0).integers(1, 40, 30)
    rows = list(pack(documents(lengths), length, frame))
    tokens = [token for row in rows for token in row.ids.tolist() if token >= 10]
    assert tokens == list(range(10, 10 + lengths.sum()))
    for row in rows:
        assert len(row.ids) == len(row.starts) == len(row.pieces) == length
        for piece in range(1, row.pieces.max() + 1):
            (places,) = np.nonzero(row.pieces == piece)
            assert row.ids[places[0]] == CLS
            assert np.array_equal(places, np.arange(places[0], places[-1] + 1))
            assert frame.last is None or row.ids[places[-1]] == SEP
    # only the last row may be emptier than a smallest piece
    assert all((row.pieces == 0).sum() < 2 + frame.width for row in rows[:-1])


def test_a_row_too_short_for_a_piece_is_refused():
    with pytest.raises(ValueError, match="rows of 3 tokens hold no piece of a document: use 4 up"):
        list(pack(documents([5]), 3, BOTH))


def test_a_word_that_the_end_of_a_row_cuts_is_two_units():
    first, second = pack([words(3, 5)], 7, BOTH)
    assert (first.ids.tolist(), first.starts.tolist()) == (
        [CLS, 10, 11, 12, 13, 14, SEP],
        [True, True, False, False, True, False, True],
    )
    assert (second.ids.tolist(), second.starts.tolist()) == (
        [CLS, 15, 16, 17, SEP, PAD, PAD],
        [True, True, False, False, True, True, True],
    )


@pytest.mark.parametrize("objective", ["masked", "causal"])
def test_a_packed_document_is_read_as_if_it_stood_alone(objective, tiny):
    head, frame = {"masked": (HFRoFormerForMaskedLM, BOTH), "causal": (HFRoFormerForCausalLM, FIRST)}[objective]
    model = loud(head(HFRoFormerConfig(**tiny)))
    choices = Masking(0.3, MASK, FIXED, np.arange(10, 90)) if objective == "masked" else None
    store = TokenStore.of(documents([5, 9, 4], start=20))
    rows = EvaluationRows(store, 16, Shaping(frame, choices, 0))
    batch = stack(rows[number] for number in range(len(rows)))
    together = model(**{name: batch[name] for name in batch if name != "labels"}).logits
    for row in range(len(rows)):
        pieces = torch.from_numpy(rows.rows[row].pieces)
        for piece in range(1, int(pieces.max()) + 1):
            places = pieces == piece
            alone = model(batch["input_ids"][row][places][None]).logits[0]
            torch.testing.assert_close(together[row, places], alone, rtol=0, atol=2e-5)


def test_a_causal_row_learns_every_token_but_the_first_of_a_piece():
    (row,) = pack(documents([2, 3]), 8, FIRST)
    columns = Shaping(FIRST, None, 0).row(row, 0)
    assert columns["input_ids"].tolist() == [CLS, 10, 11, CLS, 12, 13, 14, PAD]
    assert columns["labels"].tolist() == [-100, 10, 11, -100, 12, 13, 14, -100]
    assert columns["sequence_ids"].tolist() == [1, 1, 1, 2, 2, 2, 2, 0]
    assert columns["attention_mask"].tolist() == [1] * 7 + [0]


# masking


def masked(choices, document, length=None, numbers=range(400)):
    """Mask one row again and again; the ids, what was seen and what was asked for, [draws, L]."""
    (row,) = pack([document], length or len(document.ids) + 2, BOTH)
    drawn = [mask_row(choices, *row, np.random.default_rng((0, number))) for number in numbers]
    return row.ids, np.array([seen for seen, _ in drawn]), np.array([labels for _, labels in drawn])


def choices(**changes):
    return Masking(**{"share": 0.15, "mask": MASK, "fixed": FIXED, "drawn": np.arange(10, 2000), **changes})


@pytest.mark.parametrize("spans", [False, True])
@pytest.mark.parametrize("sizes", [(1,) * 60, (1, 2, 3) * 10])
def test_the_share_is_met_and_special_tokens_are_left_alone(spans, sizes):
    ids, seen, labels = masked(choices(spans=spans), words(*sizes), length=80)
    chosen = labels != -100
    assert chosen[:, ids >= 10].mean() == pytest.approx(0.15, abs=0.01)
    assert not chosen[:, ids < 10].any()
    assert (seen[~chosen] == np.broadcast_to(ids, seen.shape)[~chosen]).all()
    assert (labels[chosen] == np.broadcast_to(ids, seen.shape)[chosen]).all()


@pytest.mark.parametrize("spans", [False, True])
def test_a_word_is_masked_as_a_whole(spans):
    sizes = (1, 3, 2, 4, 1, 2) * 4
    _, _, labels = masked(choices(share=0.3, spans=spans), words(*sizes))
    chosen = (labels != -100)[:, 1:-1]
    word_of = np.repeat(np.arange(len(sizes)), sizes)
    for word in range(len(sizes)):
        assert (chosen[:, word_of == word].all(axis=1) == chosen[:, word_of == word].any(axis=1)).all()
    assert 0 < chosen.mean() < 1


def test_eight_in_ten_are_masked_one_is_another_token_and_one_stays():
    _, seen, labels = masked(choices(share=0.5), words(*(1,) * 60))
    chosen = labels != -100
    assert (seen[chosen] == MASK).mean() == pytest.approx(0.8, abs=0.02)
    assert (seen[chosen] == labels[chosen]).mean() == pytest.approx(0.1, abs=0.02)


def test_a_span_shares_one_fate_and_its_lengths_are_geometric():
    told = choices(spans=True, share=0.05, stop=0.5, longest=4)
    chances = span_lengths(told)
    # 8, 4, 2 and 1 in fifteen
    assert chances == pytest.approx([8 / 15, 4 / 15, 2 / 15, 1 / 15])
    _, seen, labels = masked(told, words(*(1,) * 200), numbers=range(200))
    lengths, fates = [], []
    for row, targets in zip(seen, labels, strict=True):
        (places,) = np.nonzero(targets != -100)
        for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
            lengths.append(len(run))
            fates += [len({int(t == MASK) for t in row[run]})] if 1 < len(run) <= 4 else []
    # spans that happen to touch make some runs longer and of two fates
    assert np.mean(lengths) == pytest.approx(1.73, abs=0.25)
    assert np.mean(np.array(fates) == 1) > 0.9


def test_a_span_stays_in_its_piece():
    rows = list(pack(documents([6, 6]), 16, BOTH))
    for number in range(200):
        _, labels = mask_row(choices(spans=True, share=0.9, stop=0.05), *rows[0], np.random.default_rng(number))
        assert labels[[0, 7, 8, 15]].tolist() == [-100] * 4


def test_another_draw_masks_other_tokens_and_the_same_draw_the_same():
    _, seen, _ = masked(choices(), words(*(1,) * 60), numbers=[0, 1, 0])
    assert (seen[0] != seen[1]).any()
    assert (seen[0] == seen[2]).all()


# batches

STAGES = [Stage(max_length=12, batch_size=4, steps=5), Stage(max_length=20, batch_size=2, steps=3)]


def held(parts=1, seed=0, lengths=(5, 30, 2, 17, 9)):
    return HeldBatches(TokenStore.of(documents(lengths)), Plan(STAGES, parts), Shaping(BOTH, choices(), seed))


def originals(batches, numbers):
    """Undo the masking: the row's own ids."""
    rows = [batches[number] for number in numbers]
    return [torch.where(row["labels"] == -100, row["input_ids"], row["labels"]) for row in rows]


def test_the_schedule_is_gone_through_in_its_order():
    assert [tuple(held()[number]["input_ids"].shape) for number in range(8)] == [(4, 12)] * 5 + [(2, 20)] * 3
    plan = Plan(STAGES, 2)
    assert len(plan) == 16
    assert [plan.place(number) for number in (0, 9, 10, 15)] == [(0, 0), (0, 9), (1, 0), (1, 5)]
    assert [plan.rows_before(number) for number in (0, 1, 10, 11)] == [0, 2, 20, 21]


def test_a_batch_follows_from_its_number_whatever_was_read_before():
    there, back = held(), held()
    forwards = [there[number] for number in range(8)]
    for number in reversed(range(8)):
        for name, column in back[number].items():
            assert torch.equal(column, forwards[number][name])


def test_parts_of_a_step_hold_what_the_step_holds():
    whole, halves = held(1), held(2)
    for step in range(8):
        for name in ("input_ids", "labels", "sequence_ids"):
            parts = torch.cat([halves[2 * step][name], halves[2 * step + 1][name]])
            assert torch.equal(parts, whole[step][name]), (step, name)


def test_every_pass_reads_every_token_once_in_an_order_of_its_own():
    batches = held()
    rows = torch.cat(originals(batches, range(5)))
    count, orders = 0, []
    for end in batches._ends[0]:
        part = rows[count:end]
        if len(part) == end - count:
            tokens = part[part >= 10].tolist()
            assert sorted(tokens) == list(range(10, 73))
            orders.append(tokens)
        count = end
    assert len(orders) == 2
    assert orders[0] != orders[1]


def test_a_row_that_is_seen_again_is_masked_otherwise():
    (row,) = pack(documents([60]), 64, BOTH)
    shaping = Shaping(BOTH, choices(), 0)
    first, again, other = (shaping.row(row, number)["labels"] for number in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_another_seed_shuffles_and_masks_otherwise():
    assert not torch.equal(held(seed=0)[0]["input_ids"], held(seed=1)[0]["input_ids"])


def test_rows_that_do_not_share_out_are_refused():
    with pytest.raises(ValueError, match="stage 2 of the schedule has batch_size 2, which 4 parts"):
        Plan(STAGES, 4)
