"""Sentence vectors of the sim models: linear on the first token, of length one, taught by who belongs together."""

import itertools

import pytest
import reference
import torch
from conftest import losses_of_steps
from torch import Tensor
from transformers import AutoModel, AutoModelForTextEncoding
from variants import VARIANTS, published_weights, vivid, write_folder

from hf_roformer import HFRoFormerConfig, HFRoFormerForSentenceEmbedding, HFRoFormerModel
from hf_roformer.losses import contrastive_loss

BACKENDS = ("eager", "sdpa")
TOLERANCE = {"rtol": 0, "atol": 1e-5}
POOLINGS = (None, "first", "last", "mean")
every_pooling = pytest.mark.parametrize("pooling", POOLINGS)


def built(backend="sdpa", **facts):
    return vivid(HFRoFormerForSentenceEmbedding(HFRoFormerConfig(**facts, attn_implementation=backend)))


def some_ids(rows=4, length=9):
    return torch.randint(1, 99, (rows, length))


def padded(ids: Tensor, left: int, right: int) -> dict[str, Tensor]:
    pads = [torch.randint(1, 99, (len(ids), width)) for width in (left, right)]
    mask = torch.cat((pads[0] * 0, torch.ones_like(ids), pads[1] * 0), dim=1)
    return {"input_ids": torch.cat((pads[0], ids, pads[1]), dim=1), "attention_mask": mask}


def vectors_of(weights: dict[str, Tensor], ids: Tensor, pooling: str | None) -> Tensor:
    """Return the formulas' vectors of whole rows."""
    body = {name.removeprefix("roformer."): value for name, value in weights.items()}
    length = ids.shape[1]
    hidden = [
        reference.encode(body, row, heads=4, allowed=reference.everywhere(length), positions=range(length))
        for row in ids.tolist()
    ]
    return torch.stack([reference.sentence_vector(weights, states, pooling) for states in hidden])


# vectors


@pytest.mark.parametrize("backend", BACKENDS)
@every_pooling
@torch.no_grad()
def test_vectors_are_those_of_the_formulas_and_have_the_length_one(tiny, pooling, backend):
    model, ids = built(backend, **tiny, classifier_pooling=pooling), some_ids()
    found = model(ids).embeddings
    assert found.shape == (4, 32)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(4), **TOLERANCE)
    torch.testing.assert_close(found.double(), vectors_of(model.state_dict(), ids, pooling), **TOLERANCE)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("left", "right"), [(0, 5), (5, 0), (3, 4)])
@every_pooling
@torch.no_grad()
def test_padding_on_either_side_changes_no_vector(tiny, pooling, left, right, backend):
    model, ids = built(backend, **tiny, classifier_pooling=pooling), some_ids()
    torch.testing.assert_close(model(**padded(ids, left, right)).embeddings, model(ids).embeddings, **TOLERANCE)


@torch.no_grad()
def test_the_pooler_is_linear_and_another_activation_is_heard(tiny):
    model, ids = built(**tiny), some_ids()
    pooler = model.roformer.pooler.dense
    first = model.roformer(ids).last_hidden_state[:, 0]
    line = first @ pooler.weight.T + pooler.bias
    torch.testing.assert_close(model(ids).embeddings, line / line.norm(dim=1, keepdim=True), **TOLERANCE)
    bent = built(**tiny, pooler_activation="tanh")(ids).embeddings
    torch.testing.assert_close(bent, line.tanh() / line.tanh().norm(dim=1, keepdim=True), **TOLERANCE)
    assert (bent - model(ids).embeddings).abs().max() > 1e-2


@torch.no_grad()
def test_the_poolings_give_different_vectors(tiny):
    ids = some_ids()
    found = [built(**tiny, classifier_pooling=pooling)(ids).embeddings for pooling in POOLINGS]
    assert all((a - b).abs().max() > 1e-2 for a, b in itertools.combinations(found, 2))


def test_only_the_published_pooling_has_a_pooler(tiny):
    for pooling in POOLINGS:
        names = {name for name, _ in built(**tiny, classifier_pooling=pooling).named_parameters() if "pooler" in name}
        assert names == (set() if pooling else {"roformer.pooler.dense.weight", "roformer.pooler.dense.bias"})


@torch.no_grad()
def test_a_packed_row_gives_the_vector_of_its_first_sequence(tiny):
    model, ids = built(**tiny), some_ids(2)
    sequences = torch.tensor([[0] * 4 + [1] * 5] * 2)
    torch.testing.assert_close(
        model(ids, sequence_ids=sequences).embeddings, model(ids[:, :4]).embeddings, **TOLERANCE
    )


