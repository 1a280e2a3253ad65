"""What a benchmark ran on: the kind of machine, and the versions of what took part."""

import importlib.util
import os
import platform
from pathlib import Path
from typing import Any

import psutil
import torch

from .facts import versions_of

GIGA = 10**9
OPTIONAL = ("onnxruntime",)


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def describe_machine(device: str) -> dict[str, Any]:
    """Return the kind of machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    kind = {"processor": _processor(), "cores": cores, "vector unit": torch.backends.cpu.get_cpu_capability()}
    kind["memory"] = f"{psutil.virtual_memory().total / GIGA:.0f} GB"
    return kind | ({"accelerator": torch.cuda.get_device_name()} if device == "cuda" else {})


def describe_versions() -> dict[str, str]:
    """Return the versions of what takes part."""
    peers = [name for name in OPTIONAL if importlib.util.find_spec(name) is not None]
    return versions_of(["torch", "transformers", *peers])
