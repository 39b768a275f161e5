"""A dataset's description for machines: Croissant, JSON-LD that search engines and loaders read.

MLCommons Croissant format 1.0, https://docs.mlcommons.org/croissant/docs/croissant-spec-1.0.html.
A loader of it reads the catalog's rows; the arrays are Zarr, which it has no reader for, so their
fields are described and their files named.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa

from gaitforge.common.errors import amount, listed
from gaitforge.datasets import Selection
from gaitforge.datasets.catalog.catalog import json_sha256
from gaitforge.datasets.catalog.episodes import glossary
from gaitforge.datasets.layout import CATALOG, EDITS, PARTS
from gaitforge.datasets.storage.about import read_about
from gaitforge.datasets.storage.integrity import used_stems
from gaitforge.datasets.storage.store import PartStore

CONFORMS_TO = "http://mlcommons.org/croissant/1.0"
# The context of the specification's version 1.0: short names of its terms, and of schema.org's.
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
_PARQUET = "application/x-parquet"  # the name that mlcroissant reads
_ZARR = "application/vnd.zarr"
_FILES = "catalog-files"


def croissant_text(selection: Selection, folder: Path, condition: str) -> str:
    """The `croissant.json` of a whole store or of a selection's store, as text.

    Args:
        folder: of the card; condition: of the selection, named in the description.
    """
    return json.dumps(croissant(selection, condition), indent=1, ensure_ascii=False) + "\n"


def croissant(selection: Selection, condition: str = "") -> dict[str, Any]:
    """The description of a selection's store; places of files are relative to the store.

    Its version is 1.0.0 with the data's hash as the build; its date is that of writing it.
    """
    store = selection.store
    about = read_about(store)
    name = Path(store.full_address).name
    text = about.description or f"Motion of {selection.schema.robot}, recorded by gaitforge."
    size = f"{amount(len(selection), 'episode')}, {amount(selection.steps, 'control step')}"
    chosen = f" Selection: {condition}." if condition else ""
    catalogs = _used_files(store, f"{CATALOG}/", ".parquet")
    arrays = _used_files(store, f"{PARTS}/", "/**")
    record: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": name,
        "version": f"1.0.0+{store.info().hash[:12]}",
        "datePublished": date.today().isoformat(),
        "description": f"{text} {size}.{chosen}{_edits_in_words(selection)}",
        "keywords": ["robotics", "locomotion", "offline reinforcement learning"],
        "distribution": [
            _file_set(_FILES, catalogs, _PARQUET, "A row for each episode"),
            _file_set("array-files", arrays, _ZARR, "Fields of all steps, Zarr v3"),
        ],
        "recordSet": [_episodes(selection), _fields(selection), _provenance(selection)],
    }
    if about.licence:
        record["license"] = about.licence
    if about.citation:
        record["citeAs"] = about.citation
    if about.authors:
        record["creator"] = [{"@type": "sc:Person", "name": author} for author in about.authors]
    return record


def _used_files(store: PartStore, before: str, after: str) -> str | list[str]:
    """A pattern of the parts' files; one for each, where some were replaced by merged ones."""
    stems = used_stems(store)
    if len(stems) == len(store.files.stamps()):
        return f"{before}*{after}"
    return [f"{before}{stem}{after}" for stem in stems]


def _edits_in_words(selection: Selection) -> str:
    """What the rows of the catalog's files lack of a store that was edited."""
    catalog = selection.catalog
    if not catalog.edits:
        return ""
    episodes = amount(catalog.num_rows, "episode")
    edits = amount(len(catalog.edits), "later edit")
    left_out = amount(catalog.num_rows - len(catalog.shown), "episode")
    return (
        f" The files, and the record set 'episodes', have all {episodes} as collected. Their "
        f"{edits} ({EDITS}/, which gaitforge applies) left out {left_out} and set the columns "
        f"{listed(catalog.overlaid_names)}."
    )


def _file_set(name: str, pattern: str | list[str], kind: str, text: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": name,
        "name": name,
        "description": text,
        "encodingFormat": kind,
        "includes": pattern,
    }


def _episodes(selection: Selection) -> dict[str, Any]:
    """The catalog's columns as collected, which a loader reads from its files."""
    schema = selection.catalog.collected.schema
    fields = []
    for meaning in glossary(selection.schema, schema):
        unit = f" ({meaning.unit})" if meaning.unit else ""
        source = {"fileSet": {"@id": _FILES}, "extract": {"column": meaning.name}}
        fields.append(
            {
                "@type": "cr:Field",
                "@id": f"episodes/{meaning.name}",
                "name": meaning.name,
                "description": f"{meaning.meaning}{unit}",
                "dataType": _data_type(schema.field(meaning.name).type),
                "source": source,
            }
        )
    return {"@type": "cr:RecordSet", "@id": "episodes", "name": "episodes", "field": fields}


def _data_type(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "sc:Boolean"
    if pa.types.is_integer(kind):
        return "sc:Integer"
    return "sc:Float" if pa.types.is_floating(kind) else "sc:Text"


def _fields(selection: Selection) -> dict[str, Any]:
    """The arrays' fields, as rows."""
    rows = [
        {
            "name": field.name,
            "per": field.per,
            "shape": json.dumps(field.shape),
            "dtype": field.dtype,
            "unit": field.unit,
            "description": field.description,
            "slices": json.dumps(dict(field.slices)),
        }
        for field in selection.schema.fields
    ]
    return _table("fields", rows)


def _provenance(selection: Selection) -> dict[str, Any]:
    """What identifies the data, as rows."""
    store = selection.store
    values = {
        "hash": store.info().hash,
        "selection": selection.hash,
        "schema": selection.schema.hash,
        "plan": json_sha256(store.plan) if store.plan else "",
        "control_dt_s": f"{selection.schema.control_dt_s:g}",
        "robot": selection.schema.robot,
        "gaitforge": version("gaitforge"),
    }
    return _table("provenance", [{"name": name, "value": value} for name, value in values.items()])


def _table(name: str, rows: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    """A record set whose rows are in the description itself."""
    table = [{f"{name}/{key}": value for key, value in row.items()} for row in rows]
    fields = [
        {"@type": "cr:Field", "@id": key, "name": key.partition("/")[2], "dataType": "sc:Text"}
        for key in table[0]
    ]
    return {"@type": "cr:RecordSet", "@id": name, "name": name, "field": fields, "data": table}
