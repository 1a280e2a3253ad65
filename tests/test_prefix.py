"""A source is read whole and a target is written after it (UniLM): token types alone decide who sees whom."""

import json

import pytest
import reference
import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from torch import Tensor
from transformers import DynamicCache
from variants import VARIANTS, published_weights, vivid, write_folder

import hf_roformer
from hf_roformer import HFRoFormerConfig, HFRoFormerForCausalLM, HFRoFormerModel
from hf_roformer.attention import CACHE_ARGUMENT

BACKENDS = ("eager", "sdpa")
TOLERANCE = {"rtol": 0, "atol": 1e-5}
GREEDY = {"do_sample": False, "max_new_tokens": 10, "pad_token_id": 0}


def built(head="Model", backend="sdpa", **facts):
    facts = {"attention_pattern": "prefix", **facts}
    return vivid(getattr(hf_roformer, f"HFRoFormer{head}")(HFRoFormerConfig(**facts, attn_implementation=backend)))


def writer(backend="sdpa", **facts):
    """Return a head whose text depends on what it reads: with smaller weights it would write one word forever."""
    return vivid(built("ForCausalLM", backend, **facts), spread=0.5)


def some_ids(rows=2, length=11):
    return torch.randint(1, 99, (rows, length))


def source_then_target(source: int, target: int) -> list[int]:
    return [0] * source + [1] * target


SEGMENTS = {
    "a source and a target": source_then_target(6, 5),
    "a source alone": [0] * 11,
    "a target alone": [1] * 11,
    "targets between sources": [0, 0, 1, 1, 0, 0, 0, 1, 0, 1, 1],
    "a target first": [1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0],
    "one by one": [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0],
}


def visibility(model, **inputs: Tensor) -> list[list[list[bool]]]:
    """Return who sees whom, row by row, as the weights of the first layer show it."""
    weights = model(**inputs, output_attentions=True).attentions[0]
    return (weights.sum(dim=1) > 0).tolist()


def restricted(table: list[list[bool]], columns: list[int]) -> list[list[bool]]:
    """Keep what the queries and keys of some columns see of each other."""
    return [[table[m][n] for n in columns] for m in columns]


# who sees whom


@pytest.mark.parametrize("name", SEGMENTS)
@torch.no_grad()
def test_a_token_sees_those_that_count_no_more_targets_than_it_does(tiny, name):
    model, segments = built(backend="eager", **tiny), SEGMENTS[name]
    found = visibility(model, input_ids=some_ids(1), token_type_ids=torch.tensor([segments]))
    assert found == [reference.prefixed(segments)]


def test_the_rule_reads_a_source_both_ways_and_a_target_from_the_left():
    """Worked by hand: two of a source, then two of a target."""
    assert reference.prefixed([0, 0, 1, 1]) == [
        [True, True, False, False],
        [True, True, False, False],
        [True, True, True, False],
        [True, True, True, True],
    ]
    assert reference.prefixed([0] * 5) == reference.everywhere(5)
    assert reference.prefixed([1] * 5) == reference.causally(5)


@torch.no_grad()
def test_without_token_types_everything_is_source(tiny):
    model, ids = built(backend="eager", **tiny), some_ids(1)
    assert visibility(model, input_ids=ids) == [reference.everywhere(11)]


@pytest.mark.parametrize("segment_of_pads", [0, 1])
@torch.no_grad()
def test_random_token_types_decide_on_either_side_of_pads_that_are_not_counted(tiny, segment_of_pads):
    model = built(backend="eager", **tiny)
    rows = torch.randint(0, 2, (6, 11))
    mask = torch.ones_like(rows)
    for row, (left, right) in enumerate([(0, 0), (3, 0), (0, 3), (2, 4), (0, 5), (5, 0)]):
        mask[row, :left] = mask[row, 11 - right :] = 0
    rows[mask == 0] = segment_of_pads
    found = visibility(model, input_ids=some_ids(6), token_type_ids=rows, attention_mask=mask)
    for table, segments, seen in zip(found, rows.tolist(), mask.tolist(), strict=True):
        columns = [at for at in range(11) if seen[at]]
        wanted = reference.prefixed(segments, seen=[bool(number) for number in seen])
        # what a pad sees is nobody's concern, but no token sees a pad
        assert [table[m] for m in columns] == [wanted[m] for m in columns]


