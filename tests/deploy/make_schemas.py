"""Makes the schemas in tests/deploy/schemas from their projects' own, so that tests need no network.

    python tests/deploy/make_schemas.py trainjob manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml
    python tests/deploy/make_schemas.py flinkdeployment .../crds/flinkdeployments.flink.apache.org-v1.yml
    python tests/deploy/make_schemas.py skypilot [FOLDER]     where `import sky` works

The first two read a CustomResourceDefinition of the version that is named in SOURCES. Every key of `spec` is kept;
descriptions and `status` are left out, unknown keys are forbidden where the API server would drop them without a word,
and parts that occur more than once are written once. Needs PyYAML alone, or SkyPilot.
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
    "skypilot": "skypilot 0.14.1 (PyPI), sky/utils/schemas.py: get_task_schema and get_resources_schema",
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


def skypilot_task() -> Schema:
    """Return the schema of a task with its resources, without what Clozeline's task does not use."""
    from sky.utils import schemas  # type: ignore[import-not-found]

    task = strict(schemas.get_task_schema())
    for name in ("config", "service", "pool", "volume_mounts", "managed_secrets", "_metadata"):
        task["properties"].pop(name)

    resources = strict(schemas.get_resources_schema())
    for name in ("_cluster_config_overrides", "any_of", "ordered", "autostop"):
        resources["properties"].pop(name, None)
    recovery = resources["properties"]["job_recovery"]["anyOf"]
    recovery[1]["additionalProperties"] = False  # open for plug-ins, which are not used here
    task["properties"]["resources"] = resources
    return task


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
    name = sys.argv[1]
    is_task = name == "skypilot"
    schema = skypilot_task() if is_task else custom_resource(Path(sys.argv[2]))
    folder = Path(sys.argv[2]) if is_task and len(sys.argv) > 2 else FOLDER
    (folder / f"{name}.json").write_text(as_text(name, share_parts(schema)))


if __name__ == "__main__":
    main()
