"""A dataset through a model: the numbers of each text alone, in order, whole, and once, whatever happens meanwhile."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import TINY, loud
from datasets import Dataset, DatasetDict, load_dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    BertTokenizer,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
)

from hf_roformer import (
    HFRoFormerConfig,
    HFRoFormerForMaskedLM,
    HFRoFormerForSentenceEmbedding,
    HFRoFormerForSequenceClassification,
    HFRoFormerForTokenClassification,
    HFRoFormerModel,
    HFRoFormerTokenizer,
    encoding,
    encoding_peers,
    shards,
)
from hf_roformer.encoders import load_encoder
from hf_roformer.encoding import ahead, choose_dtype, cut_batches, describe, encode_dataset
from hf_roformer.encoding_arguments import EncodingArguments, read_command

ROOT = Path(__file__).parents[1]
LETTERS = "今天气很好这本书写得不错房间又脏吵再也来了"
MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = {token: number for number, token in enumerate([*MARKS, *LETTERS])}
LONGEST = 30


def some_texts(count=43):
    chance = random.Random(0)
    return ["".join(chance.choices(LETTERS, k=chance.choice((1, 3, 9, 20, 28, 35)))) for _ in range(count)]


TEXTS = some_texts()


def ours(folder, kind=HFRoFormerModel, **changes):
    model = loud(kind(HFRoFormerConfig(**{**TINY, **changes})))
    model.save_pretrained(folder)
    HFRoFormerTokenizer(vocab=VOCABULARY).save_pretrained(folder)
    return model


def bert(folder, kind=BertModel, **changes):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
    model = loud(kind(BertConfig(vocab_size=99, max_position_embeddings=LONGEST, **{**sizes, **changes})))
    model.save_pretrained(folder)
    BertTokenizer(vocab=VOCABULARY).save_pretrained(folder)
    return model


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with texts in it, and names for a model and what comes out."""
    monkeypatch.chdir(tmp_path)
    write_rows("texts.jsonl", TEXTS)
    return tmp_path


def write_rows(path, texts):
    rows = [json.dumps({"text": text, "id": f"n{number}", "kind": number % 3}) for number, text in enumerate(texts)]
    Path(path).write_text("\n".join(rows), encoding="utf-8")


def told(**changes):
    usual = {"model": "model", "dataset": "texts.jsonl", "output_dir": "out", "max_length": LONGEST}
    usual |= {
        "rows_per_shard": 10,
        "tokens_per_batch": 90,
        "progress": False,
        "cpu_matmul": "default",
        "device": "cpu",
    }
    return EncodingArguments(**{**usual, **changes})


def encode(**changes):
    return encode_dataset(told(**changes))


def parts(folder="out"):
    return sorted(Path(folder).glob("*.parquet"))


def table(folder="out"):
    return pa.concat_tables([pq.read_table(path) for path in parts(folder)])


def vectors(folder="out"):
    return torch.tensor(table(folder)["embedding"].to_pylist())


@torch.no_grad()
def alone(model, text, pair=None, **options):
    """Run one text without pads, and without anything of the package's encoder."""
    tokenizer = HFRoFormerTokenizer(vocab=VOCABULARY)
    batch = tokenizer(text, pair, truncation=True, max_length=LONGEST, return_tensors="pt")
    return model(**batch, **options)


READ = {
    "mean": lambda outputs: outputs.last_hidden_state[0].mean(dim=0),
    "first": lambda outputs: outputs.last_hidden_state[0, 0],
    "last": lambda outputs: outputs.last_hidden_state[0, -1],
    "pooler": lambda outputs: outputs.pooler_output[0],
    "head": lambda outputs: outputs.embeddings[0],
}


@pytest.mark.parametrize(("budget", "rows"), [(31, 7), (90, 10), (100000, 1000)])
@pytest.mark.parametrize("pooling", list(READ))
def test_a_row_is_what_its_text_gives_alone_whatever_the_batch(place, pooling, budget, rows):
    kind = HFRoFormerForSentenceEmbedding if pooling == "head" else HFRoFormerModel
    model = ours("model", kind, pooler_activation="tanh" if pooling == "pooler" else None)
    encode(pooling=pooling, tokens_per_batch=budget, rows_per_shard=rows)
    expected = torch.stack([READ[pooling](alone(model, text)) for text in TEXTS])
    torch.testing.assert_close(vectors(), expected, atol=1e-5, rtol=1e-5)


