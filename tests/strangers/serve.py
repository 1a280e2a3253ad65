"""Serve a folder that classifies texts.

$ FOLDER=runs/quickstart uvicorn serve:app
"""

import os

from fastapi import FastAPI
from transformers import pipeline

app = FastAPI()
classify = pipeline("text-classification", os.environ["FOLDER"], trust_remote_code=True)


@app.post("/classify")
def answer(texts: list[str]) -> list[dict[str, str | float]]:
    return classify(texts, batch_size=32)