@torch.no_grad()
def test_a_hole_amid_a_row_is_not_counted(tiny):
    model = built(backend="eager", **tiny)
    # two holes are targets between tokens of a source
    segments, seen = [0, 0, 1, 0, 1, 0, 1, 1, 0, 1, 1], [1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 0]
    found = visibility(
        model,
        input_ids=some_ids(1),
        token_type_ids=torch.tensor([segments]),
        attention_mask=torch.tensor([seen]),
    )
    columns = [at for at in range(11) if seen[at]]
    alone = reference.prefixed([segments[at] for at in columns])
    assert restricted(found[0], columns) == alone


PACKED = {
    "side by side": [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1],
    "one among the other": [4, 4, 2, 4, 2, 2, 4, 4, 2, 4, 2],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("pack", PACKED)
@torch.no_grad()
def test_packed_sequences_count_their_own_targets(tiny, pack, masked, backend):
    sequences, ids, kinds = torch.tensor([PACKED[pack]] * 3), some_ids(3), torch.randint(0, 2, (3, 11))
    mask = torch.ones_like(ids)
    if masked:
        mask[:, [0, 3, 8]] = 0
    inputs = {"input_ids": ids, "token_type_ids": kinds, "sequence_ids": sequences, "attention_mask": mask}
    model = built(backend=backend, **tiny)
    states = model(**inputs).last_hidden_state.double()
    tables = visibility(built(backend="eager", **tiny), **inputs)
    for row, segments in enumerate(kinds.tolist()):
        wanted = reference.prefixed(segments, [bool(number) for number in mask[row].tolist()], PACKED[pack])
        for name in set(PACKED[pack]):
            columns = [at for at in range(11) if PACKED[pack][at] == name and mask[row, at]]
            assert [tables[row][m] for m in columns] == [wanted[m] for m in columns]
            expected = reference.encode(
                model.state_dict(),
                ids[row, columns].tolist(),
                heads=4,
                allowed=restricted(wanted, columns),
                positions=columns,
                segments=[segments[at] for at in columns],
            )
            torch.testing.assert_close(states[row, columns], expected, **TOLERANCE)


@pytest.mark.parametrize("backend", BACKENDS)
@torch.no_grad()
def test_positions_that_start_over_start_a_new_count(tiny, backend):
    model, ids = built(backend=backend, **tiny), some_ids(1)
    kinds = torch.tensor([source_then_target(3, 2) + source_then_target(4, 2)])
    positions = torch.tensor([[*range(5), *range(6)]])
    packed = model(ids, token_type_ids=kinds, position_ids=positions).last_hidden_state
    parts = [model(ids[:, a:b], token_type_ids=kinds[:, a:b]).last_hidden_state for a, b in ((0, 5), (5, 11))]
    torch.testing.assert_close(packed, torch.cat(parts, dim=1), **TOLERANCE)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SEGMENTS)
@torch.no_grad()
def test_the_states_are_those_of_the_formulas(tiny, name, backend):
    model, ids, segments = built(backend=backend, **tiny), some_ids(1), SEGMENTS[name]
    expected = reference.encode(
        model.state_dict(),
        ids[0].tolist(),
        heads=4,
        allowed=reference.prefixed(segments),
        positions=range(11),
        segments=segments,
    )
    got = model(ids, token_type_ids=torch.tensor([segments])).last_hidden_state[0]
    torch.testing.assert_close(got.double(), expected, **TOLERANCE)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@torch.no_grad()
def test_the_flex_backend_hides_the_same(tiny):
    ids, kinds = some_ids(2), torch.tensor([source_then_target(4, 7), SEGMENTS["targets between sources"]])
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    wanted, got = (
        built(backend=backend, **tiny)(ids, token_type_ids=kinds, attention_mask=mask).last_hidden_state
        for backend in ("eager", "flex_attention")
    )
    torch.testing.assert_close(got[mask.bool()], wanted[mask.bool()], **TOLERANCE)


