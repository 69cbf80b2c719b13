"""What a PySpark worker does between two tasks: no zip file of Spark's is read again for it."""

import importlib
import sys
import zipfile
from pathlib import Path

import pytest

from tidemark.cold_start import forget_archives

SPARKS = ("pyspark.zip", "py4j-0.10.9.9-src.zip", "spark-core_2.13-4.0.5.jar")


@pytest.mark.parametrize("name", [*SPARKS, "my.zip"])
def test_an_archive_of_spark_alone_is_not_read_again_and_serves_imports(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's own zip file may be replaced by a newer one, and `invalidate_caches` is how that is seen."""
    archive = tmp_path / name
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("tidemark_probe/__init__.py", "")
        made.writestr("tidemark_probe/late.py", "found = True")
    monkeypatch.syspath_prepend(str(archive))
    monkeypatch.setattr(sys, "path_importer_cache", dict(sys.path_importer_cache))
    importlib.import_module("tidemark_probe")
    forget_archives()
    known = [path for path in sys.path_importer_cache if path.startswith(str(archive))]
    assert (not known) == (name in SPARKS)
    if name in SPARKS:
        # Nothing of it is read by this, so it may even be away.
        archive.rename(tmp_path / "away")
        importlib.invalidate_caches()
        (tmp_path / "away").rename(archive)
    assert importlib.import_module("tidemark_probe.late").found
    for module in ("tidemark_probe", "tidemark_probe.late"):
        del sys.modules[module]
