"""The store of a stream: copies of code, verify, gc, merge, restore."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess

import pytest
from support.files import write_files
from support.streams import WORDS, start_stream, stream_record, write_trainer

from ablate.api import Stream, Sweep
from ablate.audit.streams import bring_streams, stream_conflicts, verify_stream
from ablate.cli import keeping
from ablate.planning import ComposedCode
from ablate.shared import Failure, TryAgain
from ablate.store import Store, StreamFile, streams
from ablate.store.code_copies import MANIFEST


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The user's folder, in which this process works."""
    monkeypatch.chdir(tmp_path)
    write_trainer(tmp_path)
    return tmp_path


def test_a_copy_that_was_edited_is_named_and_never_trained(folder):
    stream = start_stream()
    (copy,) = (folder / "runs" / "code").iterdir()
    (copy / "toy.py").write_text("GAIN = 0")
    write_trainer(folder, gain=5.0)
    with pytest.raises(Failure, match=r"toy.py"):
        stream.attempt()


@pytest.mark.parametrize("path", ["../esc.py", "/esc.py", "a/../../esc.py"])
def test_a_copy_of_others_writes_nothing_outside(folder, path):
    copies = StreamFile(Store(folder / "runs"), "idea").copies
    with pytest.raises(Failure) as raised:
        copies.keep({path: b""}, folder)
    assert path in str(raised.value)
    name = copies.keep({"a.py": b"1"}, folder)
    manifest = copies.root / name / MANIFEST
    tree = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**tree, "links": [path]}))
    with pytest.raises(Failure) as raised:
        copies.prepare(name, folder)
    assert path in str(raised.value)


def test_a_copy_of_another_name_is_none(folder):
    copies = StreamFile(Store(folder / "runs"), "idea").copies
    name = copies.keep({"a.py": b"1"}, folder)
    (copies.root / name).rename(copies.root / ("0" * 16))
    with pytest.raises(Failure) as raised:
        copies.files("0" * 16)
    assert "0" * 16 in str(raised.value)
    (copies.root / name).mkdir()
    (copies.root / name / "mine").touch()  # so that no rename replaces it
    with pytest.raises(Failure):
        copies.keep({"a.py": b"1"}, folder)


def test_code_that_is_edited_while_it_is_read_is_no_proposal(folder, monkeypatch):
    stream = start_stream()
    write_trainer(folder, gain=1.0)
    of_folder = ComposedCode.of_folder

    def edited(*arguments):
        composed = of_folder(*arguments)
        write_trainer(folder, gain=2.0)
        return composed

    monkeypatch.setattr(ComposedCode, "of_folder", edited)
    with pytest.raises(TryAgain) as raised:
        stream.attempt()
    assert "toy.py" in str(raised.value)
    assert stream.log().proposals == 0


@pytest.fixture
def kept(folder):
    """A stream with a kept proposal and a discarded one."""
    stream = start_stream()
    write_trainer(folder, gain=5.0)
    assert stream.attempt().word == "keep"
    write_trainer(folder, gain=1.0)
    assert stream.attempt().word == "discard"
    return stream


@pytest.mark.whole
def test_verify_judges_every_look_again(kept, folder, run):
    assert run("verify", "idea")
    path = folder / "runs" / "streams" / "idea.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    last_seal = ""
    for line in lines:
        del line["seal"]
        if line["kind"] == "look" and line["word"] == "discard":
            line["gain"] += 0.001
        last_seal = line["seal"] = streams.seal_after(last_seal, line)
    path.write_text("".join(f"{json.dumps(line, sort_keys=True)}\n" for line in lines))
    store = Store(folder / "runs")
    findings = verify_stream(store, StreamFile(store, "idea")).findings
    assert len(findings) == 1
    assert "gain" in findings[0]


@pytest.mark.whole
def test_verify_checks_a_stream_and_a_sweep_of_one_name(kept, folder, run):
    """As a store of before may have both."""
    path = folder / "runs" / "streams" / "idea.jsonl"
    aside = path.rename(folder / "aside.jsonl")
    Sweep("trainer.rate=1,2", *WORDS, name="idea", seeds=1).train()
    aside.rename(path)
    assert "the sweep" in run("verify", "idea")
    store = Store(folder / "runs")
    (first, *_) = store.read_plan("idea").runs()
    result = store.rundir(first.id).result
    result.write_text(result.read_text().replace('"score":', '"score": 1'))
    run("verify", "idea", code=1)


@pytest.mark.whole
def test_verify_names_a_result_that_was_edited(kept, folder):
    store = Store(folder / "runs")
    (first, *_) = store.read_plan("idea.1").runs()
    result = store.rundir(first.id).result
    result.write_text(result.read_text().replace('"score":', '"score": 1'))
    assert verify_stream(store, StreamFile(store, "idea")).findings


