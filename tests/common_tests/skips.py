# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""List every skip with its reason; fail where ours skip a test that the built-in runs, and no reason is named here."""

from collections import defaultdict

BUILTIN_MODEL, BUILTIN_TOKENIZER = "BuiltinTest", "BuiltinTokenizerTest"
# tests that the built-in runs and ours skip, and why
NAMED: dict[str, str] = {}

skipped: dict[str, dict[str, str]] = defaultdict(dict)


def pytest_configure(config):
    """Know the marks of the library's own pyproject."""
    for mark in ("flash_attn_test", "flash_attn_3_test", "flash_attn_4_test", "torch_compile_test", "generate"):
        config.addinivalue_line("markers", mark)
    for mark in ("torch_export_test", "is_training_test", "is_pipeline_test", "is_staging_test"):
        config.addinivalue_line("markers", mark)


def pytest_runtest_logreport(report):
    """Note what is skipped, and why."""
    if report.skipped and isinstance(report.longrepr, tuple):
        _, case, test = report.nodeid.split("::")
        skipped[case][test] = report.longrepr[2].removeprefix("Skipped: ")


def more_than_builtin():
    """Return what ours skip beyond the built-in, by test."""
    found = defaultdict(list)
    for case, tests in skipped.items():
        builtin = BUILTIN_TOKENIZER if case.endswith("TokenizerTest") else BUILTIN_MODEL
        if case == builtin:
            continue
        # where the built-in skips nothing, or was not run, every skip of ours is one too many
        for test in tests.keys() - skipped.get(builtin, {}).keys() - NAMED.keys():
            found[test].append(f"{case}: {tests[test]}")
    return found


def pytest_sessionfinish(session):
    """Fail where a skip has no reason of ours."""
    if not hasattr(session.config, "workerinput") and more_than_builtin():
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter):
    """Tell each skip once, with the cases that share it."""
    shared = defaultdict(list)
    for case, tests in skipped.items():
        for test, reason in tests.items():
            shared[test, reason].append(case)
    terminalreporter.section("skips and their reasons")
    for (test, reason), cases in sorted(shared.items()):
        terminalreporter.line(f"{test} [{', '.join(sorted(cases))}]: {reason}")
    for test, cases in sorted(more_than_builtin().items()):
        terminalreporter.line(f"NOT SKIPPED BY THE BUILT-IN: {test} [{'; '.join(sorted(cases))}]", red=True)
