"""`ablate export --lean`: a bundle for a repository, whose table is that of the store."""

import errno
import hashlib
import io
import json
import lzma
import os
import resource
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from conftest import Shell, contents, records

from ablate.audit import bundle_check, lean
from ablate.audit.bundle import Bundle
from ablate.audit.rerun import SAME_BITS
from ablate.run.metrics.classify import CLASSIFY
from ablate.run.metrics.probed import PROBE_METRICS, gradnorm_profile
from ablate.shared.errors import Failure
from ablate.shared.files import to_json

SWEEP = ("sweep", "stem=none,dpn", "model.arch=mu/4", "model.depth=1", "train.steps=30", "seeds=3")
PROBES = "probe=[gradnorm,attention]"
TUNED = """
base: {recipe: quick, data: digits, model.arch: mu/4, model.depth: 1, train.steps: 4}
baseline: plain
variants: [{plain: {}}, {dpn: {stem: dpn}}]
seeds: 2
tune: {space: {optim.lr: {choices: [3e-3, 1e-2]}}, sampler: grid, repeats: 1, at: {train.steps: 2}}
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Shell:
    """A folder with a store, the bundle `whole` of its sweep, and the bundle `out`, a lean one."""
    shell = Shell(tmp_path_factory.mktemp("lean"))
    (shell.folder / "sweeps").mkdir()
    (shell.folder / "sweeps" / "tuned.yaml").write_text(TUNED)
    shell(*SWEEP, PROBES, "launcher=inline", "--as", "tiny")
    shell("export", "tiny", "whole")
    shell("export", "tiny", "out", "--lean")
    return shell


@pytest.fixture
def out(exported, tmp_path) -> Path:
    """A copy of the lean bundle, to be changed."""
    return shutil.copytree(exported.folder / "out", tmp_path / "out")


def members(bundle: Path) -> dict[str, bytes]:
    with tarfile.open(bundle / lean.PACKED) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def pack(bundle: Path, files: dict[str, bytes]) -> None:
    """Pack the files, as somebody does who knows of hashes: the manifest is that of the archive."""
    with (
        lzma.open(bundle / lean.PACKED, "wb") as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    seal(bundle)


def seal(bundle: Path) -> None:
    """Seal the bundle anew, whatever its archive is."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    content = (bundle / lean.PACKED).read_bytes()
    manifest["files"][lean.PACKED] = hashlib.sha256(content).hexdigest()
    manifest["seal"] = hashlib.sha256(to_json(manifest["files"])).hexdigest()
    (bundle / "manifest.json").write_bytes(to_json(manifest))


@pytest.mark.whole
def test_tables_frames_and_figures_are_those_of_the_whole_bundle(exported):
    whole, out = (contents(exported.folder / name) for name in ("whole", "out"))
    raw = {name for name in whole if name.startswith(("specs/", "predictions/"))}
    assert {*out} == {*whole} - raw - {"report.html"} | {lean.PACKED}
    differ = {name for name in {*out} & {*whole} if whole[name] != out[name]}
    assert differ == {"README.txt", "manifest.json", "figures/gradnorm.svg"}  # of fewer steps
    plan, _ = Bundle(exported.folder / "out").read_sealed()
    assert plan.spread == "images"  # which the classes are for
    full = ("--notes", "full")
    for more in (("csv",), ("tidy",), ("md", "--show", "gain,verdict", *full), ("json",)):
        said, known = (exported("table", "--from", f, "--format", *more) for f in ("out", "whole"))
        assert said.out == known.out


@pytest.mark.whole
def test_verify_says_what_it_can_not_recompute(exported):
    done = exported("verify", "out")
    assert "verified: 6 runs" in done.out
    assert [line for line in done.out.splitlines() if line.startswith("note: ")] == [
        "note: lean: top-5 accuracy, test loss, test results of trials, and the hashes of files "
        "that were thinned, can't be recomputed: they are as the export read and checked them"
    ]


def test_it_keeps_a_class_an_image_and_the_hash_of_the_whole_file(exported):
    files = members(exported.folder / "out")
    for run in Bundle(exported.folder / "whole").read_sealed()[0].runs():
        folder = exported.folder / "runs" / "runs" / run.id
        table = np.load(folder / "predictions.npy")
        taken = np.load(io.BytesIO(files[f"predictions/{run.id}.npy"]))
        assert taken.dtype == [("class", "i1"), ("label", "i1")]
        assert ((taken["class"] == taken["label"]) == (table["rank"] == 0)).all()
        result = json.loads(files[f"specs/{run.id}/result.json"])
        assert json.loads(files[f"specs/{run.id}/whole.json"]) == {
            f"{run.id}.npy": result["predictions_sha256"],
            "probe-gradnorm.npz": result["probes_sha256"]["gradnorm"],
        }
        for name in ("run.json", "result.json", "env.json", "metrics.jsonl", "probe-attention.npz"):
            assert files[f"specs/{run.id}/{name}"] == (folder / name).read_bytes()


