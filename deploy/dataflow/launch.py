"""What a Flex Template of Clozeline runs in its launcher: one command of the pipeline, submitted and left alone.

The launcher's image is the workers' image with Google's launcher program added:

    FROM gcr.io/dataflow-templates-base/python311-template-launcher-base:latest AS launcher
    FROM us-docker.pkg.dev/my-project/images/clozeline-pipeline:0.1.0
    # change: the image of deploy/images/Dockerfile, target pipeline, with EXTRAS=pipeline,s3,gcp,chinese and USER_ID=0
    COPY --from=launcher /opt/google/dataflow/python_template_launcher /opt/google/dataflow/python_template_launcher
    COPY deploy/dataflow/launch.py /template/launch.py
    ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/template/launch.py
    ENTRYPOINT ["/opt/google/dataflow/python_template_launcher"]

One template is made for each step, from shard.json, vocab.json and pairs.json next to this file:

    gcloud dataflow flex-template build gs://my-bucket/templates/shard.json \
        --image us-docker.pkg.dev/my-project/images/clozeline-launcher:0.1.0 --sdk-language PYTHON \
        --metadata-file deploy/dataflow/shard.json

Google's launcher passes every parameter as a flag, and adds --runner, --project, --region, --job_name and
--template_location: the job is written to a file there, and Dataflow starts it once this program has exited. So nothing
here may wait for the job, and all that has to be done at its end is a step of its graph.
"""

from __future__ import annotations

import sys

from pipeline.cli import main

STEPS = ("shard", "vocab", "pairs")


def command_of(arguments: list[str]) -> list[str]:
    """Return the command of the pipeline for the flags that the template's launcher passes: --step, and the step's."""
    steps = [argument.partition("=")[2] for argument in arguments if argument.startswith("--step=")]
    if len(steps) != 1 or steps[0] not in STEPS:
        raise SystemExit(f"clozeline: the template's parameter `step` must be one of {', '.join(STEPS)}, once.")

    others = [argument for argument in arguments if not argument.startswith("--step=")]
    return [steps[0], *others, "--no_wait"]


if __name__ == "__main__":
    sys.exit(main(command_of(sys.argv[1:])))