@pytest.mark.parametrize("backend", BACKENDS)
@torch.no_grad()
def test_later_target_tokens_never_change_earlier_ones(tiny, backend):
    model, ids, kinds = built("ForCausalLM", backend, **tiny), some_ids(), torch.tensor([source_then_target(5, 6)] * 2)
    before = model(ids, token_type_ids=kinds).logits
    for at in range(5, 11):
        other = ids.clone()
        other[:, at] = 1 + other[:, at] % 97
        after = model(other, token_type_ids=kinds).logits
        torch.testing.assert_close(after[:, :at], before[:, :at], **TOLERANCE)
        assert all((after[:, later] - before[:, later]).abs().max() > 1e-3 for later in range(at, 11))


@torch.no_grad()
def test_a_source_sees_itself_both_ways_and_a_causal_model_does_not(tiny):
    ids, kinds = some_ids(1), torch.tensor([source_then_target(5, 6)])
    other = ids.clone()
    other[:, 4] = 1 + other[:, 4] % 97
    for pattern, moves in (("prefix", True), ("causal", False)):
        model = built("ForCausalLM", **tiny, attention_pattern=pattern)
        change = (model(other, token_type_ids=kinds).logits - model(ids, token_type_ids=kinds).logits)[:, 0]
        assert (change.abs().max() > 1e-3) == moves


@torch.no_grad()
def test_what_writes_follows_the_pattern_and_what_reads_whole_rows_reads_them_both_ways(tiny):
    ids, kinds = some_ids(), torch.tensor([source_then_target(6, 5)] * 2)
    other = ids.clone()
    other[:, 8:] = 5
    readers = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
    readers += ("ForPreTraining", "ForSentenceEmbedding")
    for head in ("Model", "ForCausalLM", *readers):
        model = built(head, **tiny)
        change = (model(other, token_type_ids=kinds)[0] - model(ids, token_type_ids=kinds)[0])[:, 0]
        # the first token is a source: no target tells it anything
        assert (change.abs().max() > 1e-3) == (head in readers), head


def test_an_unknown_pattern_is_refused(tiny):
    with pytest.raises(StrictDataclassFieldValidationError, match=r"attention_pattern.*'unilm'"):
        HFRoFormerConfig(**tiny, attention_pattern="unilm")


def test_a_flash_kernel_and_an_assistant_are_refused(tiny):
    model, ids = built("ForCausalLM", **tiny), some_ids(rows=1)
    with pytest.raises(ValueError, match="'prefix' has no assisted generation: leave the assistant out"):
        model.generate(ids, assistant_model=model, do_sample=False, max_new_tokens=3, pad_token_id=0)
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="flash_attention_2 has no attention_pattern 'prefix': load with"):
        model(ids, token_type_ids=torch.ones_like(ids))


# with a cache


@pytest.mark.parametrize("backend", BACKENDS)
@torch.no_grad()
def test_tokens_after_a_cached_source_score_as_the_whole_row_does(tiny, backend):
    model, ids = built("ForCausalLM", backend, **tiny), some_ids(3, 14)
    kinds = torch.tensor([source_then_target(6, 8)] * 3)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    mask[2, :5] = 0
    kinds[mask == 0] = 1
    whole = model(ids, token_type_ids=kinds, attention_mask=mask).logits
    cache, steps = DynamicCache(config=model.config), []
    for start, stop in ((0, 6), (6, 7), (7, 10), (10, 11), (11, 14)):
        inputs = {"attention_mask": mask[:, :stop], CACHE_ARGUMENT: cache}
        steps.append(model(ids[:, start:stop], token_type_ids=kinds[:, start:stop], **inputs).logits)
    torch.testing.assert_close(torch.cat(steps, dim=1)[mask.bool()], whole[mask.bool()], **TOLERANCE)


