"""Generation: the cache changes the speed and nothing else."""

import contextlib

import pytest
import torch
from conftest import loud
from transformers import DynamicCache, EncoderDecoderCache, EncoderDecoderModel, StaticCache
from variants import vivid

from hf_roformer import HFRoFormerConfig, HFRoFormerForCausalLM, HFRoFormerForMaskedLM, HFRoFormerModel
from hf_roformer.attention import CACHE_ARGUMENT

TOLERANCE = {"rtol": 0, "atol": 1e-5}
GREEDY = {"do_sample": False, "max_new_tokens": 12, "pad_token_id": 0}


def writer(backend="sdpa", **facts):
    # the words vary: one and the same word over and over would hide a wrong cache
    return vivid(HFRoFormerForCausalLM(HFRoFormerConfig(**facts, attn_implementation=backend)), spread=0.3)


def prompts(rows=3, length=7):
    return torch.randint(1, 99, (rows, length))


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("rotary_value", [False, True, "relative"])
@torch.no_grad()
def test_decoding_token_by_token_scores_as_the_whole_row_does(tiny, backend, rotary_value):
    model = writer(backend, **tiny, rotary_value=rotary_value)
    ids = prompts(length=20)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    mask[2, 3:5] = 0
    whole = model(ids, attention_mask=mask).logits
    cache, steps = DynamicCache(config=model.config), []
    for start, stop in ((0, 6), (6, 7), (7, 8), (8, 14), (14, 20)):
        out = model(ids[:, start:stop], attention_mask=mask[:, :stop], **{CACHE_ARGUMENT: cache})
        steps.append(out.logits)
    torch.testing.assert_close(torch.cat(steps, dim=1)[mask.bool()], whole[mask.bool()], **TOLERANCE)


@torch.no_grad()
def test_both_names_of_the_cache_are_one(tiny):
    model, ids = writer(**tiny), prompts()
    whole = model(ids).logits[:, -1:]
    for name in ("cache", "past_key_values"):
        cache = DynamicCache(config=model.config)
        is_old = name == "past_key_values" and CACHE_ARGUMENT == "cache"
        with pytest.warns(FutureWarning, match="calls it `cache`") if is_old else contextlib.nullcontext():
            model(ids[:, :-1], **{name: cache})
            torch.testing.assert_close(model(ids[:, -1:], **{name: cache}).logits, whole, **TOLERANCE)
    with pytest.raises(ValueError, match="two names of one argument"):
        model(ids, cache=DynamicCache(), past_key_values=DynamicCache())


@pytest.mark.parametrize("beams", [1, 3])
@torch.no_grad()
def test_generating_with_a_cache_writes_what_it_writes_without(tiny, beams):
    model, ids = writer(**tiny), prompts()
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    kinds = ids % 2
    written = [
        model.generate(ids, attention_mask=mask, token_type_ids=kinds, num_beams=beams, use_cache=cached, **GREEDY)
        for cached in (True, False)
    ]
    assert torch.equal(*written)
    assert written[0].shape == (3, 19)


@pytest.mark.parametrize("rotary_value", [False, "relative"])
@torch.no_grad()
def test_a_padded_prompt_is_continued_as_it_is_alone(tiny, rotary_value):
    model, ids = writer(**tiny, rotary_value=rotary_value), prompts()
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    together = model.generate(ids, attention_mask=mask, **GREEDY)
    alone = model.generate(ids[1:2, 3:], attention_mask=torch.ones(1, 4, dtype=torch.long), **GREEDY)
    assert torch.equal(together[1, 7:], alone[0, 4:])


@torch.no_grad()
def test_after_the_prompt_each_step_sees_one_token(tiny, monkeypatch):
    model, seen = writer(**tiny), []
    forward = model.roformer.forward

    def watched(*args, **kwargs):
        ids = args[0] if args else kwargs["input_ids"]
        seen.append(ids.shape[1])
        return forward(*args, **kwargs)

    monkeypatch.setattr(model.roformer, "forward", watched)
    model.generate(prompts(rows=1, length=5), **{**GREEDY, "max_new_tokens": 4})
    assert seen == [5, 1, 1, 1]


