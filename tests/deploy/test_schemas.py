"""The schemas of custom resources forbid what their CustomResourceDefinitions do not name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from tests.deploy.manifests import SCHEMAS


def nodes(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
    if isinstance(node, dict | list):
        for item in node.values() if isinstance(node, dict) else node:
            yield from nodes(item)


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.json")), ids=lambda path: path.stem)
def test_a_schema_is_strict_and_names_its_source(path) -> None:
    schema = json.loads(path.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert "github.com" in schema["$comment"] or "PyPI" in schema["$comment"]
    assert "Apache License 2.0" in schema["$comment"]

    objects = [node for node in nodes(schema) if node.get("type") == "object" and "properties" in node]
    assert len(objects) > 1 and all("additionalProperties" in node for node in objects)
