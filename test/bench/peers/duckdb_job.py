"""One job in DuckDB: duckdb_job.py JOB IN OUT"""
import sys

import duckdb

job, source, target = sys.argv[1:]
columns = ("id", "first_name", "country", "amount", "created_at", "active", "attributes")
from_csv = "read_csv('%s', header = true, all_varchar = true, compression = '%s')"
from_json = "read_ndjson('%%s', columns = {%s}, compression = '%%s')" % ", ".join(f"{c}: 'VARCHAR'" for c in columns)
typed = "* REPLACE (id::BIGINT AS id, attributes::JSON AS attributes)"
selected, reader, packed, packs = {
    "csv": ("*", from_csv, "none", "uncompressed"),
    "csv-typed": (typed, from_csv, "none", "uncompressed"),
    "jsonl": ("*", from_json, "none", "uncompressed"),
    "csv-zstd": ("*", from_csv, "none", "zstd"),
    "jsonl-zstd": ("*", from_json, "none", "zstd"),
    "zstd-csv": ("*", from_csv, "zstd", "uncompressed"),
    "zstd-jsonl": ("*", from_json, "zstd", "uncompressed"),
}[job]
db = duckdb.connect()
db.execute("SET enable_progress_bar = false")
db.execute(f"COPY (SELECT {selected} FROM {reader % (source, packed)}) TO '{target}' (FORMAT json, COMPRESSION {packs})")