@torch.no_grad()
def test_segments_and_embeddings_are_read(tiny):
    model, ids = built(**tiny), some_ids(2)
    segments = torch.tensor([[0] * 4 + [1] * 5] * 2)
    found = model(ids, token_type_ids=segments).embeddings
    assert (found - model(ids).embeddings).abs().max() > 1e-2
    embeds = model.get_input_embeddings()(ids)
    torch.testing.assert_close(model(inputs_embeds=embeds, token_type_ids=segments).embeddings, found, **TOLERANCE)


@torch.no_grad()
def test_states_and_weights_are_returned_on_request_and_a_tuple_holds_the_same(tiny):
    model, ids = built(**tiny), some_ids()
    out = model(ids, output_hidden_states=True, output_attentions=True)
    assert [tuple(state.shape) for state in out.hidden_states] == [(4, 9, 32)] * 3
    assert [tuple(weights.shape) for weights in out.attentions] == [(4, 4, 9, 9)] * 2
    assert torch.equal(model(ids, return_dict=False)[0], model(ids).embeddings)


def test_half_precision_vectors_still_have_the_length_one(tiny):
    model = built(**tiny).to(torch.bfloat16)
    lengths = model(some_ids()).embeddings.float().norm(dim=1)
    assert (lengths - 1).abs().max() < 2**-7


# likeness


def test_a_row_without_a_token_has_the_vector_0_and_leaves_every_gradient_a_number(tiny):
    shape = {**tiny, "norm_type": "rms_norm", "use_bias": False}
    model = vivid(HFRoFormerForSentenceEmbedding(HFRoFormerConfig(**shape))).half().train()
    ids, mask = torch.randint(1, 99, (3, 5)), torch.ones(3, 5, dtype=torch.long)
    mask[1] = 0
    outputs = model(ids, attention_mask=mask, labels=torch.zeros(3, dtype=torch.long))
    outputs.loss.backward()
    assert not outputs.embeddings[1].any()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@torch.no_grad()
def test_similarity_is_the_cosine_of_each_with_each(tiny):
    model = built(**tiny)
    one, other = torch.randn(3, 32) * 5, torch.randn(4, 32)
    found = model.similarity(one, other)
    assert found.shape == (3, 4)
    torch.testing.assert_close(found.double(), reference.cosine(one, other), **TOLERANCE)
    vectors = model(some_ids()).embeddings
    torch.testing.assert_close(model.similarity(vectors, vectors).diagonal(), torch.ones(4), **TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_rounds_no_cosine(tiny, dtype):
    model, ids, labels = built(**tiny), some_ids(), torch.tensor([0, 0, 1, 1])
    vectors = model(ids).embeddings.detach()
    wanted = reference.contrastive_loss(vectors.double(), labels.tolist(), 20.0)
    with torch.autocast("cpu", dtype):
        likeness, loss = model.similarity(vectors, vectors), contrastive_loss(vectors, labels, 20.0)
        learnt = model(ids, labels=labels).loss
    torch.testing.assert_close(likeness.double(), vectors.double() @ vectors.double().T, **TOLERANCE)
    torch.testing.assert_close(loss.double(), wanted, **TOLERANCE)
    assert learnt.item() == pytest.approx(wanted.item(), rel=0.2)
    learnt.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


# learning

LABELS = {
    "pairs": [0, 0, 1, 1, 2, 2],
    "pairs apart": [3, 7, 5, 7, 3, 5],
    "more than two of a kind": [4, 4, 4, 9, 9, 1],
    "all of a kind": [2, 2, 2, 2, 2, 2],
    "one without a like": [0, 0, 1, 1, 2, 3],
    "some ignored": [0, 0, -100, 1, 1, -100],
    "all but one pair ignored": [-100, 6, -100, -100, 6, -100],
}


@pytest.mark.parametrize("scale", [20.0, 3.0])
@pytest.mark.parametrize("name", LABELS)
def test_the_loss_and_its_gradients_are_those_of_the_double_loop(tiny, name, scale):
    model, ids, labels = built(**tiny, similarity_scale=scale), some_ids(6, 5), LABELS[name]
    leaves = {key: value.detach().double().requires_grad_() for key, value in model.named_parameters()}
    expected = reference.contrastive_loss(vectors_of(leaves, ids, None), labels, scale)
    expected.backward()
    out = model(ids, labels=torch.tensor(labels))
    out.loss.backward()
    assert expected.item() > 0.01
    torch.testing.assert_close(out.loss.double(), expected, **TOLERANCE)
    for key, parameter in model.named_parameters():
        size = leaves[key].grad.abs().max().clamp(min=1)
        torch.testing.assert_close(parameter.grad.double() / size, leaves[key].grad / size, **TOLERANCE)


def test_the_loss_by_hand():
    """Two pairs of vectors in the plane: each anchor has one positive and two others at right angles."""
    vectors = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    expected = torch.log(1 + 2 * torch.exp(torch.tensor(-3.0, dtype=torch.float64)))
    torch.testing.assert_close(reference.contrastive_loss(vectors, [0, 0, 1, 1], scale=3.0), expected)


def test_the_scale_is_that_of_the_published_training(tiny):
    assert HFRoFormerConfig(**tiny).similarity_scale == 20


@pytest.mark.parametrize("labels", [[0, 1, 2, 3, 4, 5], [-100] * 6, [0, -100, -100, 1, 2, 3]])
def test_a_batch_without_a_pair_costs_nothing_and_moves_nothing(tiny, labels):
    model = built(**tiny)
    loss = model(some_ids(6, 5), labels=torch.tensor(labels)).loss
    assert loss.item() == 0
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None and torch.count_nonzero(gradient) == 0 for gradient in gradients)