def test_a_flipped_class_is_named(out, exported):
    files = members(out)
    name = next(name for name in files if name.startswith("predictions/"))
    table = np.load(io.BytesIO(files[name]))
    right = int((table["class"] == table["label"]).argmax())
    table["class"][right] = (table["label"][right] + 1) % 10
    np.save(file := io.BytesIO(), table)
    manifest = (out / "manifest.json").read_bytes()
    pack(out, {**files, name: file.getvalue()})
    for command in (("verify", out), ("table", "--from", out)):
        done = exported(*command, code=1)
        assert f"{Path(name).stem} " in done.out + done.err
        assert "by the predictions" in done.out + done.err
    (out / "manifest.json").write_bytes(manifest)
    assert "runs.tar.xz: changed after the export" in exported("verify", out, code=1).out
    assert "runs.tar.xz: was changed" in exported("table", "--from", out, code=1).err


@pytest.mark.parametrize("file", ["whole.json", "result.json", "metrics.jsonl"])
def test_a_changed_file_of_a_run_is_named(out, file):
    files = members(out)
    name = next(name for name in files if name.endswith(file))
    pack(out, {**files, name: files[name].replace(b"1", b"2")})
    findings = bundle_check.check_bundle(Bundle(out)).findings
    assert any(name.split("/")[1] in finding for finding in findings)


@pytest.mark.parametrize("name", ["../evil.txt", "/tmp/evil.txt", "specs/../evil.txt", "evil.txt"])
def test_an_archive_of_somebody_else_writes_nowhere(out, name):
    pack(out, {**members(out), name: b""})
    with pytest.raises(Failure, match="no file of a run"):
        Bundle(out).recompute(*Bundle(out).read_sealed())
    assert "no file of a run" in str(bundle_check.check_bundle(Bundle(out)).findings)