def test_the_order_of_the_texts_changes_no_vector(place):
    ours("model")
    write_rows("turned.jsonl", TEXTS[::-1])
    encode()
    encode(dataset="turned.jsonl", output_dir="turned")
    torch.testing.assert_close(vectors("turned").flip(0), vectors(), atol=1e-5, rtol=1e-5)


def test_the_files_hold_every_row_once_in_order_and_nothing_else_is_left(place):
    ours("model")
    outcome = encode()
    assert [len(pq.read_table(path)) for path in parts()] == [10, 10, 10, 10, 3]
    assert table()["row"].to_pylist() == list(range(len(TEXTS)))
    assert sorted(os.listdir("out")) == [shards.MANIFEST, *(path.name for path in parts())]
    assert (outcome.shards, outcome.skipped) == (5, 0)


def test_a_folder_of_results_loads_as_a_dataset(place, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", place / "cache")
    ours("model")
    encode(columns=["id"])
    rows = load_dataset(str(place / "out"), split="train")
    assert rows["id"][:] == [f"n{number}" for number in range(len(TEXTS))]
    assert len(rows[0]["embedding"]) == TINY["hidden_size"]


def test_normalised_vectors_are_the_others_divided_by_their_length(place):
    ours("model")
    encode()
    encode(output_dir="unit", normalize=True)
    expected = vectors() / vectors().square().sum(dim=-1, keepdim=True).sqrt()
    torch.testing.assert_close(vectors("unit"), expected)


def test_a_pair_is_read_as_two_segments(place):
    model = ours("model")
    rows = [{"text": text, "other": other} for text, other in zip(TEXTS[:8], TEXTS[8:16], strict=True)]
    Path("pairs.json").write_text(json.dumps(rows), encoding="utf-8")
    encode(dataset="pairs.json", text_pair_column="other")
    expected = torch.stack([READ["mean"](alone(model, row["text"], row["other"])) for row in rows])
    torch.testing.assert_close(vectors(), expected, atol=1e-5, rtol=1e-5)


# a kill, and going on


def test_a_run_that_broke_goes_on_with_what_it_lacks_and_ends_in_the_same_bytes(place, monkeypatch):
    ours("model")
    encode(output_dir="whole")
    write, written = pq.write_table, []

    def breaks(content, path, **options):
        written.append(path)
        if len(written) == 3:
            Path(path).write_bytes(b"PAR1 half")
            raise OSError("no space left")
        write(content, path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(pq, "write_table", breaks)
        with pytest.raises(OSError, match=r"no space left; make room, then run the same again.*part-00002-of"):
            encode()
    assert len(parts()) == 2
    assert not [name for name in os.listdir("out") if "unfinished" in name]
    assert encode().skipped == 2
    assert {path.name: path.read_bytes() for path in parts()} == {p.name: p.read_bytes() for p in parts("whole")}
    assert sorted(os.listdir("out")) == sorted(os.listdir("whole"))


KILLED = """
import os, signal, sys
import pyarrow.parquet as pq
from hf_roformer.encoding import encode_dataset
from hf_roformer.encoding_arguments import read_command
write, written = pq.write_table, []
def killed(content, path, **options):
    written.append(path)
    if len(written) == 3:
        open(path, "wb").write(b"PAR1 half")
        os.kill(os.getpid(), signal.SIGKILL)
    write(content, path, **options)
pq.write_table = killed
encode_dataset(read_command(sys.argv[1:]))
"""


def words(**changes):
    """Write a command line that says what `told` says."""
    settings = {**vars(told()), **changes}
    usual = vars(EncodingArguments("m", "d", "o"))
    given = {name: value for name, value in settings.items() if value != usual[name]}
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def launch(command):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_killed_process_leaves_only_whole_parts_and_the_next_one_clears_up(place):
    ours("model")
    encode(output_dir="whole")
    done = launch([sys.executable, "-c", KILLED, *words()])
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [len(pq.read_table(path)) for path in parts()] == [10, 10]
    assert [name for name in os.listdir("out") if "unfinished" in name]
    outcome = encode()
    assert outcome.skipped == 2
    assert outcome.counts["rows"] == len(TEXTS)
    assert sorted(os.listdir("out")) == sorted(os.listdir("whole"))
    assert table().drop_columns("embedding").equals(table("whole").drop_columns("embedding"))
    torch.testing.assert_close(vectors(), vectors("whole"), atol=1e-6, rtol=1e-6)


def test_a_finished_run_is_not_run_again(place, monkeypatch):
    ours("model")
    before = describe(encode())
    monkeypatch.setattr(encoding, "write_shard", None)
    again = encode()
    assert (again.skipped, again.tokens) == (5, 0)
    assert describe(again).splitlines()[0] == before.splitlines()[0]


def test_a_part_that_was_damaged_is_made_again(place):
    ours("model")
    encode()
    whole = parts()[1].read_bytes()
    parts()[1].write_bytes(whole[:-7])
    assert encode().skipped == 4
    assert parts()[1].read_bytes() == whole


def test_what_changes_no_number_may_change_when_a_run_goes_on(place):
    ours("model")
    encode()
    parts()[0].unlink()
    assert encode(tokens_per_batch=31, device=None).skipped == 4


CHANGES = {
    "normalize": {"normalize": True},
    "max_length": {"max_length": 12},
    "pooling": {"pooling": "first"},
    "columns": {"columns": ["id"]},
    "rows_per_shard": {"rows_per_shard": 11},
    "dtype": {"dtype": "bfloat16"},
    "dataset": {"dataset": "other.jsonl"},
    "model": {"model": "other"},
}


@pytest.mark.parametrize("name", list(CHANGES))
def test_another_wish_for_the_same_folder_is_refused_and_named(place, name):
    model = ours("model")
    with torch.no_grad():
        model.encoder.layer[1].output.dense.weight[0, 0] += 0.01
    model.save_pretrained("other")
    HFRoFormerTokenizer(vocab=VOCABULARY).save_pretrained("other")
    write_rows("other.jsonl", [*TEXTS[:-1], TEXTS[0]])
    encode()
    before = {path: path.read_bytes() for path in Path("out").iterdir()}
    with pytest.raises(ValueError, match=rf"out was begun with .*\b{name} .*: ask for the same"):
        encode(**CHANGES[name])
    assert {path: path.read_bytes() for path in Path("out").iterdir()} == before


def test_a_model_that_moved_is_still_the_same_model(place):
    ours("model")
    encode()
    Path("model").rename("moved")
    assert encode(model="moved").skipped == 5


def test_two_processes_write_what_one_writes(place):
    ours("model", HFRoFormerForSentenceEmbedding)
    encode(output_dir="one", columns=["id"])
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0"]
    done = launch([*command, str(ROOT / "scripts" / "encode.py"), *words(columns="id")])
    assert [path.name for path in parts()] == [path.name for path in parts("one")], done.stderr
    assert "this process: " in done.stdout
    assert table().drop_columns("embedding").equals(table("one").drop_columns("embedding"))
    torch.testing.assert_close(vectors(), vectors("one"), atol=1e-6, rtol=1e-6)
    assert sorted(os.listdir("out")) == sorted(os.listdir("one"))


def test_each_process_takes_its_own_parts_and_says_nothing_before_all_are_there(place, monkeypatch):
    ours("model")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    first = encode()
    assert [path.name[:10] for path in parts()] == ["part-00000", "part-00002", "part-00004"]
    assert (first.counts, describe(first)) == (None, "")
    monkeypatch.setenv("RANK", "1")
    second = encode()
    assert len(parts()) == 5
    assert second.counts["rows"] == len(TEXTS)


def test_a_later_process_waits_for_the_first_to_write_what_is_asked(place, monkeypatch):
    ours("model")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(shards, "PATIENCE_SECONDS", 0.2)
    with pytest.raises(TimeoutError, match=r"the first process wrote no _encoding\.json"):
        encode()


# what is counted


def test_cut_texts_are_counted_and_told(place):
    ours("model")
    outcome = encode()
    # a row holds two marks beside its characters
    too_long = sum(len(text) > LONGEST - 2 for text in TEXTS)
    assert too_long
    assert any(len(text) == LONGEST - 2 for text in TEXTS)
    assert outcome.counts["truncated"] == too_long
    assert outcome.counts["tokens"] == sum(min(len(text) + 2, LONGEST) for text in TEXTS)
    assert f"truncated at {LONGEST} tokens: {too_long} rows" in describe(outcome)


def test_a_text_without_words_has_a_row_like_any_other(place):
    model = ours("model")
    rows = [{"text": text} for text in ("好", "", None, " \n", "天气")]
    Path("holes.json").write_text(json.dumps(rows), encoding="utf-8")
    outcome = encode(dataset="holes.json")
    assert outcome.counts["empty"] == 3
    expected = torch.stack([READ["mean"](alone(model, row["text"] or "")) for row in rows])
    torch.testing.assert_close(vectors(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("texts", [["好 天", "", "气"], ["", ""]])
def test_a_text_of_which_no_token_comes_has_no_vector(place, texts):
    bert("model")
    split = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "好": 2}, unk_token="[UNK]"))
    split.pre_tokenizer = pre_tokenizers.Whitespace()
    for path in Path("model").glob("*token*"):
        path.unlink()
    PreTrainedTokenizerFast(tokenizer_object=split, pad_token="[PAD]", unk_token="[UNK]").save_pretrained("model")
    Path("few.json").write_text(json.dumps([{"text": text} for text in texts]), encoding="utf-8")
    encode(dataset="few.json")
    assert [value is None for value in table()["embedding"].to_pylist()] == [not text for text in texts]
    assert table().schema.field("embedding").type == pa.list_(pa.float32(), 32)


# predictions


@torch.no_grad()
def undecided(folder, **changes):
    """A classifier that gives each label to some of the texts."""
    model = ours(folder, HFRoFormerForSequenceClassification, **changes)
    logits = torch.cat([alone(model, text).logits for text in TEXTS])
    model.classifier.out_proj.bias -= logits.median(dim=0).values
    model.save_pretrained(folder)
    return model


def test_a_predicted_label_and_its_score_are_those_of_the_head(place):
    names = {0: "bad", 1: "good", 2: "none"}
    model = undecided("model", id2label=names)
    encode(all_scores=True)
    chances = torch.cat([alone(model, text).logits for text in TEXTS]).softmax(dim=-1)
    found = table()
    assert found["predicted"].to_pylist() == [names[number] for number in chances.argmax(dim=-1).tolist()]
    assert len(set(found["predicted"].to_pylist())) > 1
    for column, expected in (("score", chances.amax(dim=-1)), ("all_scores", chances)):
        torch.testing.assert_close(torch.tensor(found[column].to_pylist()), expected, atol=1e-5, rtol=1e-5)


READINGS = {
    "windows": {"long_texts": "windows", "window_overlap": 2, "max_windows": 3, "window_pooling": "mean"},
    "the best window": {"long_texts": "windows", "window_overlap": 2, "max_windows": 3, "window_pooling": "max"},
    "head and tail": {"long_texts": "head_tail", "head_share": 0.4},
}


def pieces_of(text, reading, room):
    """Cut a text of single letters by hand, as its reading says."""
    if reading["long_texts"] == "head_tail":
        head = round(reading["head_share"] * room)
        return [text if len(text) <= room else text[:head] + text[len(text) - (room - head) :]]
    starts = range(0, max(len(text) - 2, 1), room - 2) if len(text) > room else [0]
    return [text[start : start + room] for start in list(starts)[:3]]


@pytest.mark.parametrize("budget", [31, 100000])
@pytest.mark.parametrize("name", list(READINGS))
def test_a_long_text_is_classified_as_the_model_was_taught_to_read_it(place, name, budget):
    reading = {**READINGS[name], "max_length": 12}
    model = undecided("model")
    model.config.reading = reading
    model.save_pretrained("model")
    outcome = encode(all_scores=True, max_length=None, tokens_per_batch=budget)
    pool = torch.amax if "best" in name else torch.mean
    wanted = [
        pool(torch.cat([alone(model, piece).logits for piece in pieces_of(text, reading, 10)]), dim=0)
        for text in TEXTS
    ]
    found = torch.tensor(table()["all_scores"].to_pylist())
    torch.testing.assert_close(found, torch.stack(wanted).softmax(dim=-1), atol=1e-5, rtol=1e-5)
    lost = sum(len(text) > (10 if "tail" in name else 26) for text in TEXTS)
    assert outcome.counts["truncated"] == lost > 0
    encode(all_scores=True, max_length=12, long_texts="truncate", output_dir="cut")
    first = torch.cat([alone(model, text[:10]).logits for text in TEXTS]).softmax(dim=-1)
    torch.testing.assert_close(torch.tensor(table("cut")["all_scores"].to_pylist()), first, atol=1e-5, rtol=1e-5)


def test_several_labels_are_those_that_score_above_one_half(place):
    problem = {"num_labels": 3, "problem_type": "multi_label_classification"}
    model = undecided("model", **problem)
    encode()
    chances = torch.cat([alone(model, text).logits for text in TEXTS]).sigmoid()
    expected = [[f"LABEL_{at}" for at in range(3) if row[at] > 0.5] for row in chances.tolist()]
    assert table()["predicted"].to_pylist() == expected
    assert len(set(map(tuple, expected))) > 2
    scores = [score for row in table()["score"].to_pylist() for score in row]
    torch.testing.assert_close(torch.tensor(scores), chances[chances > 0.5], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_predicted_number_is_the_heads_own(place, outputs):
    model = ours("model", HFRoFormerForSequenceClassification, num_labels=outputs, problem_type="regression")
    encode()
    expected = torch.cat([alone(model, text).logits for text in TEXTS])
    found = torch.tensor(table()["predicted"].to_pylist()).view(len(TEXTS), outputs)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_token_label_says_where_in_its_text_it_stands(place):
    model = ours("model", HFRoFormerForTokenClassification, num_labels=3)
    encode()
    for text, row in zip(TEXTS, table().to_pylist(), strict=True):
        kept = text[: LONGEST - 2]
        assert [text[start:end] for start, end in zip(row["start"], row["end"], strict=True)] == list(kept)
        chances = alone(model, text).logits[0, 1:-1].softmax(dim=-1)
        assert row["predicted"] == [f"LABEL_{number}" for number in chances.argmax(dim=-1).tolist()]
        torch.testing.assert_close(torch.tensor(row["score"]), chances.amax(dim=-1), atol=1e-5, rtol=1e-5)


# which model


def test_a_folder_with_another_head_still_gives_vectors(place):
    model = ours("model", HFRoFormerForMaskedLM)
    encode()
    expected = torch.stack([READ["mean"](alone(model.roformer, text)) for text in TEXTS])
    torch.testing.assert_close(vectors(), expected, atol=1e-5, rtol=1e-5)


def test_a_body_that_writes_after_a_source_reads_texts_both_ways(place):
    model = ours("model", HFRoFormerForMaskedLM, attention_pattern="prefix", is_decoder=True)
    # as a writer's prefix the texts would be run with their pads
    assert load_encoder(told(), torch.float32).model.pattern == "bidirectional"
    encode()
    expected = torch.stack([READ["mean"](alone(model.roformer, text)) for text in TEXTS])
    torch.testing.assert_close(vectors(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "first", "pooler"])
def test_another_kind_of_model_is_read_by_the_auto_classes(place, pooling):
    model = bert("model")
    encode(pooling=pooling)
    expected = torch.stack([READ[pooling](alone(model, text)) for text in TEXTS])
    torch.testing.assert_close(vectors(), expected, atol=1e-5, rtol=1e-5)


def test_another_kind_of_head_predicts_what_its_logits_say(place):
    model = bert("model", BertForSequenceClassification, num_labels=4)
    encode()
    logits = torch.cat([alone(model, text).logits for text in TEXTS])
    assert table()["predicted"].to_pylist() == [f"LABEL_{number}" for number in logits.argmax(dim=-1).tolist()]


@pytest.mark.parametrize("save", [ours, bert])
def test_a_head_that_the_folder_lacks_is_refused_not_drawn(place, save):
    save("model", *({ours: HFRoFormerForMaskedLM, bert: BertForMaskedLM}[save],))
    with pytest.raises(ValueError, match=r"model lacks .*classifier\..*train that head"):
        encode(task="sequence_classification")
    assert not Path("out").exists()


def test_a_pooler_that_the_folder_lacks_is_refused(place):
    bert("model", BertForMaskedLM)
    with pytest.raises(ValueError, match=r"model lacks pooler\.dense"):
        encode(pooling="pooler")
    ours("ours")
    with pytest.raises(ValueError, match="pooling 'pooler' needs a pooler"):
        encode(model="ours", pooling="pooler")
    with pytest.raises(ValueError, match=r"pooler\.dense"):
        encode(model="ours", pooling="head")
    with pytest.raises(ValueError, match="pooling 'head' is the sentence head of a RoFormer"):
        encode(pooling="head")


def test_learned_positions_end_the_length_of_a_text(place):
    bert("model")
    with pytest.raises(
        ValueError, match=f"max_length is {LONGEST + 1}, and the model has {LONGEST} learned positions"
    ):
        encode(max_length=LONGEST + 1)
    assert encode(max_length=None).asked["max_length"] == LONGEST


def test_positions_that_count_from_behind_the_pad_are_fewer_by_two(place):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = RobertaConfig(vocab_size=99, max_position_embeddings=LONGEST, pad_token_id=1, **sizes)
    RobertaModel(config).save_pretrained("model")
    BertTokenizer(vocab=VOCABULARY, pad_token="[UNK]").save_pretrained("model")
    assert encode(max_length=None).asked["max_length"] == LONGEST - 2


def test_a_tokenizer_of_another_model_is_refused(place):
    ours("model", vocab_size=12)
    with pytest.raises(ValueError, match="the model's vocabulary has 12 entries"):
        encode()


def test_bfloat16_is_near_float32_and_written_as_float32(place):
    ours("model")
    encode(normalize=True)
    encode(output_dir="half", dtype="bfloat16", normalize=True)
    assert table("half").schema == table().schema
    apart = (vectors() - vectors("half")).abs().max()
    assert 1e-5 < apart < 0.1


def test_auto_takes_the_measured_dtype_and_keeps_it_for_the_life_of_a_run(place, monkeypatch):
    ours("model")
    monkeypatch.setattr(encoding, "bfloat16_pays", lambda device: True)
    assert encode(dtype="auto").asked["dtype"] == "bfloat16"
    monkeypatch.setattr(encoding, "bfloat16_pays", lambda device: False)
    assert encode(dtype="auto").asked["dtype"] == "bfloat16"
    assert encode(dtype="auto", output_dir="new").asked["dtype"] == "float32"


@pytest.mark.parametrize(("narrow", "pays"), [(0.5, True), (1.0, False)])
def test_bfloat16_pays_where_it_is_measured_faster(monkeypatch, narrow, pays):
    clock = [0.0]
    monkeypatch.setattr("hf_roformer.encoding.time.perf_counter", lambda: clock[0])

    def product(x, weight):
        clock[0] += narrow if x.dtype == torch.bfloat16 else 1.0

    monkeypatch.setattr("hf_roformer.encoding.F.linear", product)
    assert encoding.bfloat16_pays(torch.device("cpu")) is pays
    told_dtype = choose_dtype(told(dtype="float32"), torch.device("cpu"), encoding.Team(0, 1, 0))
    assert told_dtype == torch.float32


# which texts


def write_parquet(path):
    pq.write_table(pa.table({"text": TEXTS, "id": list(range(len(TEXTS)))}), path)


def test_every_form_of_a_dataset_gives_the_same_vectors(place, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", place / "cache")
    ours("model")
    encode()
    Path("a.csv").write_text("text\n" + "\n".join(TEXTS) + "\n", encoding="utf-8")
    Path("a.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    Path("a.json").write_text(json.dumps({"text": TEXTS}), encoding="utf-8")
    write_parquet("a.parquet")
    for folder in ("folder", "several"):
        Path(folder).mkdir()
    write_parquet("folder/train.parquet")
    write_rows("several/1.jsonl", TEXTS[:20])
    write_rows("several/2.jsonl", TEXTS[20:])
    Dataset.from_dict({"text": TEXTS}).save_to_disk("saved")
    for name in ("a.csv", "a.txt", "a.json", "a.parquet", "folder", "saved", "several/*.jsonl"):
        encode(dataset=name, output_dir=f"out_of/{name.replace('*', 'all')}")
        torch.testing.assert_close(vectors(f"out_of/{name.replace('*', 'all')}"), vectors(), atol=0, rtol=0, msg=name)


def test_the_columns_asked_for_go_along_unchanged(place):
    ours("model")
    encode(columns=["kind", "id", "text"])
    found = table()
    assert found.column_names == ["row", "embedding", "kind", "id", "text"]
    assert found["id"].to_pylist() == [f"n{number}" for number in range(len(TEXTS))]
    assert found["kind"].to_pylist() == [number % 3 for number in range(len(TEXTS))]
    assert found["text"].to_pylist() == TEXTS


def test_a_dataset_of_several_splits_needs_a_choice(place):
    ours("model")
    rows = Dataset.from_dict({"text": TEXTS})
    DatasetDict({"train": rows.select(range(5)), "test": rows.select(range(5, 9))}).save_to_disk("saved")
    with pytest.raises(ValueError, match="saved has the splits train, test: choose one by split"):
        encode(dataset="saved")
    with pytest.raises(ValueError, match="split 'dev' is no split of saved; it has train, test"):
        encode(dataset="saved", split="dev")
    assert encode(dataset="saved", split="test", columns=["text"]).counts["rows"] == 4
    assert table()["text"].to_pylist() == TEXTS[5:9]


def test_wrong_input_is_named_before_anything_is_written(place):
    ours("model")
    Path("none.jsonl").write_text("", encoding="utf-8")
    Path("no_row.csv").write_text("text\n", encoding="utf-8")
    Path("mixed.json").write_text(json.dumps([{"text": "好"}, {"text": 3}]), encoding="utf-8")
    faults = {
        "missing.csv": (FileNotFoundError, "missing.csv is no file here", {}),
        "*.tsv": (FileNotFoundError, r"\*\.tsv is no file here", {}),
        "no_row.csv": (ValueError, "no_row.csv has no row", {}),
        "none.jsonl": (ValueError, "none.jsonl has no column text; its columns are none", {}),
        "mixed.json": (ValueError, "mixed.json has a column whose values are of several kinds", {}),
        "texts.jsonl": (ValueError, "texts.jsonl has no column words; its columns are text", {"text_column": "words"}),
    }
    for name, (kind, words_of_it, changes) in faults.items():
        with pytest.raises(kind, match=words_of_it):
            encode(dataset=name, **changes)
    with pytest.raises(ValueError, match="column kind holds int64, not text"):
        encode(text_column="kind")
    assert not Path("out").exists()


@pytest.mark.parametrize("form", ["tsv", "parquet", "folder"])
def test_a_forgotten_text_column_is_answered_with_every_column_that_there_is(form, place):
    ours("model")
    rows = Dataset.from_dict({"id": [1], "texte": ["好"], "label": ["a"]})
    write = {"tsv": lambda name: rows.to_csv(name, sep="\t"), "parquet": rows.to_parquet, "folder": rows.save_to_disk}
    write[form](f"rows.{form}")
    words_of_it = (
        f"rows.{form} has no column text; its columns are id, texte, label, of which texte is nearest to text"
    )
    with pytest.raises(ValueError, match=words_of_it):
        encode(dataset=f"rows.{form}", columns=["id", "label"])


def test_a_column_that_a_result_would_stand_beside_is_refused(place):
    ours("model", HFRoFormerForSequenceClassification)
    Path("taken.json").write_text(json.dumps([{"text": "好", "score": 1}]), encoding="utf-8")
    with pytest.raises(ValueError, match="column score would stand beside a result of that name"):
        encode(dataset="taken.json", columns=["score"])


def test_a_folder_with_other_things_in_it_is_refused(place):
    ours("model")
    Path("out").mkdir()
    Path("out/letter.txt").write_text("dear", encoding="utf-8")
    with pytest.raises(FileExistsError, match=r"out holds letter\.txt and no _encoding\.json"):
        encode()


def test_a_place_that_can_hold_no_folder_is_refused_before_anything_is_loaded(place):
    Path("out").write_text("dear", encoding="utf-8")
    with pytest.raises(OSError, match=r"out cannot be written to .*choose another output_dir"):
        encode(model="not there")
    Path("out").unlink()
    Path("out").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match="out is a link to nowhere, which is not there: make that folder"):
        encode(model="not there")


@pytest.mark.parametrize(
    "content", [b"", b"[" * 50_000, b"[]", b"null", b"\xff", b"\0", b'{"asked": 3}', b'{"asked": {"max_length": NaN}}']
)
def test_a_damaged_record_of_what_was_asked_is_refused_before_anything_is_loaded(place, content):
    Path("out").mkdir()
    Path("out/_encoding.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"out/_encoding\.json.* (name another output_dir|give a dict)$"):
        encode(model="not there")
    assert Path("out/_encoding.json").read_bytes() == content


@pytest.mark.parametrize("told", [None, {b"x": b""}, {b"hf_roformer": b"["}, {b"hf_roformer": b'{"rows": "x"}'}])
def test_a_part_that_another_program_wrote_is_not_counted(place, told):
    ours("model")
    encode()
    last = parts()[-1]
    pq.write_table(pq.read_table(last).replace_schema_metadata(told), last)
    with pytest.raises(
        ValueError, match=r"out holds a part that this program did not write .*name another output_dir"
    ):
        encode()


@pytest.mark.parametrize("dtype", ["os", None, 3, ["float32"]])
def test_a_folder_that_was_begun_with_what_is_no_dtype_is_refused(place, dtype):
    ours("model")
    Path("out").mkdir()
    Path("out/_encoding.json").write_text(json.dumps({"asked": {"dtype": dtype}}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"out was begun with the dtype .*, which is none of ours: name another"):
        encode(dtype="auto")


# the small parts


@pytest.mark.parametrize("budget", [1, 7, 20, 1000])
def test_batches_hold_every_row_once_and_stay_within_the_budget(budget):
    lengths = [random.Random(budget).randrange(0, 12) for _ in range(60)]
    batches = cut_batches(lengths, budget)
    assert sorted(at for batch in batches for at in batch) == [at for at, length in enumerate(lengths) if length]
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[at] for at in batch) <= budget
    heads = [max(lengths[at] for at in batch) for batch in batches]
    assert heads == sorted(heads, reverse=True)


@pytest.mark.parametrize("threaded", [True, False])
def test_working_ahead_keeps_the_order_and_lets_errors_through(threaded):
    assert list(ahead([1, 2, 3], lambda n: n * n, threaded=threaded)) == [(1, 1), (2, 4), (3, 9)]
    with pytest.raises(ZeroDivisionError, match="division"):
        list(ahead([1, 0, 2], lambda n: 1 // n, threaded=threaded))


def test_a_command_names_model_dataset_and_folder_or_leaves_them_to_a_recipe(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: m\ndataset: d\noutput_dir: o\nnormalize: true\ncolumns: [a, b]\n", encoding="utf-8")
    placed = read_command(["m", "d", "o", "--normalize", "true", "--columns", "a", "b"])
    assert placed == read_command([str(recipe)])
    assert read_command(["m", "d2", "o", str(recipe)]).dataset == "d2"
    for wrong, fault in (
        (["m", "d"], "a command line is MODEL DATASET OUTPUT_DIR"),
        (["--model", "m"], "dataset, output_dir not given"),
        (["m", "d", "o", "--poling", "mean"], "poling is no setting; the nearest known one is pooling"),
        (["m", "d", "o", "--max_length", "0"], "max_length is 0; it must be 1 or more"),
        (["m", "d", "o", "--columns", "a", "a"], "columns names a twice"),
        (["m", "d", "o", "--task", "token_classification", "--text_pair_column", "b"], "places in one text"),
    ):
        with pytest.raises(ValueError, match=fault):
            read_command(wrong)


def test_the_script_tells_what_it_wrote(place, capsys, monkeypatch):
    ours("model")
    monkeypatch.syspath_prepend(ROOT / "scripts")
    with contextlib.suppress(KeyError):
        del sys.modules["encode"]
    import encode as script

    script.main(words())
    told_of = capsys.readouterr().out
    assert f"{len(TEXTS)} rows" in told_of
    assert "5 Parquet files are in out" in told_of


# the race


def runners(**changes):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return encoding_peers.PeerArguments(**{**sizes, "rounds": 2, "rows": 12, "batch_size": 4, **changes})


def without_the_other_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    monkeypatch.setattr(encoding_peers, "fast_cpu_matmul", contextlib.nullcontext)
    monkeypatch.setattr(encoding, "products_of", contextlib.nullcontext)
    monkeypatch.setattr(encoding_peers, "draw_texts", lambda told: TEXTS[: told.rows])


def test_a_race_is_run_by_systems_that_agree_and_tells_every_turn(place, monkeypatch, caplog):
    without_the_other_library(monkeypatch)
    told_of = runners(output="race.json")
    result = encoding_peers.race(told_of)
    assert list(result.seconds) == ["ours, float32", "pipeline"]
    assert [len(times) for times in result.seconds.values()] == [2, 2]
    assert result.differences["ours, float32"] < 1e-5
    assert "sentence-transformers is not installed" in caplog.text
    lines = encoding_peers.describe(told_of, result).splitlines()
    assert [line.split(" | ")[0] for line in lines[-2:]] == ["| ours, float32", "| pipeline"]
    assert json.loads(Path("race.json").read_text())["rows"] == 12


def test_a_race_of_systems_that_disagree_is_not_run(place, monkeypatch):
    without_the_other_library(monkeypatch)
    ours_of = encoding_peers.ours
    monkeypatch.setattr(encoding_peers, "ours", lambda *told: lambda texts: ours_of(*told)(texts) + 1)
    with pytest.raises(ValueError, match=r"ours, float32 differs from the pipeline by 1\.0e\+00"):
        encoding_peers.race(runners())


def test_the_race_reads_a_packages_texts_in_an_order_that_the_seed_settles():
    first, again, other = (encoding_peers.draw_texts(runners(rows=5, seed=seed)) for seed in (0, 0, 1))
    assert first == again != other
    assert len(first) == 5