@pytest.mark.whole
def test_gc_keeps_the_code_of_kept_baselines_alone(kept, folder, run):
    copies = {path.name for path in (folder / "runs" / "code").iterdir()}
    record = StreamFile(Store(folder / "runs"), "idea").record()
    needed = {code.copy for code in record.needed_codes}
    assert len(copies) == 3
    assert len(needed) == 2
    for path in (folder / "runs" / "code").iterdir():
        os.utime(path, (1.0, 1.0))
    run("gc", "--yes")
    assert {path.name for path in (folder / "runs" / "code").iterdir()} == needed
    write_trainer(folder, gain=9.0)
    assert kept.attempt().word == "keep"  # the baseline is trained from its copy


@pytest.mark.whole
def test_merge_brings_streams_and_their_code(kept, folder, run):
    run("merge", "runs", "--store", "both")
    there = Stream("idea", store="both")
    assert there.log().sentence == kept.log().sentence
    assert there.log().baselines == kept.log().baselines
    write_trainer(folder, gain=11.0)
    assert there.attempt().word == "keep"
    run("merge", "both", "--store", "runs")
    assert kept.log().kept == 2
    write_trainer(folder, gain=0.3)
    kept.attempt()
    write_trainer(folder, gain=0.4)
    there.attempt()
    store, source = Store(folder / "runs"), Store(folder / "both")
    assert len([*stream_conflicts(store, [source])]) == 1
    assert [*stream_conflicts(store, [store])] == []


@pytest.mark.whole
def test_gc_looks_again_before_it_removes_a_copy(kept, folder, run, monkeypatch):
    """While gc asks, the discarded content is tried again."""
    discarded, tried = stream_record().proposals[1].code.copy, []
    copy = folder / "runs" / "code" / discarded
    os.utime(copy, (1.0, 1.0))
    write_trainer(folder, gain=1.0)
    monkeypatch.setattr(keeping, "ask_for", lambda *arguments: tried.append(kept.attempt()))
    run("gc")
    assert [answer.proposal for answer in tried] == [2]
    assert copy.exists()


@pytest.mark.whole
def test_gc_leaves_a_linked_folder_of_code_alone(kept, folder, run):
    code = folder / "runs" / "code"
    code.rename(folder / "elsewhere")
    code.symlink_to(folder / "elsewhere")
    assert str(code.relative_to(folder)) in run("gc", "--yes")
    assert len([*code.iterdir()]) == 3


@pytest.mark.whole
def test_a_file_of_another_name_is_no_stream(kept, folder, run):
    path = folder / "runs" / "streams" / "idea.jsonl"
    path.with_name("idea.old.jsonl").write_bytes(path.read_bytes())
    assert [file.name for file in StreamFile.of_store(Store(folder / "runs"))] == ["idea"]
    run("gc", "--yes")


@pytest.mark.whole
@pytest.mark.parametrize("begun", ["", '{"at": 17'])
def test_a_start_that_a_crash_cut_off_is_no_stream(kept, folder, run, begun):
    (folder / "runs" / "streams" / "other.jsonl").write_text(begun)
    assert [file.name for file in StreamFile.of_store(Store(folder / "runs"))] == ["idea"]
    run("gc", "--yes")
    run("gate", "log", "other", code=2)
    assert start_stream("other").log().proposals == 0


def test_an_event_that_finds_no_room_is_an_error_and_none(folder):
    """The kernel writes up to the limit of a file's size, and then no more."""
    start_stream()
    file = StreamFile(Store(folder / "runs"), "idea")
    events, whole_bytes = file.events(), file.path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with file.appending() as writer:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (whole_bytes + 10, hard))
            with pytest.raises(OSError, match=str(errno.EFBIG)):
                writer.append("pairs", spread=[1.0, 2], runs=4)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert file.path.stat().st_size == whole_bytes + 10
        assert file.events() == events
        assert writer.append("pairs", spread=[1.0, 2], runs=5).first_runs == 5


@pytest.mark.whole
def test_merge_waits_for_who_appends(kept, folder, run, monkeypatch):
    """Whoever holds the lock has read the old file, and would append to it."""
    run("merge", "runs", "--store", "both")
    write_trainer(folder, gain=0.2)
    kept.attempt()
    store, both = Store(folder / "runs"), Store(folder / "both")
    old = (folder / "both" / "streams" / "idea.jsonl").read_bytes()
    monkeypatch.setattr(streams, "LOCK_WAIT_S", 0.0)
    with StreamFile(both, "idea").appending(), pytest.raises(TryAgain):
        bring_streams(both, store)
    assert (folder / "both" / "streams" / "idea.jsonl").read_bytes() == old
    write_trainer(folder, gain=0.1)
    Stream("idea", store="both").attempt()  # after stream_conflicts found none
    with pytest.raises(TryAgain):
        bring_streams(both, store)


