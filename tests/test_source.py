"""Which files a class of the user's own is made of: an edit of any of them is another version."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from ablate.run.source import code_hash, local_files
from ablate.shared.errors import UserError

FILES = {
    "alone.py": "import json, torch\nfrom ablate.shared import errors\n",
    "train.py": "import numpy\nimport pkg.deep.end as end\nfrom pkg import near, VALUE\n",
    "pkg/__init__.py": "VALUE = 1\n",
    "pkg/near.py": "from . import sibling\nfrom .deep import *\n",
    "pkg/sibling.py": "def late():\n    import later\n",
    "pkg/deep/__init__.py": "from ..above import NUMBER\n",
    "pkg/deep/end.py": "",
    "pkg/above.py": "import train\nNUMBER = 2\n",  # a circle
    "later.py": "",
    "unused.py": "",
    "pkg/unused.py": "",
    "json.py": "",  # Python's own is not the folder's
    "numpy/__init__.py": "",  # nor is what is installed
}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def imported(folder: Path, module: str) -> set[str]:
    """What Python itself has loaded from the folder, which is last on its path."""
    code = (
        f"import sys; sys.path.append({str(folder)!r}); import {module}; import pkg.sibling as s;"
        f"s.late(); print(*(m.__file__ for m in sys.modules.values()"
        f" if (getattr(m, '__file__', None) or '').startswith({str(folder)!r})))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, check=True)
    return set(done.stdout.decode().split())


def test_the_files_are_those_that_python_loads(folder):
    files = local_files(folder / "train.py", folder)
    assert files[0] == folder / "train.py"
    assert files[1:] == sorted(files[1:])
    assert {str(file) for file in files} == imported(folder, "train")


def test_the_packages_of_a_file_are_part_of_its_code(folder):
    end = folder / "pkg" / "deep" / "end.py"  # which imports nothing itself
    assert {str(file) for file in local_files(end, folder)} == imported(folder, "pkg.deep.end")
    (folder / "pkg" / "empty").mkdir()
    alone, above = folder / "pkg" / "empty" / "alone.py", folder / "pkg" / "__init__.py"
    for file in (alone, alone.with_name("__init__.py"), folder / "__init__.py"):
        file.touch()
    assert local_files(alone, folder) == [alone, above]
    above.write_text("")
    assert local_files(alone, folder) == [alone]


def test_a_file_alone_is_hashed_as_it_is(folder):
    content = (folder / "alone.py").read_bytes()
    assert code_hash(folder / "alone.py", folder) == hashlib.sha256(content).hexdigest()[:12]


def test_an_edit_of_any_of_the_files_is_another_hash(folder, tmp_path_factory):
    before = code_hash(folder / "train.py", folder)
    for name, text in FILES.items():
        (folder / name).write_text(f"{text}# edited\n")
        uses = name.startswith(("train", "later", "pkg/")) and name != "pkg/unused.py"
        assert (code_hash(folder / "train.py", folder) != before) == uses, name
        (folder / name).write_text(text)
    moved = folder.rename(tmp_path_factory.mktemp("elsewhere") / "moved")
    assert code_hash(moved / "train.py", moved) == before


def test_a_file_that_is_no_python_is_named(folder):
    (folder / "later.py").write_text("def (:\n")
    with pytest.raises(UserError, match=r"later\.py: invalid syntax .*line 1"):
        local_files(folder / "train.py", folder)
