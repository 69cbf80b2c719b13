"""DuckDB with its own Iceberg extension. The extension comes from PyPI, in the version of DuckDB itself, so
nothing is downloaded when it is loaded; DuckDB checks its signature."""

from importlib.resources import files
from typing import Any


def connect_duckdb() -> Any:
    """A connection that knows `iceberg_scan(metadata_location)`. To be closed."""
    import duckdb

    connection = duckdb.connect(config={"autoinstall_known_extensions": False})
    # Iceberg's manifests are Avro files.
    for name in ("avro", "iceberg"):
        place = files(f"duckdb_extension_{name}") / "extensions" / f"v{duckdb.__version__}"
        connection.load_extension(str(place / f"{name}.duckdb_extension"))
    return connection
