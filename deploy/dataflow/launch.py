"""Runs in the launcher of a Dataflow Flex Template: submits one command of the pipeline and does not wait for it.

The launcher's image is the workers' image with Google's launcher program added:

    FROM gcr.io/dataflow-templates-base/python311-template-launcher-base:latest AS launcher
    FROM us-docker.pkg.dev/my-project/images/clozeline-pipeline:0.1.0
    # change: the image of deploy/images/Dockerfile, target pipeline, with EXTRAS=pipeline,s3,gcp,chinese and USER_ID=0
    COPY --from=launcher /opt/google/dataflow/python_template_launcher /opt/google/dataflow/python_template_launcher
    COPY deploy/dataflow/launch.py /template/launch.py
    ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/template/launch.py
    ENTRYPOINT ["/opt/google/dataflow/python_template_launcher"]

Build one template for each step (shard, vocab, pairs), with the step's flags as its parameters:

    python deploy/dataflow/template.py shard > shard.json
    gcloud dataflow flex-template build gs://my-bucket/templates/shard.json \
        --image us-docker.pkg.dev/my-project/images/clozeline-launcher:0.1.0 --sdk-language PYTHON \
        --metadata-file shard.json

Google's launcher passes every parameter as a flag, and adds --runner, --project, --region, --job_name and
--template_location. The job is written to a file at that location, and Dataflow starts it after this program has
exited. So nothing here may wait for the job, and everything that must be done at its end is part of its graph.
"""

from __future__ import annotations

import sys

from pipeline.cli import main
from pipeline.flags import Switch, flags_of
from pipeline.options import PairsJob, ShardJob, VocabJob

STEP_BY_PARAMETER = {"input": "shard", "inputs": "shard", "model": "vocab", "extend": "vocab", "vocab": "pairs"}
"""Parameters that only one of the templates has, and the pipeline command that this template runs. Each command has at
least one: vocab learns a model or extends a vocabulary, and shard reads one corpus or several."""

USAGE = """\
launch.py --PARAMETER=VALUE ...

Started by Dataflow with the parameters of a Flex Template, which template.py prints. Which step it is follows from
them: shard has `input` or `inputs`, vocab has `model` or `extend`, pairs has `vocab`."""

SWITCHES = {
    name: [f"--no_{name}"] if flag.off_help else []
    for job in (ShardJob, VocabJob, PairsJob)
    for name, (flag, _) in flags_of(job).items()
    if isinstance(flag, Switch)
}
"""Parameters whose flags take no value, and the flags that stand for `false`."""


def command_of(arguments: list[str]) -> list[str]:
    """Return the words of the pipeline's command line for the flags that the template's launcher passes.

    Raises ValueError unless they identify exactly one step.
    """
    names = {argument.partition("=")[0].removeprefix("--") for argument in arguments}
    steps = list(dict.fromkeys(step for parameter, step in STEP_BY_PARAMETER.items() if parameter in names))
    if len(steps) != 1:
        found = " and ".join(steps) or "no step"
        raise ValueError(f"the parameters are those of {found}. Give one of {', '.join(STEP_BY_PARAMETER)}.")

    flags = [flag for argument in arguments for flag in _flags_of(argument)]
    return [steps[0], *flags, "--no_wait"]


def _flags_of(argument: str) -> list[str]:
    name, _, value = argument.removeprefix("--").partition("=")
    if name not in SWITCHES or value not in ("true", "false"):
        return [argument]
    return [f"--{name}"] if value == "true" else SWITCHES[name]


def run(arguments: list[str]) -> int:
    """Submit the step and return the process's exit code."""
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    try:
        command = command_of(arguments)
    except ValueError as error:
        print(f"clozeline: {error}\n\n{USAGE}", file=sys.stderr)
        return 2
    return main(command)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