@torch.no_grad()
def test_embeddings_start_a_text_as_their_ids_do(tiny):
    model, ids = writer(**tiny), prompts()
    embeds = model.get_input_embeddings()(ids)
    mask = torch.ones_like(ids)
    from_ids = model.generate(ids, attention_mask=mask, **GREEDY)[:, 7:]
    assert torch.equal(model.generate(inputs_embeds=embeds, attention_mask=mask, **GREEDY), from_ids)


@torch.no_grad()
def test_a_static_cache_writes_what_a_growing_one_writes(tiny):
    model, ids = writer(**tiny), prompts()
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    growing = model.generate(ids, attention_mask=mask, **GREEDY)
    static = model.generate(ids, attention_mask=mask, cache_implementation="static", **GREEDY)
    assert torch.equal(growing, static)


@torch.no_grad()
def test_a_mask_over_the_tokens_so_far_serves_a_static_cache(tiny):
    model, ids = writer(**tiny), prompts()
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    whole = model(ids, attention_mask=mask).logits
    cache = StaticCache(config=model.config, max_cache_len=12)
    seen = [model(ids[:, :4], attention_mask=mask[:, :4], **{CACHE_ARGUMENT: cache}).logits]
    for end in range(5, ids.shape[1] + 1):
        step = ids[:, end - 1 : end]
        seen.append(model(step, attention_mask=mask[:, :end], **{CACHE_ARGUMENT: cache}).logits)
    real = mask.bool()
    torch.testing.assert_close(torch.cat(seen, dim=1)[real], whole[real], **TOLERANCE)
    with pytest.raises(ValueError, match=r"attention_mask has the shape \[\d+, 3\]"):
        model(ids[:, :1], attention_mask=mask[:, :3], **{CACHE_ARGUMENT: cache})


@torch.no_grad()
def test_without_values_a_static_cache_takes_a_mask_of_all_its_columns(tiny):
    with torch.device("meta"):
        model = HFRoFormerForCausalLM(HFRoFormerConfig(**tiny))
        cache, ids = StaticCache(config=model.config, max_cache_len=12), torch.ones(2, 4, dtype=torch.long)
        for new in (ids, ids[:, :1]):
            out = model(new, attention_mask=torch.ones(2, 12, dtype=torch.long), **{CACHE_ARGUMENT: cache})
            assert (out.logits.shape, out.logits.is_meta) == ((2, new.shape[1], 99), True)
        # how many of them are filled is one of the values
        with pytest.raises(ValueError, match=r"attention_mask has the shape \[2, 6\]"):
            model(ids[:, :1], attention_mask=torch.ones(2, 6, dtype=torch.long), **{CACHE_ARGUMENT: cache})


@torch.no_grad()
def test_a_body_that_read_both_ways_writes_from_the_left(tiny):
    read = HFRoFormerConfig(**tiny, attention_pattern="bidirectional")
    model, ids = vivid(HFRoFormerForCausalLM(read)), prompts()
    torch.testing.assert_close(model(ids[:, :4]).logits, model(ids).logits[:, :4], **TOLERANCE)
    # the config of the body that was read is another's
    assert (read.pattern, model.config.pattern) == ("bidirectional", "causal")


@pytest.mark.parametrize("layers", [1, 2])
@torch.no_grad()
def test_an_assistant_changes_no_token_and_one_that_guesses_right_saves_steps(tiny, layers):
    model, ids, steps = writer(**tiny), prompts(rows=1), []
    alone = model.generate(ids, **GREEDY)
    assistant = HFRoFormerForCausalLM(HFRoFormerConfig(**{**tiny, "num_hidden_layers": layers})).eval()
    # the first layer alone may guess wrong each time
    assistant.load_state_dict(model.state_dict(), strict=layers == 2)
    model.roformer.register_forward_hook(lambda *_: steps.append(1))
    assert torch.equal(model.generate(ids, assistant_model=assistant, **GREEDY), alone)
    assert len(steps) <= GREEDY["max_new_tokens"] // layers


@torch.no_grad()
def test_a_text_grows_past_the_trained_length(tiny):
    model = writer(**{**tiny, "max_position_embeddings": 8})
    longer = writer(**tiny)
    ids = prompts(rows=1)
    options = {**GREEDY, "max_new_tokens": 40}
    assert torch.equal(model.generate(ids, **options), longer.generate(ids, **options))


