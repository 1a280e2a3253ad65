"""Every pipeline of the library answers from a saved folder as the model itself does, alone and in batches.

One stranger's process asks them all; the same questions are then asked where the package is imported.
"""

import json
import runpy
from types import SimpleNamespace

import pytest
import torch
from conftest import TINY
from isolated import SCRIPTS, difference, run_strangers
from transformers import AutoModel, AutoTokenizer, pipeline
from variants import vivid

import hf_roformer
from hf_roformer.answer_pipeline import HFRoFormerQuestionAnsweringPipeline
from hf_roformer.answering import answer_questions
from hf_roformer.tokenization_roformer import SPECIAL_TOKENS, HFRoFormerTokenizer, build_char_vocabulary

THERE = runpy.run_path(str(SCRIPTS / "run_pipelines.py"))
TEXTS, LONG, STRATEGIES = THERE["TEXTS"], THERE["LONG"], THERE["STRATEGIES"]
LEVELS = ("characters", "words")
TAGS = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
JUDGED = {"contradiction": 0, "neutral": 1, "entailment": 2}
HEADS = {
    "fill-mask": ("ForMaskedLM", {}),
    "text-classification": ("ForSequenceClassification", {"num_labels": 3}),
    "token-classification": ("ForTokenClassification", {"id2label": dict(enumerate(TAGS))}),
    "feature-extraction": ("Model", {}),
    "zero-shot-classification": (
        "ForSequenceClassification",
        {"label2id": JUDGED, "id2label": {number: name for name, number in JUDGED.items()}},
    ),
    "text-generation": ("ForCausalLM", {}),
    "question-answering": ("ForQuestionAnswering", {}),
}
CASES = [(name, level) for name in HEADS for level in LEVELS]
every_case = pytest.mark.parametrize(("name", "level"), CASES, ids=lambda word: word)


def vocabulary(level):
    if level == "characters":
        return build_char_vocabulary(["".join(TEXTS).replace("𠮷", "") + LONG + "这是地方人天气，谁"], size=200)
    chinese = "张 三 住 住在 北京 李 四 在 哈尔滨 ， 没有 好 。 王 小 明 上海 这 是 地方 人 天气 公司 谁 ！ 野 家"
    words = [*SPECIAL_TOKENS.values(), *chinese.split(), "play", "##ing", "abc"]
    return {word: number for number, word in enumerate(words)}


def save_folders(place):
    """Save one folder for each task and each level of words."""
    for name, level in CASES:
        head, facts = HEADS[name]
        tokenizer = HFRoFormerTokenizer(vocab=vocabulary(level))
        assert tokenizer.word_level == (level == "words")
        shape = TINY | {"vocab_size": len(tokenizer), "num_hidden_layers": 1, "max_position_embeddings": 32}
        model = vivid(getattr(hf_roformer, f"HFRoFormer{head}")(hf_roformer.HFRoFormerConfig(**shape, **facts)))
        model.save_pretrained(place / level / name)
        tokenizer.save_pretrained(place / level / name)
    return place


def ask_everyone(folders, work):
    """Return what a stranger is told, and what someone is told who imported the package."""
    said = run_strangers(work, [("run_pipelines.py", folders, work / "there.json")], shut=("hf_roformer",))
    THERE["main"](folders, work / "here.json")
    there, here = (json.loads((work / f"{place}.json").read_text()) for place in ("there", "here"))
    return SimpleNamespace(there=there, here=here, said=said)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return save_folders(tmp_path_factory.mktemp("folders"))


@pytest.fixture(scope="module")
def told(folders, tmp_path_factory):
    return ask_everyone(folders, tmp_path_factory.mktemp("told"))


def assert_alike(found, expected, tolerance=2e-5):
    assert difference(found, expected) <= tolerance, (found, expected)


def batches(answers):
    """Yield (alone, in a batch) for each way of asking that a task's answers hold."""
    if "alone" in answers:
        for side in {"left", "right"} & set(answers):
            yield answers["alone"], answers[side]
    else:
        for inner in answers.values():
            if isinstance(inner, dict):
                yield from batches(inner)


def own_rows(rows, alone, on_left):
    """Leave out the rows of the pads, which this pipeline hands back with the others."""
    tokens = len(alone[0])
    assert all(value == 0 for row in (rows[0][:-tokens] if on_left else rows[0][tokens:]) for value in row)
    return [rows[0][-tokens:] if on_left else rows[0][:tokens]]


