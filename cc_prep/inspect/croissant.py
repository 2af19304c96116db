"""Croissant: what training shards hold, in the vocabulary of MLCommons that search engines read.

Source: the Croissant format specification, version 1.0 (http://mlcommons.org/croissant/1.0).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from cc_prep import storage
from cc_prep.formats import training_shards

NAME = "croissant.json"
INDEX = "index"
ABOUT = {  # the columns that are described, of training_shards.INDEX_SCHEMA
    "key": "The sample's name, of the members of its shard too",
    "shard": "Its shard, without .tar",
    "split": "The split",
    "id": "The pair's id in its data set",
    "kind": "change or no_change",
    "change_type": "What kind of change, where it is known",
    "captions": "The reference captions",
    "before": "The image before, below the root of the data set",
    "after": "The image after",
    "height": "Of the frames, in px",
    "width": "Of the frames, in px",
}
TYPES = {pa.string(): "sc:Text", pa.int32(): "sc:Integer", pa.list_(pa.string()): "sc:Text"}
CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "equivalentProperty": "cr:equivalentProperty",
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
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


def write(
    folder: str, name: str, licence: str | None, rows: Sequence[Mapping[str, Any]], record: Any
) -> str:
    """Writes the description beside the shards; its path.

    Args:
        name: Of the data set.
        licence: An SPDX identifier.
        rows: Of the index.
        record: The provenance, which knows the digest of each shard.
    """
    shards = sorted({str(row["shard"]) for row in rows})
    files = [_file(INDEX, training_shards.INDEX, "application/x-parquet",
                   storage.sha256(storage.join(folder, training_shards.INDEX)))]  # fmt: skip
    for shard in shards:
        digest = record["shards"].get(shard, {}).get("sha256")
        files.append(_file(shard, f"{shard}.tar", "application/x-tar", digest))
    content = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": name,
        "description": f"{name}: {len(rows):,} pairs of images with captions of what changed, as "
        "WebDataset shards of the change captioning toolkit",
        **({} if licence is None else {"license": licence}),
        "distribution": files,
        "recordSet": [
            {"@type": "cr:RecordSet", "@id": "pairs", "name": "pairs", "field": list(_fields())}
        ],
    }
    path = storage.join(folder, NAME)
    storage.write_json(path, content)
    return path


def _file(id: str, url: str, kind: str, sha256: str | None) -> dict[str, Any]:
    digest = {} if sha256 is None else {"sha256": sha256}
    about = {"@type": "cr:FileObject", "@id": id, "name": id}
    return {**about, "contentUrl": url, "encodingFormat": kind, **digest}


def _fields() -> Iterable[dict[str, Any]]:
    for name, text in ABOUT.items():
        kind = training_shards.INDEX_SCHEMA.field(name).type
        yield {
            "@type": "cr:Field",
            "@id": f"pairs/{name}",
            "name": name,
            "description": text,
            "dataType": TYPES[kind],
            **({"repeated": True} if pa.types.is_list(kind) else {}),
            "source": {"fileObject": {"@id": INDEX}, "extract": {"column": name}},
        }