def test_a_full_temporary_disk_is_no_damage_of_the_bundle(out, monkeypatch):
    class NoSpace(OSError):
        pass

    def full(*_: object) -> None:
        raise NoSpace(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(lean, "_unpack_member", full)
    with pytest.raises(NoSpace):
        lean.unpack(out, out.parent)


def test_what_is_unpacked_goes_with_the_bundle(exported):
    bundle = Bundle(exported.folder / "out")
    folder = bundle.rundir(next(iter(bundle.read_sealed()[0].runs())).id).path
    assert folder.is_dir()
    del bundle
    assert not folder.exists()


def test_the_same_files_are_packed_to_the_same_bytes(exported, tmp_path):
    lean.unpack(exported.folder / "out", tmp_path)
    lean.pack(tmp_path)
    packed = (tmp_path / lean.PACKED).read_bytes()
    assert packed == (exported.folder / "out" / lean.PACKED).read_bytes()


@pytest.mark.whole
def test_a_table_of_top_5_has_all_that_it_needs(exported):
    words = ("tiny", "analysis.metric=top5")
    exported("export", *words, "five", "--lean")
    assert exported("verify", "five").out.splitlines()[-1].endswith("nothing wrong")
    said = exported("table", "--from", "five", "--format", "tidy").out
    assert said == exported("table", *words, "--format", "tidy").out
    assert Bundle(exported.folder / "five").read_sealed()[0].spread == "images"


@pytest.mark.whole
def test_trials_keep_their_results_alone_and_an_anonymous_bundle_names_nobody(exported):
    exported("sweep", "tuned", "launcher=inline")
    exported("export", "tuned", "trials", "--lean", "--anonymous")
    assert "nothing wrong" in exported("verify", "trials").out
    full = ("--notes", "full")
    assert exported("table", "--from", "trials", *full).out == exported("table", "tuned", *full).out
    lines = records((exported.folder / "trials" / "runs.csv").read_text())
    trials = [line["id"] for line in lines if line["trial"]]
    files = members(exported.folder / "trials")
    assert len(trials) == 4
    for run in trials:
        assert f"specs/{run}/result.json" in files
        assert f"predictions/{run}.npy" not in files
        assert [*json.loads(files[f"specs/{run}/whole.json"])] == [f"{run}.npy"]
    assert str(exported.folder).encode() not in b"".join(files.values())


# --- From a lean bundle back to a store -----------------------------------------------------------

TABLES = (("csv",), ("tidy",), ("md", "--show", "gain,verdict", "--notes", "full"))


def brought(shell: Shell, *words: str) -> list[int]:
    """How many runs `ablate merge` brought from each source."""
    report = json.loads(shell("merge", *words, "--format", "json").out)
    return [source["brought"] for source in report["sources"]]


@pytest.fixture
def back(exported, tmp_path) -> Shell:
    """A folder with the lean bundle, and the store `back` that was made of it."""
    shell = Shell(tmp_path)
    shutil.copytree(exported.folder / "out", tmp_path / "out")
    assert brought(shell, "out", "--store", "back") == [6]
    return shell


@pytest.mark.whole
def test_a_store_of_it_has_the_same_tables_verifies_and_trains_only_new_seeds(exported, back):
    for format in TABLES:
        table = ("table", "tiny", "--format", *format)
        assert back(*table, "--store", "back").out == exported(*table).out
    verified = back("verify", "tiny", "--store", "back").out
    assert "lean" in verified
    assert "nothing wrong" in verified
    words = (*SWEEP[:-1], PROBES, "launcher=inline", "--as", "tiny", "seeds=4")
    assert back(*words, "--store", "back").out.count("finished: ") == 2
    for seeds in ("seeds=3", "seeds=4"):  # read at both
        exported(*words[:-1], seeds, "--store", "four")
    for format in TABLES:
        table = ("table", "tiny", "--format", *format, "--store")
        assert back(*table, "back").out == exported(*table, "four").out


@pytest.mark.whole
def test_a_store_of_it_is_exported_lean_alone_to_the_same_files(back):
    assert "--lean" in back("export", "tiny", "whole", "--store", "back", code=2).err
    assert not (back.folder / "whole").exists()
    back("export", "tiny", "again", "--lean", "--store", "back")
    assert "nothing wrong" in back("verify", "again").out
    assert members(back.folder / "again") == members(back.folder / "out")
    back("merge", "again", "--store", "third")
    assert "nothing wrong" in back("verify", "tiny", "--store", "third").out
    assert brought(back, "back", "--store", "fourth") == [6]
    assert "nothing wrong" in back("verify", "tiny", "--store", "fourth").out


def test_whole_runs_replace_thinned_ones_and_are_never_replaced(exported, back):
    for source in (exported.folder / "whole", exported.folder / "runs"):
        assert brought(back, str(source), "--store", "back")[0] >= 6  # and other sweeps' runs
        assert not list((back.folder / "back").rglob("thinned.json"))
        verified = back("verify", "tiny", "--store", "back").out
        assert "lean" not in verified
        assert "nothing wrong" in verified
        assert brought(back, "out", "--store", "back") == [0]
        shutil.rmtree(back.folder / "back")
        back("merge", "out", "--store", "back")


def test_a_lean_and_a_whole_bundle_at_once_leave_whole_runs(exported, back):
    for sources in (
        ("out", str(exported.folder / "whole")),
        (str(exported.folder / "whole"), "out"),
    ):
        back("merge", *sources, "--store", "both")
        assert not list((back.folder / "both").rglob("thinned.json"))
        assert "nothing wrong" in back("verify", "tiny", "--store", "both").out
        shutil.rmtree(back.folder / "both")


def test_a_merge_that_was_killed_before_it_recorded_goes_on(back):
    """Its runs are in their places, and no ledger has them."""
    for store in ("killed", "swept"):
        shutil.copytree(back.folder / "back" / "runs", back.folder / store / "runs")
    assert brought(back, "out", "--store", "killed") == [6]
    back(*SWEEP, PROBES, "launcher=inline", "--as", "tiny", "--store", "swept")
    for store in ("killed", "swept"):
        assert "nothing wrong" in back("verify", "tiny", "--store", store).out


def test_an_edit_of_a_thinned_file_is_found(back):
    predictions = next((back.folder / "back").rglob("predictions.npy"))
    table = np.load(predictions)
    table["class"][0] = (table["class"][0] + 1) % 10
    np.save(predictions, table)
    run = predictions.parent.name
    assert f"{run} " in back("verify", "tiny", "--store", "back", code=1).out
    assert f"{run}/predictions.npy" in back("table", "tiny", "--store", "back").out  # withheld
    # by somebody who knows of hashes: only the ledger has that of the list
    thinned = predictions.with_name("thinned.json")
    content = json.loads(thinned.read_text())
    content["predictions.npy"]["kept"] = hashlib.sha256(predictions.read_bytes()).hexdigest()
    thinned.write_bytes(to_json(content))
    assert "thinned.json" in back("verify", "tiny", "--store", "back", code=1).out


@pytest.mark.whole
def test_trials_without_predictions_come_back_too(exported, tmp_path):
    exported("sweep", "tuned", "launcher=inline", "--store", "searched")
    exported("export", "tuned", "searches", "--lean", "--store", "searched")
    exported("merge", "searches", "--store", "found")
    assert "nothing wrong" in exported("verify", "tuned", "--store", "found").out
    full = ("--notes", "full", "--store")
    tables = [exported("table", "tuned", *full, store).out for store in ("searched", "found")]
    assert tables[0] == tables[1]
    done = exported("sweep", "tuned", "launcher=inline", "--store", "found")
    assert done.out.count("finished: ") == 0


def test_one_run_trained_again_has_the_bits_that_the_lean_bundle_names(back):
    said = back("verify", "tiny", "--rerun", "dpn#1", "launcher=inline", "--store", "back").out
    files = ("weights.safetensors", "predictions.npy", "probe-gradnorm.npz", "metrics.jsonl")
    assert {f"{file}: {SAME_BITS}" for file in files} <= {*said.splitlines()}


# --- Forged ---------------------------------------------------------------------------------------


def zeros(path: Path, header: bytes, size: int) -> None:
    """An archive of a header, and so many zeros behind it: a few hundred bytes a megabyte."""
    with lzma.open(path, "wb", preset=1) as packed:
        packed.write(header)
        for _ in range(size >> 20):
            packed.write(bytes(1 << 20))


def header(name: str, size: int, kind: bytes) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


def forge(packed: Path, how: str) -> None:
    whole, size = packed.read_bytes(), 256 << 20
    match how:
        case "cut":
            packed.write_bytes(whole[: len(whole) // 2])
        case "empty":
            packed.write_bytes(b"")
        case "no xz":
            packed.write_bytes(b"these are no bytes of xz" * 100)
        case "no tar":
            packed.write_bytes(lzma.compress(b"these are no bytes of tar" * 100))
        case "member of zeros":
            zeros(packed, header("predictions/a.npy", size, tarfile.REGTYPE), size)
        case "pax header":
            zeros(packed, header("pax", size, tarfile.XHDTYPE), size)
        case "long name":
            zeros(packed, header("././@LongLink", size, tarfile.GNUTYPE_LONGNAME), size)
        case "chain of headers":
            chain = 5000 * (header("pax", 512, tarfile.XHDTYPE) + b"11 path=a\n".ljust(512, b"\0"))
            packed.write_bytes(lzma.compress(chain))


FORGED = ("cut", "empty", "no xz", "no tar", "member of zeros", "pax header", "long name")


@pytest.mark.whole
@pytest.mark.parametrize("how", [*FORGED, "chain of headers"])
def test_a_forged_archive_is_named_in_one_line_at_once(out, how, ask):
    """Sealed anew, so that its hash is right. A cut stream ended the command as Ctrl-D does."""
    forge(out / lean.PACKED, how)
    seal(out)
    before = resource.getrusage(resource.RUSAGE_SELF)
    for words in (("table", "--from", str(out)), ("verify", str(out))):
        code, text = ask(*words)
        lines = [line for line in text.splitlines() if lean.PACKED in line or "rror" in line]
        assert (code, len(lines)) == (1, 1), text
        assert lean.PACKED in lines[0]
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime - before.ru_utime < 10
    assert after.ru_maxrss - before.ru_maxrss < 100 << 10  # of kB


# --- What is taken ------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 10, 100, 1000])
def test_a_tie_counts_as_wrong(classes):
    draw = np.random.default_rng(0)
    table = np.zeros(500, [("class", "<i4"), ("rank", "<i4"), ("loss", "<f8"), ("label", "<i4")])
    logits = draw.integers(0, 9, (500, classes))  # many ties
    table["class"] = logits.argmax(1)
    table["label"] = np.where(draw.random(500) < 0.5, table["class"], classes - 1)
    true = np.take_along_axis(logits, table["label"][:, None], 1)
    table["rank"] = (logits >= true).sum(1) - 1
    wrong, other = table["rank"] > 0, table["class"] != table["label"]
    assert (wrong & ~other).any()
    taken = CLASSIFY.excerpt.take(table)
    assert taken.itemsize == 2 * (1 if classes <= 128 else 2)
    scores = CLASSIFY.score(table, classes)
    assert CLASSIFY.excerpt.score(taken) == {key: scores[key] for key in ("n", "top1")}
    assert (taken["class"] == table["class"])[wrong & other].all()


@pytest.mark.parametrize("records", [0, 1, 7, 40, 400])
def test_fewer_gradient_norms_have_the_same_mean_at_the_end(records):
    groups = np.array(["embedding", "blocks.0.attn", "head"])
    norms = np.random.default_rng(0).random((records, 3))
    arrays = {"steps": 10 * np.arange(records), "groups": groups, "norms": norms}
    taken = PROBE_METRICS["gradnorm"].excerpt(arrays)
    if records:
        assert (gradnorm_profile(taken)[1] == gradnorm_profile(arrays)[1]).all()
    assert len(taken["steps"]) <= records / 4 + 2