@torch.no_grad()
def test_a_source_cannot_be_continued_from_a_cache_that_has_not_seen_it(tiny):
    """What is cached of a source was computed without the rest of it."""
    model, ids, cache = built("ForCausalLM", **tiny), some_ids(), DynamicCache()
    model(ids[:, :5], token_type_ids=torch.zeros_like(ids[:, :5]), **{CACHE_ARGUMENT: cache})
    with pytest.raises(ValueError, match="source"):
        model(ids[:, 5:], token_type_ids=torch.zeros_like(ids[:, 5:]), **{CACHE_ARGUMENT: cache})


def written_by_hand(model, ids: Tensor, mask: Tensor, kinds: Tensor, steps: int) -> Tensor:
    """Write greedily without a cache, from whole rows each time, every new token a target."""
    for _ in range(steps):
        scores = model(ids, attention_mask=mask, token_type_ids=kinds, use_cache=False).logits[:, -1]
        ids = torch.cat((ids, scores.argmax(-1, keepdim=True)), dim=1)
        mask, kinds = (torch.cat((part, torch.ones_like(part[:, :1])), dim=1) for part in (mask, kinds))
    return ids


def prompts_of_different_lengths() -> tuple[Tensor, Tensor, Tensor]:
    ids = some_ids(3, 8)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    mask[2, :6] = 0
    kinds = torch.zeros_like(ids)
    # the last prompt has a first target token already, and whatever stands under the pads
    kinds[2, 7] = 1
    kinds[mask == 0] = 1
    return ids, mask, kinds


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rotary_value", [False, True, "relative"])
@torch.no_grad()
def test_greedy_text_with_a_cache_is_that_without_and_that_by_hand(tiny, rotary_value, backend):
    model = writer(backend, **tiny, rotary_value=rotary_value)
    ids, mask, kinds = prompts_of_different_lengths()
    inputs = {"attention_mask": mask, "token_type_ids": kinds}
    with_cache, without = (model.generate(ids, **inputs, use_cache=cached, **GREEDY) for cached in (True, False))
    assert torch.equal(with_cache, without)
    assert torch.equal(with_cache, written_by_hand(model, ids, mask, kinds, 10))
    assert len(set(with_cache[:, 8:].flatten().tolist())) > 3


@torch.no_grad()
def test_greedy_text_is_that_of_the_formulas(tiny):
    model = writer(**tiny)
    row = some_ids(1, 5)
    written, weights = row[0].tolist(), model.state_dict()
    for _ in range(4):
        segments = source_then_target(5, len(written) - 5)
        hidden = reference.encode(
            model.roformer.state_dict(),
            written,
            heads=4,
            allowed=reference.prefixed(segments),
            positions=range(len(written)),
            segments=segments,
        )
        written.append(int(reference.language_scores(weights, hidden)[-1].argmax()))
    kinds = torch.zeros_like(row)
    inputs = {"attention_mask": torch.ones_like(row), "token_type_ids": kinds}
    assert model.generate(row, **inputs, **{**GREEDY, "max_new_tokens": 4})[0].tolist() == written


@torch.no_grad()
def test_a_padded_prompt_is_continued_as_it_is_alone(tiny):
    model = writer(**tiny)
    ids, mask, kinds = prompts_of_different_lengths()
    together = model.generate(ids, attention_mask=mask, token_type_ids=kinds, **GREEDY)
    for row in range(3):
        seen = mask[row].bool()
        prompt, kind = ids[row, seen][None], kinds[row, seen][None]
        alone = model.generate(prompt, attention_mask=torch.ones_like(prompt), token_type_ids=kind, **GREEDY)
        assert torch.equal(together[row, 8:], alone[0, prompt.shape[1] :])


@torch.no_grad()
def test_a_prompt_without_token_types_is_a_source(tiny):
    model, ids = writer(**tiny), some_ids(2, 6)
    mask = torch.ones_like(ids)
    named = model.generate(ids, attention_mask=mask, token_type_ids=torch.zeros_like(ids), **GREEDY)
    for cached in (True, False):
        assert torch.equal(model.generate(ids, attention_mask=mask, use_cache=cached, **GREEDY), named)