def without_columns(answers):
    """Leave out the columns of tags, which this pipeline counts with the pads before them."""
    if isinstance(answers, dict):
        return {name: without_columns(value) for name, value in answers.items() if name != "index"}
    return [without_columns(answer) for answer in answers] if isinstance(answers, list) else answers


def without_pads(name, answers):
    """Return the answers of a task without what belongs to pads."""
    if name != "feature-extraction":
        return without_columns(answers)
    kept = dict(answers)
    for side in ("left", "right"):
        pairs = zip(answers[side], answers["alone"], strict=True)
        kept[side] = [own_rows(rows, alone, side == "left") for rows, alone in pairs]
    return kept


@every_case
def test_a_batch_on_either_side_answers_as_each_text_alone(name, level, told):
    answers = without_pads(name, told.there[f"{name} by {level}"])
    compared = [difference(batch, alone) for alone, batch in batches(answers)]
    assert compared
    assert max(compared) <= 2e-5


@every_case
def test_a_stranger_is_told_what_one_is_who_imported_the_package(name, level, told):
    assert_alike(told.there[f"{name} by {level}"], told.here[f"{name} by {level}"], 1e-6)


def test_the_library_does_not_complain_of_the_classes(told):
    assert "not supported" not in told.said


# each pipeline against the model itself


def parts(folders, name, level):
    head, _ = HEADS[name]
    model = getattr(hf_roformer, f"HFRoFormer{head}").from_pretrained(folders / level / name)
    return model, AutoTokenizer.from_pretrained(folders / level / name)


def ran(folders, name, level, *texts, **options):
    model, tokenizer = parts(folders, name, level)
    with torch.no_grad():
        return model(**tokenizer(*texts, return_tensors="pt", **options))


@pytest.mark.parametrize("level", LEVELS)
def test_masks_are_filled_with_the_likeliest_tokens(level, told, folders):
    _, tokenizer = parts(folders, "fill-mask", level)
    answers = told.there[f"fill-mask by {level}"]
    texts = [text[:1] + "[MASK]" + text[2:] for text in TEXTS]
    for text, found in zip(texts, answers["alone"], strict=True):
        at = tokenizer(text)["input_ids"].index(tokenizer.mask_token_id)
        best = ran(folders, "fill-mask", level, text).logits[0, at].softmax(-1).topk(4)
        assert [answer["token"] for answer in found] == best.indices.tolist()
        assert [answer["score"] for answer in found] == pytest.approx(best.values.tolist(), abs=1e-6)
    assert {answer["token_str"] for answer in answers["targets"]} == {"三", "四"}


@pytest.mark.parametrize("level", LEVELS)
def test_texts_pairs_and_texts_beyond_the_trained_length_are_classified_as_by_the_model(level, told, folders):
    answers = told.there[f"text-classification by {level}"]
    asked = [*[(text,) for text in TEXTS], (LONG,), TEXTS[:2]]
    cut = ran(folders, "text-classification", level, LONG, truncation=True, max_length=16)
    found = [*answers["alone"], answers["long"], answers["pair"], answers["cut"]]
    outputs = [*(ran(folders, "text-classification", level, *texts) for texts in asked), cut]
    for scores, output in zip(found, outputs, strict=True):
        by_name = {score["label"]: score["score"] for score in scores}
        expected = output.logits[0].softmax(-1).tolist()
        assert [by_name[f"LABEL_{number}"] for number in range(3)] == pytest.approx(expected, abs=1e-6)


def words_of(tokenizer, text):
    """Group the tokens of a text by the words whose pieces they are."""
    encoded, groups = tokenizer(text, return_offsets_mapping=True), []
    for column, (token, span) in enumerate(zip(encoded.tokens(), encoded["offset_mapping"], strict=True)):
        if span != (0, 0) and token.startswith("##"):
            groups[-1].append((column, span))
        elif span != (0, 0):
            groups.append([(column, span)])
    return groups


def judged(scores, strategy):
    """Return a word's label and score from its pieces' scores [pieces, labels]."""
    row = {"first": scores[0], "average": scores.mean(0), "max": scores[scores.max(-1).values.argmax()]}[strategy]
    return TAGS[int(row.argmax())], float(row.max())


