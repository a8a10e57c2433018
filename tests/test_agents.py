"""Agents as users: a script follows SKILL.md, reading JSON and exit codes alone, and a client of
the package `mcp` calls the tools that a server offers."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ABLATE

from ablate.cli import serving

EXIT_TRY_AGAIN = 75
SMALL = ["stem=none,dpn", "model.depth=1", "model.width=16", "model.heads=2", "train.steps=4"]


def ablate(folder: Path, line: str) -> tuple[int, dict[str, Any]]:
    """Run a line of the page in a process without a terminal: its exit code and its object."""
    command, *words = shlex.split(line)
    assert command == "ablate"
    ended = subprocess.run(
        [ABLATE, *words], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return ended.returncode, json.loads(ended.stdout)


# --- SKILL.md -------------------------------------------------------------------------------------


@pytest.fixture
def page(shell) -> str:
    shell("new", "skill")
    return (shell.folder / "SKILL.md").read_text()


def test_the_page_is_short_and_has_the_head_of_a_skill(page):
    assert 25 <= page.count("\n") <= 40
    head = re.match(r"---\nname: (\w+)\ndescription: (.+)\n---\n", page)
    assert head[1] == "ablate"
    assert len(head[2]) < 1024


@pytest.mark.slow  # test_guides types the page, too
def test_the_page_is_followed_to_the_letter(page, tmp_path):
    lines = re.findall(r"^```sh\n(.+)\n```$", page, re.MULTILINE)
    answers: dict[str, dict[str, Any]] = {}
    for line in lines:
        code, document = ablate(tmp_path, line)
        while code == EXIT_TRY_AGAIN:
            assert document["retry"]
            code, document = ablate(tmp_path, line)
        assert (code, document.get("error")) == (0, None), line
        answers[line.split()[1]] = document
    assert [*answers] == ["plan", "sweep", "status", "table"]
    plan, status, table = answers["plan"], answers["status"], answers["table"]
    assert plan["total"] == status["done"] == status["total"] == 10
    assert plan["left"]["device_seconds"] > 0
    assert table["complete"]
    [column] = table["columns"]
    [verdict] = [entry["verdict"] for entry in column["entries"] if entry["verdict"]]
    assert f"*{verdict.split(' within ')[0]}" in page


@pytest.mark.whole
def test_the_page_says_how_to_answer_a_mistake(page, tmp_path):
    [line] = re.findall(r"^ablate sweep .+$", page, re.MULTILINE)
    code, document = ablate(tmp_path, line.replace("stem=none,dpn", "stem=none,dpm"))
    assert (code, document["retry"]) == (2, False)
    assert "dpn" in document["fix"]


# --- The server -----------------------------------------------------------------------------------


def test_a_server_needs_its_package_and_speaks_its_own_protocol(shell, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    assert "mcp>=2.0" in shell("mcp", code=2).err
    assert json.loads(shell("mcp", "--format", "json", code=2).out)["place"] == "--format json"
    assert "sweep" in shell("mcp", "--allow", "gc", code=2).err


def served(folder: Path, calls: list[tuple[str, dict[str, Any]]], *flags: str) -> dict[str, Any]:
    """The tools of `ablate mcp FLAGS`, and under "answers" what its calls return, in order."""
    mcp = pytest.importorskip("mcp")
    stdio = pytest.importorskip("mcp.client.stdio")
    words = ["-P", "-m", "ablate", "mcp", *flags]
    server = stdio.StdioServerParameters(command=sys.executable, args=words, cwd=folder)

    async def talk() -> dict[str, Any]:
        async with (
            stdio.stdio_client(server) as (incoming, outgoing),
            mcp.ClientSession(incoming, outgoing) as session,
        ):
            await session.initialize()
            tools = [tool.name for tool in (await session.list_tools()).tools]
            answers = []
            for name, arguments in calls:
                result = await session.call_tool(name, arguments)
                answers.append(result.structured_content or result.content[0].text)
            return {"tools": tools, "answers": answers}

    return asyncio.run(talk())


@pytest.mark.whole
def test_a_client_plans_sweeps_waits_and_reads(tmp_path):
    calls = [
        ("plan", {"words": SMALL, "name": "small"}),
        ("sweep", {"words": [*SMALL, "seeds=2"], "name": "small"}),
        ("status", {"sweep": "small", "wait_s": 200}),
        ("table", {"sweep": "small"}),
        ("table", {"sweep": "smal"}),
        ("plan", {"words": ["--store", "elsewhere"]}),
    ]
    found = served(tmp_path, calls, "--allow", "sweep")
    assert {*found["tools"]} == {"plan", "status", "table", "gate_log", "sweep"}
    plan, sweep, status, table, unknown, option = found["answers"]
    assert [answer["exit_code"] for answer in found["answers"]] == [0, 0, 0, 0, 2, 2]
    assert (plan["sweep"], sweep["sweep"]) == ("small", "small")
    assert status["done"] == status["total"] == 4
    assert table["complete"]
    assert "small" in unknown["fix"]
    assert not (tmp_path / "elsewhere").exists()
    assert "error" in option


def test_a_command_that_is_killed_is_answered(tmp_path, monkeypatch):
    pytest.importorskip("anyio")
    killed = tmp_path / "python"
    killed.write_text("#!/bin/sh\nkill -KILL $$\n")
    killed.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(killed))
    document = asyncio.run(serving._answer("plan", tmp_path, [], []))
    assert (document["exit_code"], document["retry"], document["place"]) == (137, True, "plan")
    assert signal.SIGKILL.name in document["error"]


@pytest.mark.whole
def test_a_server_that_is_not_allowed_to_train_has_no_tool_for_it(tmp_path):
    found = served(tmp_path, [("plan", {"words": SMALL}), ("sweep", {"words": SMALL})])
    assert {*found["tools"]} == {"plan", "status", "table", "gate_log"}
    plan, refused = found["answers"]
    assert plan["exit_code"] == 0
    assert isinstance(refused, str)
    assert not (tmp_path / "runs" / "ledger.db").exists()
