"""The command that serves tools to agents by the Model Context Protocol: mcp.

Each tool runs one command with `--format json` as a process of its own, and returns its object with
the exit code. So the plug-ins that an agent edits are loaded afresh at each call, what they print
can't break the protocol, and docs/json.md describes every answer.

Used by cli/__init__.py, which adds the command. A new tool also needs its line on the page
docs/how-to/agents.md.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ablate.cli.answers import JSON_VERSION, error_tree
from ablate.cli.options import RUNS, StoreDir, TextFormat, option
from ablate.shared import ENDING_SIGNALS, TryAgain, UserError, install_command, unknown_value

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

CHANGES = ("sweep", "gate")  # what a server does only where it is allowed
INSTRUCTIONS = (
    "ablate trains variants of a model with several seeds and says whether each one helps. Begin "
    "with `plan`; nothing is known before `table` has a verdict. In every answer `exit_code` is 0 "
    "where it went well; else `error` says why, `fix` what to do, and `retry` whether the same "
    "call may succeed later."
)


def mcp(
    allow: Annotated[
        list[str] | None,
        option(
            "sweep|gate",
            "Also offer a tool that starts trainings; can be repeated (default: tools that read).",
        ),
    ] = None,
    format: TextFormat = "text",
    store: StoreDir = RUNS,
) -> None:
    """Serve commands as tools for agents, on standard input: plan, status, table and gate_log, and
    sweep and gate_try where they are allowed."""
    if format != "text":
        raise UserError(f"--format {format}: mcp speaks a protocol of its own; leave it out")
    for change in allow or ():
        if change not in CHANGES:
            raise unknown_value("--allow", change, CHANGES)
    for number in ENDING_SIGNALS:  # it waits in a thread for input, which no interrupt ends
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    make_server(store, allow or ()).run("stdio")


def make_server(store: Path, allowed: Sequence[str] = ()) -> MCPServer:
    """Make a server whose tools work on a store. `allowed`: names of CHANGES. Raises UserError
    where the package `mcp` is not installed."""
    try:
        from mcp.server.mcpserver import MCPServer
    except ImportError as error:
        command = install_command("mcp")
        raise UserError(f"mcp: needs a package that is not installed; {command}") from error

    server = MCPServer("ablate", instructions=INSTRUCTIONS)

    @server.tool()
    async def plan(words: list[str], name: str = "") -> dict[str, Any]:
        """Show the runs and the cost of a sweep; trains nothing, but imports the code that it
        plans, and starts a Hydra application to print its configuration. `words`: a sweep file's
        name, or settings such as "stem=none,dpn" (the first value is the baseline) and
        "seeds=5"."""
        return await _answer("plan", store, words, _name_option(name))

    @server.tool()
    async def status(
        sweep: str = "", wait_s: float = 0, until_look: bool = False
    ) -> dict[str, Any]:
        """Show the progress of a sweep, by default the last one. `wait_s`: wait for its end up to
        so many seconds, with `until_look` for its next look; exit code 75 where that has not come
        yet."""
        options = []
        if wait_s > 0 and math.isfinite(wait_s):
            options += ["--wait", "--timeout", f"{wait_s:g}"]
            options += ["--until", "look"] * until_look
        return await _answer("status", store, [sweep] if sweep else [], options)

    @server.tool()
    async def table(sweep: str = "", fields: str = "gain,verdict,complete") -> dict[str, Any]:
        """Read gains with 95 % intervals, and verdicts. It is recorded as a look: read it when the
        sweep has ended. `fields`: the keys to return, "" for all."""
        options = ["--fields", fields] if fields else []
        return await _answer("table", store, [sweep] if sweep else [], options)

    @server.tool()
    async def gate_log(stream: str) -> dict[str, Any]:
        """Show what became of the proposals of a stream, and how many keeps chance explains."""
        return await _answer("gate log", store, [stream], [])

    if "gate" in allowed:

        @server.tool()
        async def gate_try(
            stream: str, words: list[str] | None = None, note: str = ""
        ) -> dict[str, Any]:
            """Judge the code in the folder, with settings as `words`, against the stream's
            baseline: trains up to 12 runs. `word` says keep, discard or undecided; `exit_code` is 0
            for keep alone, 3 for discard, 4 undecided, 5 stale. `note`: what the change is."""
            options = ["--note", note] if note else []
            return await _answer("gate try", store, [stream, *(words or ())], options)

    if "sweep" in allowed:

        @server.tool()
        async def sweep(words: list[str], name: str = "", long: bool = False) -> dict[str, Any]:
            """Start the missing runs of a sweep in the background; the same call resumes it. `long`
            agrees to a sweep of more than 24 device-hours."""
            options = [*_name_option(name), "--detach", "here", *["--yes"] * long]
            return await _answer("sweep", store, words, options)

    return server


def _name_option(name: str) -> list[str]:
    return ["--as", name] if name else []


async def _answer(
    command: str, store: Path, words: Sequence[str], options: Sequence[str]
) -> dict[str, Any]:
    """Run a command, and return its object and exit code. No word is taken for an option."""
    import anyio

    line = [sys.executable, "-P", "-m", "ablate", *command.split(), "--format", "json"]
    line += ["--store", str(store), *options, "--", *words]
    ended = await anyio.run_process(
        line, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )
    code = ended.returncode
    if code < 0:  # what it printed may be a part of its object
        killer = signal.Signals(-code).name
        error = TryAgain(f"{command}: was killed by {killer}; give the same call again")
        return {"version": JSON_VERSION, **error_tree(error), "exit_code": 128 - code}
    return {**json.loads(ended.stdout), "exit_code": code}