def slowly_tagged(tokenizer, text, logits, strategy):
    """Tag pieces or words, and join neighbours of one kind unless a new one begins."""
    scores, units = logits.softmax(-1), []
    for word in words_of(tokenizer, text):
        columns = [column for column, _ in word]
        if strategy in ("none", "simple"):
            units += [(*judged(scores[column][None], "first"), span) for column, span in word]
        else:
            units.append((*judged(scores[columns], strategy), (word[0][1][0], word[-1][1][1])))
    if strategy == "none":
        return [(label, score, *span) for label, score, span in units]
    groups = []
    for label, score, span in units:
        kind = label.split("-")[-1]
        if groups and groups[-1][0] == kind and not label.startswith("B-"):
            groups[-1][1].append(score)
            groups[-1][3] = span[1]
        else:
            groups.append([kind, [score], *span])
    return [(kind, sum(scores) / len(scores), start, end) for kind, scores, start, end in groups]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("level", LEVELS)
def test_tags_stand_where_the_characters_do_by_every_strategy(level, strategy, told, folders):
    _, tokenizer = parts(folders, "token-classification", level)
    answers = told.there[f"token-classification by {level}"][strategy]
    for text, found in zip([*TEXTS, LONG], [*answers["alone"], answers["long"]], strict=True):
        logits = ran(folders, "token-classification", level, text).logits[0]
        expected = slowly_tagged(tokenizer, text, logits, strategy)
        name = "entity" if strategy == "none" else "entity_group"
        places = [(answer[name], answer["start"], answer["end"]) for answer in found]
        assert places == [(label, start, end) for label, _, start, end in expected]
        assert [answer["score"] for answer in found] == pytest.approx([score for _, score, _, _ in expected], abs=1e-5)


def test_strategies_differ_where_a_word_falls_into_pieces(told):
    answers = told.there["token-classification by characters"]
    found = [tuple((tag["entity_group"], tag["end"]) for tag in answers[way]["alone"][1]) for way in STRATEGIES[1:]]
    assert len(set(found)) > 1