def test_a_single_row_costs_nothing(tiny):
    loss = built(**tiny)(some_ids(1), labels=torch.tensor([0])).loss
    assert loss.item() == 0
    loss.backward()


def test_ignored_rows_are_no_anchors_but_others_tell_themselves_from_them(tiny):
    model, ids = built(**tiny), some_ids(3, 5)
    labels = torch.tensor([0, 0, -100])
    with_it, without = model(ids, labels=labels).loss, model(ids[:2], labels=labels[:2]).loss
    assert without.item() == pytest.approx(0, abs=1e-6)
    assert with_it.item() > 1e-3


def test_names_and_order_of_the_labels_change_nothing(tiny):
    model, ids = built(**tiny), some_ids(6, 5)
    loss = model(ids, labels=torch.tensor([0, 0, 1, 1, 2, 2])).loss
    for other in ([8, 8, -3, -3, 40000, 40000], [1, 1, 0, 0, 2, 2]):
        torch.testing.assert_close(model(ids, labels=torch.tensor(other)).loss, loss, rtol=0, atol=0)
    order = torch.tensor([5, 2, 0, 3, 1, 4])
    shuffled = model(ids[order], labels=torch.tensor([0, 0, 1, 1, 2, 2])[order]).loss
    torch.testing.assert_close(shuffled, loss, **TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.uint8, torch.int64], ids=str)
def test_labels_of_any_integer_dtype_cost_the_same(tiny, dtype):
    model, ids, labels = built(**tiny), some_ids(4, 5), torch.tensor([1, 2, 1, 2])
    assert torch.equal(model(ids, labels=labels.to(dtype)).loss, model(ids, labels=labels).loss)


@pytest.mark.parametrize(
    "labels", [torch.zeros(3, dtype=torch.long), torch.zeros(4, 1, dtype=torch.long), torch.zeros(4)]
)
def test_labels_that_are_not_one_integer_a_row_are_refused(tiny, labels):
    with pytest.raises(ValueError, match=r"4 rows.*one integer"):
        built(**tiny)(some_ids(4), labels=labels)


def test_parts_of_a_batch_whose_anchors_are_counted_together_weigh_as_their_anchors_do(tiny):
    """Each part has its own negatives, so the parts are no whole batch; their anchors still count alike."""
    model, ids, labels = built(**tiny), some_ids(6, 5), torch.tensor([0, 0, 1, 1, 1, 1])
    parts = [([0, 1], 2), ([2, 3, 4, 5], 4)]
    alone = [model(ids[rows], labels=labels[rows]).loss for rows, _ in parts]
    counted = [model(ids[rows], labels=labels[rows], num_items_in_batch=torch.tensor(6)).loss for rows, _ in parts]
    for loss, whole, (_, anchors) in zip(counted, alone, parts, strict=True):
        torch.testing.assert_close(loss, whole * anchors / 6)


def test_a_few_steps_bring_likes_together(tiny):
    model, ids = built(**tiny).train(), some_ids(6, 5)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    losses = losses_of_steps(model, input_ids=ids, labels=labels)
    assert losses[-1] < 0.1 * losses[0]
    likeness = model.similarity(*[model.eval()(ids).embeddings.detach()] * 2)
    assert min(likeness[0, 1], likeness[2, 3], likeness[4, 5]) > likeness[0, 2:].max()


# folders


@pytest.fixture(scope="module")
def sim_folder(tmp_path_factory):
    variant = VARIANTS["sim"]
    return write_folder(tmp_path_factory.mktemp("sim"), variant, published_weights(variant))