def test_data_that_comes_later_is_linked_and_a_module_is_not(folder):
    copies = StreamFile(Store(folder / "runs"), "idea").copies
    name = copies.keep({"a.py": b"1"}, folder)
    copies.keep({"a.py": b"2", "rules.cfg": b"", "plugins/b.txt": b""}, folder)
    write_files(folder, points_csv="9", package__b_py="", late_py="", plugins__b_txt="")
    write_files(folder, **{"rules.cfg": "a later proposal's"}, images__0="")
    copy = copies.prepare(name, folder)
    later = {"points_csv", "images", "rules.cfg", "plugins", "package", "late.py"}
    assert later & {*os.listdir(copy)} == {"points_csv", "images"}
    assert (copy / "points_csv").read_text() == "9"


@pytest.mark.whole
def test_a_link_in_circles_is_left_out(folder):
    (folder / "circle").symlink_to("circle")
    stream = start_stream()
    (copy,) = (folder / "runs" / "code").iterdir()
    write_trainer(folder, gain=5.0)
    assert stream.attempt().word == "keep"
    assert "conf" in os.listdir(copy)
    assert "circle" not in os.listdir(copy)


def test_a_link_that_leads_nowhere_is_made_again(folder):
    copies = StreamFile(Store(folder / "runs"), "idea").copies
    write_files(folder, here__points="1", there__points="2")
    name = copies.keep({"a.py": b"1"}, folder / "here")
    copies.prepare(name, folder / "here")
    shutil.rmtree(folder / "here")
    copy = copies.prepare(name, folder / "there")
    assert (copy / "points").read_text() == "2"


PROGRAM = """
command: ./go.sh {seed}
result: {lines: 'error=(?P<error>.+)'}
metrics: {error: {direction: less}}
code: [go.sh]
"""
SCRIPT = "#!/bin/sh\n# COMMENT\necho error=$1\n"


@pytest.fixture
def script(folder):
    """A stream of a program that is started by its path, and may be."""
    write_files(folder, **{"go.sh": SCRIPT}, conf__trainer__go_yaml=PROGRAM)
    (folder / "go.sh").chmod(0o755)
    return Stream.start("idea", "trainer=go", "launcher=inline")


@pytest.mark.whole
def test_a_program_may_be_executed_from_its_copy_and_when_restored(script, folder, run):
    (folder / "go.sh").write_text(SCRIPT.replace("COMMENT", "another"))
    assert script.attempt().word in ("discard", "undecided")
    run("merge", "runs", "--store", "both")
    for store, back in (("runs", folder / "mine"), ("both", folder / "theirs")):
        back.mkdir()
        run("gate", "restore", "idea", "0", back, "--store", store)
        assert subprocess.check_output([back / "go.sh", "7"], text=True) == "error=7\n"


def test_a_program_that_may_be_executed_later_may_be_in_its_copy(script, folder):
    (folder / "go.sh").write_text(SCRIPT.replace("COMMENT", "another"))
    (folder / "go.sh").chmod(0o644)
    with pytest.raises(Failure):
        script.attempt()
    (folder / "go.sh").chmod(0o755)
    assert script.attempt().proposal == 1


@pytest.mark.whole
@pytest.mark.parametrize("damage", ["", "{}"])
def test_a_damaged_copy_of_another_code_stops_no_restore(kept, folder, run, damage):
    discarded = stream_record().proposals[1].code.copy
    (folder / "runs" / "code" / discarded / MANIFEST).write_text(damage)
    run("gate", "restore", "idea", "1", ".", code=2)  # nobody else has what lies here now
    run("gate", "restore", "idea", "1", ".", "--yes")
    assert (folder / "toy.py").read_bytes() == kept.files(1)["toy.py"]


@pytest.mark.whole
def test_restore_leaves_a_file_of_the_same_bytes(kept, folder):
    content = kept.files(0)["toy.py"]
    (folder / "elsewhere.py").write_bytes(content)
    (folder / "toy.py").unlink()
    (folder / "toy.py").symlink_to("elsewhere.py")
    kept.restore(0, folder)
    assert (folder / "toy.py").is_symlink()
    kept.restore(1, folder)
    assert (folder / "elsewhere.py").read_bytes() == content


@pytest.mark.whole
def test_restore_overwrites_no_edits_without_a_word(kept, folder, run):
    run("gate", "restore", "idea", "0", ".")  # over the discarded proposal, which has a copy
    assert "GAIN = 0.0" in (folder / "toy.py").read_text()
    (folder / "toy.py").write_text("mine")
    run("gate", "restore", "idea", "1", ".", code=2)
    assert (folder / "toy.py").read_text() == "mine"
    run("gate", "restore", "idea", "1", ".", "--yes")
    assert "GAIN = 5.0" in (folder / "toy.py").read_text()
