"""Makes schemas of tests/deploy/schemas from their projects' own, so that tests need no network.

    python tests/deploy/make_schemas.py trainjob manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml
    python tests/deploy/make_schemas.py flinkdeployment .../crds/flinkdeployments.flink.apache.org-v1.yml

It reads a CustomResourceDefinition of the version that is named in SOURCES. Every key of `spec` is kept; descriptions
and `status` are left out, unknown keys are forbidden where the API server would drop them without a word, and parts
that occur more than once are written once. skypilot.json is made of SkyPilot's own schema and no such definition.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "schemas"
SHARED_LENGTH = 150  # characters from which a repeated part becomes a definition

SOURCES = {
    "trainjob": "github.com/kubeflow/trainer v2.3.0, manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml",
    "flinkdeployment": "github.com/apache/flink-kubernetes-operator release-1.15.0, "
    "helm/flink-kubernetes-operator/crds/flinkdeployments.flink.apache.org-v1.yml",
}
LICENSE = "Apache License 2.0, as in /LICENSE"

Schema = dict[str, Any]


def custom_resource(path: Path) -> Schema:
    """Return the schema of a custom resource without its status."""
    import yaml

    version = yaml.safe_load(path.read_text())["spec"]["versions"][0]
    schema = strict(version["schema"]["openAPIV3Schema"])
    schema["properties"].pop("status", None)
    for name in ("apiVersion", "kind"):
        schema["properties"].setdefault(name, {"type": "string"})
    schema["properties"]["metadata"] = {"type": "object"}  # tests check it with the schema of Kubernetes itself
    schema["additionalProperties"] = False
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    return schema


def strict(node: Any, is_properties: bool = False) -> Any:
    """Return a copy without descriptions and extensions, in which objects with known keys have no others."""
    if isinstance(node, list):
        return [strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    if is_properties:
        return {key: strict(value) for key, value in node.items()}

    left_out = ("description", "$schema", "default", "case_insensitive_enum")
    kept = {
        key: strict(value, is_properties=key in ("properties", "patternProperties"))
        for key, value in node.items()
        if key not in left_out and not key.startswith("x-kubernetes-")
    }
    is_open = node.get("x-kubernetes-preserve-unknown-fields", False)
    if "properties" in kept and "additionalProperties" not in kept and not is_open:
        kept["additionalProperties"] = False
    return kept


def share_parts(schema: Schema) -> Schema:
    """Write parts that occur more than once as definitions."""
    counts: Counter[str] = Counter()

    def count(node: Any) -> None:
        if isinstance(node, dict):
            counts[json.dumps(node, sort_keys=True)] += 1
        if isinstance(node, dict | list):
            for item in node.values() if isinstance(node, dict) else node:
                count(item)

    definitions: dict[str, Any] = {}
    names: dict[str, str] = {}

    def share(node: Any, is_part: bool) -> Any:
        if isinstance(node, list):
            return [share(item, is_part=True) for item in node]
        if not isinstance(node, dict):
            return node

        text = json.dumps(node, sort_keys=True)
        if not is_part or counts[text] == 1 or len(text) < SHARED_LENGTH:
            return {key: share(value, is_part=key != "properties") for key, value in node.items()}
        if text not in names:
            names[text] = f"part_{len(names)}"
            definitions[names[text]] = share(node, is_part=False)
        return {"$ref": f"#/$defs/{names[text]}"}

    count(schema)
    shared = share(schema, is_part=False)
    return shared | {"$defs": definitions} if definitions else shared


def as_text(name: str, schema: Schema) -> str:
    """Return the schema as JSON, with a line for each definition."""
    source: Schema = {"$comment": f"From {SOURCES[name]} by tests/deploy/make_schemas.py. {LICENSE}."}
    lines = []
    for key, value in (source | schema).items():
        if key == "$defs":
            inner = ",\n".join(f"{json.dumps(part)}: {json.dumps(content)}" for part, content in value.items())
            lines.append(f'"$defs": {{\n{inner}\n}}')
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    name, path = sys.argv[1:]
    (FOLDER / f"{name}.json").write_text(as_text(name, share_parts(custom_resource(Path(path)))))


if __name__ == "__main__":
    main()