@torch.no_grad()
def test_the_auto_class_of_text_encoders_loads_a_saved_one(sim_folder, tmp_path):
    model = HFRoFormerForSentenceEmbedding.from_pretrained(sim_folder)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForTextEncoding.from_pretrained(tmp_path)
    assert type(loaded) is HFRoFormerForSentenceEmbedding
    ids = torch.randint(1, 60, (3, 7))
    torch.testing.assert_close(loaded(ids).embeddings, model(ids).embeddings, rtol=0, atol=1e-6)


@torch.no_grad()
def test_the_body_of_a_published_sim_reads_its_pooler_as_linear_and_says_so(sim_folder, said):
    body = HFRoFormerModel.from_pretrained(sim_folder)
    assert any("pooler" in words and "linear" in words for words in said)
    weights, ids = published_weights(VARIANTS["sim"]), torch.randint(1, 60, (2, 7))
    out = body(ids)
    dense = [weights[f"roformer.pooler.dense.{part}"] for part in ("weight", "bias")]
    torch.testing.assert_close(out.pooler_output, out.last_hidden_state[:, 0] @ dense[0].T + dense[1], **TOLERANCE)


@torch.no_grad()
def test_the_body_of_a_sim_hears_the_activation_that_is_named(sim_folder, tmp_path):
    ids = torch.randint(1, 60, (2, 7))
    line = HFRoFormerModel.from_pretrained(sim_folder, pooler_activation="linear")(ids).pooler_output
    bent = HFRoFormerModel.from_pretrained(sim_folder, pooler_activation="tanh")
    torch.testing.assert_close(bent(ids).pooler_output, line.tanh(), **TOLERANCE)
    bent.save_pretrained(tmp_path)
    again = HFRoFormerModel.from_pretrained(tmp_path)(ids).pooler_output
    torch.testing.assert_close(again, bent(ids).pooler_output, rtol=0, atol=1e-6)


def test_a_folder_without_a_pooler_is_refused_by_name_and_with_the_remedy(tmp_path):
    variant = VARIANTS["v1 char"]
    folder = write_folder(tmp_path, variant, published_weights(variant))
    with pytest.raises(ValueError, match=r"missing roformer\.pooler\.dense.*classifier_pooling"):
        HFRoFormerForSentenceEmbedding.from_pretrained(folder)
    model, info = HFRoFormerForSentenceEmbedding.from_pretrained(
        folder, classifier_pooling="mean", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert model.config.classifier_pooling == "mean"


@torch.no_grad()
def test_a_sim_read_by_another_pooling_leaves_its_pooler_out(sim_folder):
    model, info = HFRoFormerForSentenceEmbedding.from_pretrained(
        sim_folder, classifier_pooling="mean", output_loading_info=True
    )
    assert not info["missing_keys"]
    ids = torch.randint(1, 60, (2, 7))
    wanted = vectors_of(published_weights(VARIANTS["sim"]), ids, "mean")
    torch.testing.assert_close(model(ids).embeddings.double(), wanted, **TOLERANCE)


def test_a_head_that_is_saved_and_loaded_keeps_its_scale_and_pooling(tiny, tmp_path):
    built(**tiny, similarity_scale=7.5, classifier_pooling="last").save_pretrained(tmp_path)
    config = HFRoFormerForSentenceEmbedding.from_pretrained(tmp_path).config
    assert (config.similarity_scale, config.classifier_pooling) == (7.5, "last")


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_a_scale_that_is_not_positive_is_refused(tiny, scale):
    with pytest.raises(ValueError, match="similarity_scale"):
        HFRoFormerConfig(**tiny, similarity_scale=scale)


def test_a_training_batch_that_teaches_nothing_is_told_once(tiny, caplog, monkeypatch):
    from hf_roformer import modeling_roformer

    said = []
    monkeypatch.setattr(modeling_roformer.logger, "warning_once", said.append)
    model = HFRoFormerForSentenceEmbedding(HFRoFormerConfig(**tiny)).train()
    ids = torch.randint(1, 99, (4, 6))
    for labels in ([0, 0, 1, 2], [0, 1, 1, -100], [0, 0, -100, -100]):
        model(ids, labels=torch.tensor(labels))
    assert said == []
    for labels in ([0, 1, 2, 3], [-100, -100, 1, 2]):
        model(ids, labels=torch.tensor(labels))
    assert len(said) == 2
    assert "no two rows of one label" in said[0]
    model.eval()(ids, labels=torch.arange(4))
    assert len(said) == 2


def test_a_pooler_that_is_asked_away_stays_away(tiny, tmp_path, said):
    built(**tiny).save_pretrained(tmp_path)
    assert AutoModel.from_pretrained(tmp_path, pooler_activation=None).pooler is None
    assert not [line for line in said if "holds a pooler" in line]
    assert AutoModel.from_pretrained(tmp_path).pooler is not None