@torch.no_grad()
def test_what_is_written_is_a_target_and_so_another_text_than_a_causal_model_writes(tiny):
    ids = some_ids(4, 6)
    inputs = {"attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    prefix = writer(**tiny).generate(ids, **inputs, **GREEDY)
    causal = writer(**tiny, attention_pattern="causal").generate(ids, **inputs, **GREEDY)
    assert not torch.equal(prefix, causal)


@torch.no_grad()
def test_beams_with_a_cache_write_what_they_write_without(tiny):
    model = writer(**tiny)
    ids, mask, kinds = prompts_of_different_lengths()
    inputs = {"attention_mask": mask, "token_type_ids": kinds, "num_beams": 3, "num_return_sequences": 2}
    with_cache, without = (model.generate(ids, **inputs, use_cache=cached, **GREEDY) for cached in (True, False))
    assert torch.equal(with_cache, without)
    assert with_cache.shape == (6, 18)


@torch.no_grad()
def test_sampled_texts_of_one_prompt_with_a_cache_are_those_without(tiny):
    model = writer(**tiny)
    ids, mask, kinds = prompts_of_different_lengths()
    texts = []
    for cached in (True, False):
        torch.manual_seed(7)
        options = {**GREEDY, "do_sample": True, "top_k": 5, "num_return_sequences": 3, "use_cache": cached}
        texts.append(model.generate(ids, attention_mask=mask, token_type_ids=kinds, **options))
    assert torch.equal(*texts)
    assert len({tuple(text) for text in texts[0].tolist()}) > 3


@torch.no_grad()
def test_a_static_cache_writes_what_a_growing_one_writes(tiny):
    model = writer(**tiny)
    ids, mask, kinds = prompts_of_different_lengths()
    # without pads the library hands no mask on
    for seen in (mask, torch.ones_like(mask)):
        inputs = {"attention_mask": seen, "token_type_ids": kinds}
        growing = model.generate(ids, **inputs, **GREEDY)
        assert torch.equal(growing, model.generate(ids, **inputs, cache_implementation="static", **GREEDY))


@torch.no_grad()
def test_embeddings_start_a_text_as_their_ids_do(tiny):
    model = writer(**tiny)
    ids, mask, kinds = prompts_of_different_lengths()
    inputs = {"attention_mask": mask, "token_type_ids": kinds}
    from_ids = model.generate(ids, **inputs, **GREEDY)[:, 8:]
    embeds = model.get_input_embeddings()(ids)
    assert torch.equal(model.generate(inputs_embeds=embeds, **inputs, **GREEDY), from_ids)


# learning


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_loss_is_that_of_target_tokens_alone(tiny, side):
    model, ids = built("ForCausalLM", **tiny), some_ids(1, 9)
    segments = SEGMENTS["targets between sources"][:9]
    hidden = reference.encode(
        model.roformer.state_dict(),
        ids[0].tolist(),
        heads=4,
        allowed=reference.prefixed(segments),
        positions=range(9),
        segments=segments,
    )
    scores = reference.language_scores(model.state_dict(), hidden)
    expected = reference.next_token_loss(scores, ids[0].tolist(), [bool(segment) for segment in segments])
    pad = torch.full((1, 3), 5)
    parts = {"input_ids": (ids, pad), "labels": (ids, pad), "token_type_ids": (torch.tensor([segments]), pad * 0 + 1)}
    parts["attention_mask"] = (torch.ones_like(ids), pad * 0)
    inputs = {key: torch.cat(pair if side == "right" else pair[::-1], dim=1) for key, pair in parts.items()}
    torch.testing.assert_close(model(**inputs).loss.double(), expected, **TOLERANCE)


def test_labels_on_source_tokens_cost_nothing(tiny):
    model, ids, kinds = built("ForCausalLM", **tiny), some_ids(2), torch.tensor([source_then_target(6, 5)] * 2)
    without = ids.clone()
    without[:, :6] = -100
    losses = [model(ids, token_type_ids=kinds, labels=labels).loss for labels in (ids, without)]
    torch.testing.assert_close(*losses)
    causal = built("ForCausalLM", **tiny, attention_pattern="causal")
    sums = [causal(ids, labels=labels, num_items_in_batch=1).loss for labels in (ids, without)]
    assert sums[0] > 1.5 * sums[1]
    nothing = model(ids, token_type_ids=torch.zeros_like(ids), labels=ids).loss
    assert nothing.item() == 0
    nothing.backward()


def test_labels_need_to_know_the_target(tiny):
    ids = some_ids()
    with pytest.raises(ValueError, match="token_type_ids"):
        built("ForCausalLM", **tiny)(ids, labels=ids)


def test_no_label_is_learnt_from_a_column_that_sees_it(tiny):
    """The gradient of a label's cost to its own embedding, read as an input, is nothing."""
    model = built("ForCausalLM", **{**tiny, "tie_word_embeddings": False})
    ids = torch.arange(1, 12)[None]
    for segments in SEGMENTS.values():
        kinds = torch.tensor([segments])
        for at in range(1, 11):
            embeds = model.get_input_embeddings()(ids).detach().requires_grad_()
            labels = torch.full_like(ids, -100)
            labels[0, at] = ids[0, at]
            loss = model(inputs_embeds=embeds, token_type_ids=kinds, labels=labels).loss
            (gradient,) = torch.autograd.grad(loss, embeds)
            assert torch.count_nonzero(gradient[0, at]) == 0


def test_packed_targets_cost_what_they_cost_apart(tiny):
    model = built("ForCausalLM", **tiny)
    lengths = ((3, 4), (5, 2))
    rows = [(some_ids(1, a + b), torch.tensor([source_then_target(a, b)])) for a, b in lengths]
    sums = [model(ids, token_type_ids=kinds, labels=ids, num_items_in_batch=1).loss for ids, kinds in rows]
    ids, kinds = (torch.cat(parts, dim=1) for parts in zip(*rows, strict=True))
    sequences = torch.tensor([[0] * 7 + [1] * 7])
    packed = model(ids, token_type_ids=kinds, sequence_ids=sequences, labels=ids).loss
    torch.testing.assert_close(packed, sum(sums) / 6, **TOLERANCE)


# from a published folder


@pytest.fixture(scope="module")
def sim_folder(tmp_path_factory):
    variant = VARIANTS["sim"]
    return write_folder(tmp_path_factory.mktemp("sim"), variant, published_weights(variant))


@torch.no_grad()
def test_a_published_sim_writes_when_told_its_pattern_and_a_saved_one_need_not_be_told(sim_folder, tmp_path):
    told = HFRoFormerForCausalLM.from_pretrained(sim_folder, attention_pattern="prefix")
    ids = torch.randint(1, 60, (2, 6))
    kinds, mask = torch.zeros_like(ids), torch.ones_like(ids)
    mask[1, :2] = 0
    inputs = {"attention_mask": mask, "token_type_ids": kinds}
    text = told.generate(ids, **inputs, **GREEDY)
    assert torch.equal(text, written_by_hand(told, ids, mask, kinds, 10))
    told.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["attention_pattern"] == "prefix"
    again = HFRoFormerForCausalLM.from_pretrained(tmp_path)
    assert again.config.attention_pattern == "prefix"
    assert torch.equal(again.generate(ids, **inputs, **GREEDY), text)
    untold = HFRoFormerForCausalLM.from_pretrained(sim_folder)
    assert not torch.equal(untold.generate(ids, **inputs, **GREEDY), text)


@torch.no_grad()
def test_the_body_of_a_saved_writer_keeps_its_pattern(sim_folder, tmp_path):
    HFRoFormerForCausalLM.from_pretrained(sim_folder, attention_pattern="prefix").save_pretrained(tmp_path)
    body = HFRoFormerModel.from_pretrained(tmp_path, attn_implementation="eager")
    kinds = torch.tensor([source_then_target(3, 4)])
    assert visibility(body, input_ids=torch.arange(1, 8)[None], token_type_ids=kinds) == [
        reference.prefixed(source_then_target(3, 4))
    ]
