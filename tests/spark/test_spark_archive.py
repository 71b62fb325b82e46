"""Bytecode in the zip files from which the Python processes of Spark import PySpark."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_modules_of_a_zip_file_get_bytecode_under_their_names_in_it(tmp_path: Path) -> None:
    path = tmp_path / "modules.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("package/__init__.py", "")
        file.writestr("package/broken.py", "def")
        file.writestr("package/module.py", "def where(): return where.__code__.co_filename")
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT / "scripts")!r})
from spark_archive import add_bytecode
for _ in range(2):
    add_bytecode(Path({str(path)!r}))
sys.path.insert(0, {str(path)!r})
from package import module
print(module.__file__, module.where())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"{path}/package/module.pyc", f"{path}/package/module.py"]
    assert [file.name for file in tmp_path.iterdir()] == ["modules.zip"]