@torch.no_grad()
def test_only_the_scores_asked_for_are_computed(tiny):
    model, ids = writer(**tiny), prompts()
    whole = model(ids).logits
    torch.testing.assert_close(model(ids, logits_to_keep=2).logits, whole[:, -2:], **TOLERANCE)
    columns = torch.tensor([0, 4])
    torch.testing.assert_close(model(ids, logits_to_keep=columns).logits, whole[:, columns], **TOLERANCE)
    with pytest.raises(ValueError, match="leave logits_to_keep out"):
        model(ids, labels=ids, logits_to_keep=1)


@torch.no_grad()
def test_a_four_dimensional_mask_cannot_show_a_causal_model_the_future(tiny):
    model, ids = writer(**tiny), prompts()
    everything = torch.ones(3, 1, 7, 7, dtype=torch.bool)
    torch.testing.assert_close(model(ids, attention_mask=everything).logits, model(ids).logits, **TOLERANCE)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"sequence_ids": torch.zeros(3, 1, dtype=torch.long)}, "cannot continue a cache"),
        ({"attention_mask": torch.ones(3, 1, 1, 7, dtype=torch.bool)}, "pass position_ids"),
        ({"attention_mask": torch.ones(3, 1)}, r"\[3, 1\].*\[3, 7\]"),
    ],
)
@torch.no_grad()
def test_what_a_cache_cannot_know_is_refused(tiny, inputs, words):
    model, ids, cache = writer(**tiny), prompts(), DynamicCache()
    model(ids[:, :-1], cache=cache)
    with pytest.raises(ValueError, match=words):
        model(ids[:, -1:], cache=cache, **inputs)


@torch.no_grad()
def test_an_encoder_reads_a_prefix_from_a_cache(tiny):
    """Prefix tuning puts trained keys and values before every row of an encoder."""
    body = loud(HFRoFormerModel(HFRoFormerConfig(**tiny)))
    ids, cache = prompts(), DynamicCache()
    keys = [torch.randn(3, 4, 2, 8) for _ in range(4)]
    for layer in range(2):
        cache.update(keys[2 * layer], keys[2 * layer + 1], layer)
    moved = body(ids, attention_mask=torch.ones(3, 9, dtype=torch.long), cache=cache).last_hidden_state
    assert moved.shape == (3, 7, 32)
    assert (moved - body(ids).last_hidden_state).abs().max() > 1e-3


@torch.no_grad()
def test_a_decoder_reads_an_encoder_with_and_without_a_cache(tiny):
    decoder = writer(**tiny, is_decoder=True, add_cross_attention=True)
    states, ids = torch.randn(3, 6, 32), prompts()
    seen = torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [0] * 2 + [1] * 4])
    inputs = {"encoder_hidden_states": states, "encoder_attention_mask": seen}
    whole = decoder(ids, **inputs, use_cache=False).logits
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    parts = [decoder(ids[:, :4], cache=cache, **inputs), decoder(ids[:, 4:], cache=cache, **inputs)]
    torch.testing.assert_close(torch.cat([part.logits for part in parts], dim=1), whole, **TOLERANCE)
    # what is hidden of the encoder has no say
    inputs["encoder_hidden_states"] = torch.where(seen.bool()[..., None], states, 9.0)
    torch.testing.assert_close(decoder(ids, **inputs, use_cache=False).logits, whole, **TOLERANCE)


@pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces:FutureWarning")
@torch.no_grad()
def test_the_encoder_decoder_wrapper_generates_the_same_with_a_cache_as_without(tiny):
    encoder = loud(HFRoFormerModel(HFRoFormerConfig(**tiny)))
    decoder = writer(**tiny, is_decoder=True, add_cross_attention=True)
    model = EncoderDecoderModel(encoder=encoder, decoder=decoder).eval()
    options = {**GREEDY, "decoder_start_token_id": 1}
    ids = prompts(length=9)
    written = [model.generate(ids, attention_mask=torch.ones_like(ids), use_cache=c, **options) for c in (True, False)]
    assert torch.equal(*written)
    model.config.decoder_start_token_id, model.config.pad_token_id = 1, 0
    assert model(input_ids=ids, labels=prompts(length=7)).loss.isfinite()


def test_a_masked_head_does_not_become_causal_by_use_cache(tiny):
    model = loud(HFRoFormerForMaskedLM(HFRoFormerConfig(**tiny)))
    ids = prompts()
    torch.testing.assert_close(model(ids, use_cache=True).logits, model(ids).logits, **TOLERANCE)
