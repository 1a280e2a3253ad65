"""Score a sentence embedder with mteb, on pairs of one's own: nothing is fetched.

$ python run_mteb.py FOLDER OUTPUT
"""

import json
import sys

import mteb
from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from sentence_transformers import SentenceTransformer

ONE = ["今天天气很好。", "这本书写得很好", "好", "那家店的菜也很香"]
OTHER = ["今天的天气真好！", "那家店的菜", "这本书", "天气也很好"]
SCORES = [1.0, 0.2, 0.4, 0.1]


class OwnPairs(AbsTaskSTS):
    metadata = TaskMetadata(
        name="OwnPairs",
        description="how alike two texts are",
        dataset={"path": "own/pairs", "revision": "1"},
        type="STS",
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["cmn-Hans"],
        main_score="cosine_spearman",
    )
    min_score, max_score = 0, 1

    def load_data(self, *args, **kwargs):
        rows = {"sentence1": ONE, "sentence2": OTHER, "score": SCORES}
        self.dataset, self.data_loaded = DatasetDict({"test": Dataset.from_dict(rows)}), True


if __name__ == "__main__":
    folder, output = sys.argv[1:]
    model = SentenceTransformer(folder, trust_remote_code=True, device="cpu")
    result = mteb.evaluate(model, tasks=[OwnPairs()], cache=None)
    with open(output, "w") as file:
        json.dump(result.task_results[0].scores["test"][0], file)