@pytest.mark.parametrize("level", LEVELS)
def test_features_are_the_last_hidden_states(level, told, folders):
    answers = told.there[f"feature-extraction by {level}"]
    for text, found in zip([*TEXTS, LONG], [*answers["alone"], answers["long"]], strict=True):
        expected = ran(folders, "feature-extraction", level, text).last_hidden_state
        torch.testing.assert_close(torch.tensor(found), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("level", LEVELS)
def test_labels_that_were_never_learnt_are_judged_by_what_they_entail(level, told, folders):
    for several in ("False", "True"):
        answers = told.there[f"zero-shot-classification by {level}"][several]
        for text, found in zip([*TEXTS, LONG], [*answers["alone"], answers["long"]], strict=True):
            claims = [f"这是{label}。" for label in found["labels"]]
            pairs = [ran(folders, "zero-shot-classification", level, text, claim) for claim in claims]
            scores = torch.cat([pair.logits for pair in pairs])
            scores = scores[:, [0, 2]].softmax(-1)[:, 1] if several == "True" else scores[:, 2].softmax(-1)
            assert found["scores"] == pytest.approx(scores.tolist(), abs=1e-5)
            assert found["scores"] == sorted(found["scores"], reverse=True)


@pytest.mark.parametrize("level", LEVELS)
def test_texts_are_continued_as_generate_does(level, told, folders):
    model, tokenizer = parts(folders, "text-generation", level)
    answers = told.there[f"text-generation by {level}"]
    for text, found in zip([*TEXTS, LONG], [*answers["alone"], answers["long"]], strict=True):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        written = model.generate(ids, do_sample=False, max_new_tokens=6)[0, ids.shape[1] :]
        assert found == [{"generated_text": text + tokenizer.decode(written, skip_special_tokens=True)}]


# questions


def told_as(answer):
    return {"score": answer.score, "start": answer.start, "end": answer.end, "answer": answer.text}


@pytest.mark.parametrize("level", LEVELS)
def test_questions_are_answered_as_by_the_function_of_the_package(level, told, folders):
    model, tokenizer = parts(folders, "question-answering", level)
    answers = told.there[f"question-answering by {level}"]
    contexts = [*THERE["CONTEXTS"], LONG]
    asked = [THERE["QUESTION"]] * len(contexts)
    best = answer_questions(model, tokenizer, asked, contexts, max_length=32, window_overlap=8)
    assert_alike([*answers["alone"], answers["long"]], [told_as(answers[0]) for answers in best])
    for answer, context in zip(answers["alone"], contexts, strict=False):
        assert context[answer["start"] : answer["end"]] == answer["answer"] != ""
    some = answer_questions(model, tokenizer, asked[:1], contexts[:1], max_answer_length=4, null_threshold=0.0)
    assert_alike(answers["some"], [told_as(answer) for answer in some[0][:3]])
    untold = answer_questions(model, tokenizer, asked[:3], contexts[:3])
    assert_alike(answers["untold"], [told_as(answers[0]) for answers in untold])


@pytest.fixture(scope="module")
def questions(folders):
    model, tokenizer = parts(folders, "question-answering", "characters")
    return HFRoFormerQuestionAnsweringPipeline(model=model, tokenizer=tokenizer)


def test_one_question_may_be_asked_of_several_contexts_and_the_other_way_round(questions):
    one, other = THERE["CONTEXTS"][:2]
    both = [questions(question="谁？", context=context) for context in (one, other)]
    assert_alike(questions(question="谁？", context=[one, other]), both)
    assert_alike(questions(question=["谁？", "在？"], context=one)[0], both[0])
    assert_alike(list(questions(asked for asked in [{"question": "谁？", "context": one}])), both[:1])


def test_a_model_is_asked_as_it_was_taught(questions):
    asked = {"question": "谁住在北京？", "context": LONG}
    plain = questions(asked, max_length=32, window_overlap=8, max_answer_length=2)
    questions.model.config.reading = {"max_length": 32, "window_overlap": 8, "max_answer_length": 2, "gone": 1}
    try:
        assert questions(asked) == plain
    finally:
        del questions.model.config.reading


def test_no_answer_is_one_where_the_library_s_word_says_so_and_as_taught(questions):
    asked = {"question": "谁住在北京？", "context": THERE["CONTEXTS"][0]}
    plain = questions(asked, top_k=40)
    assert questions(asked, top_k=40, handle_impossible_answer=True) == questions(asked, top_k=40, null_threshold=0.0)
    questions.model.config.reading = {"null_threshold": -1000.0}
    try:
        assert questions(asked, handle_impossible_answer=True)["answer"] == questions(asked)["answer"] == ""
        assert questions(asked, top_k=40, handle_impossible_answer=False) == plain
    finally:
        del questions.model.config.reading
    assert "" not in [answer["answer"] for answer in plain]


@pytest.mark.parametrize(
    ("asked", "options", "error", "message"),
    [
        ((), {}, ValueError, "nothing is asked: give question and context"),
        (("谁？",), {}, ValueError, "'谁？' is no question: give a dict with question and context"),
        (({"question": " ", "context": "好"},), {}, ValueError, "the question is ' ': give a text that is not empty"),
        (({"question": "谁？", "contxt": "好"},), {}, ValueError, "the context is None: give a text"),
        ((), {"question": ["谁？"], "context": ["好", "好"]}, ValueError, "1 questions for 2 contexts"),
        ((dict.fromkeys(("question", "context"), "好"),), {"max_answer": 3}, TypeError, "no argument 'max_answer'"),
    ],
)
def test_what_is_no_question_is_refused(asked, options, error, message, questions):
    with pytest.raises(error, match=message):
        questions(*asked, **options)


def test_a_saved_pipeline_is_found_again_by_its_folder_alone(questions, tmp_path):
    questions.save_pretrained(tmp_path)
    again = pipeline(model=str(tmp_path), trust_remote_code=True)
    asked = {"question": "谁？", "context": THERE["CONTEXTS"][0]}
    assert type(again).__name__ == type(questions).__name__
    assert again(asked) == questions(asked)


def test_a_folder_of_questions_serves_the_other_pipelines_too(folders):
    folder = folders / "characters" / "question-answering"
    found = pipeline("feature-extraction", str(folder), trust_remote_code=True)(TEXTS[0])
    with torch.no_grad():
        batch = AutoTokenizer.from_pretrained(folder)(TEXTS[0], return_tensors="pt")
        body = AutoModel.from_pretrained(folder)(**batch)
    torch.testing.assert_close(torch.tensor(found), body.last_hidden_state, atol=1e-6, rtol=0)


def rows_of_table(work):
    """Return a line for each pipeline: what it is, how it was checked, and the largest difference."""
    work.mkdir()
    told = ask_everyone(save_folders(work / "folders"), work)
    lines = []
    for name in HEADS:
        worst = 0.0
        for level in LEVELS:
            there, here = (answers[f"{name} by {level}"] for answers in (told.there, told.here))
            compared = [difference(batch, alone) for alone, batch in batches(without_pads(name, there))]
            worst = max(worst, difference(there, here), *compared)
        lines.append((f"pipeline {name}", "a stranger's answers to the package's; batches to single texts", worst))
    return lines
