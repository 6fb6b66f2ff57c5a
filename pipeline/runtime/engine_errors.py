"""Explains errors of engines and of their clients, and what a user can do about them.

Engines report a failure as pages of Java and Python tracebacks with the cause somewhere inside. CAUSES lists failures
that were seen with real engines: Flink 1.16, Prism 2.77, Spark 3.5 and Beam's own job service.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_MAX_MESSAGE = 600  # characters of an engine's message that are shown


@dataclass(frozen=True)
class Cause:
    """One known cause of a failed job.

    pattern: a regular expression that matches only errors with this cause; its group, if any, replaces {0} in the
    advice.
    advice: what is wrong and what to do, as one or more sentences.
    may_pass: the same job may succeed when it is submitted again.
    is_usage: nothing can be started with these flags on this machine.
    """

    pattern: str
    advice: str
    may_pass: bool = False
    is_usage: bool = False


_REFUSED = (
    "A connection inside the engine was refused. Workers of LOOPBACK run in the launcher, which must be on the "
    "engine's machine; those of EXTERNAL run in a pool, `clozeline worker --pool`, which must listen at "
    "--environment_config as seen from the engine; and the job server must reach Flink's or Spark's master."
)

CAUSES = (
    Cause(
        r"state CANCELL?ED|Job was cancell?ed|JobCancellationException",
        "The job was canceled on the engine. Run the same command again to continue; finished pieces are reused.",
    ),
    Cause(
        r"Insufficient number of network buffers: (required \d+, but only \d+ available)",
        "Flink's TaskManagers have too few network buffers ({0}). Raise taskmanager.memory.network.min and .max in "
        "Flink's configuration, for example to 512m, or lower --parallelism.",
    ),
    Cause(
        r"NoResourceAvailableException|Could not acquire the minimum required resources",
        "Flink has fewer free task slots than the job's --parallelism. Lower it, wait for other jobs, or start more "
        "TaskManagers.",
    ),
    Cause(
        r'(?i)cannot connect to the docker daemon|Cannot run program "docker"|docker: (?:not found|command not found)'
        r"|No such file or directory: 'docker'|exec: \"docker\"",
        "The workers should run in containers, but there is no Docker where the engine would start them. Give "
        "--environment_type EXTERNAL, PROCESS or LOOPBACK; docs/engines.md says which one fits.",
    ),
    Cause(
        r"No module named '(pipeline|schemas|apache_beam|tqdm|tokenizers|orjson|sentencex|zstandard)[\w.]*'",
        "The workers' Python has no {0}. Install `clozeline[pipeline]`, of the launcher's version, where they run.",
    ),
    Cause(
        r"No module named '(jieba)'",
        "The workers' Python has no {0}. Install the extra `clozeline[chinese]` where they run.",
    ),
    Cause(
        r'Cannot run program "[^"]+"|java.io.IOException: error=(?:2|8|13),',
        "The engine cannot start its workers. The command in --environment_config must be one executable file, without "
        "arguments, at the same path on every machine of the engine.",
    ),
    Cause(
        r"Process died with exit code (?!137|143)(\d+)",  # not those of SIGKILL and SIGTERM
        "A worker ended with exit code {0}. Start the command in --environment_config by hand on a machine of the "
        "engine, with --help, to see whether it works there; the engine's log may say more.",
    ),
    Cause(
        r"(?s)(?:UNAVAILABLE|StatusRuntimeException|ConnectException).*Connection refused: (\S+:\d+)",
        _REFUSED.replace("was refused", "to {0} was refused"),
    ),
    Cause(
        r"ipv[46]:(\S+:\d+): Failed to connect to remote host[^\n]*Connection refused",
        _REFUSED.replace("was refused", "to {0} was refused"),
    ),
    Cause(r"(?s)(?:UNAVAILABLE|StatusRuntimeException|ConnectException).*Connection refused", _REFUSED),
    Cause(
        r"DefaultCredentialsError|RefreshError|Reauthentication is needed|invalid_grant",
        "The credentials of Google Cloud are missing or no longer valid: `gcloud auth application-default login`.",
        is_usage=True,
    ),
    Cause(
        r"You must specify a --job_endpoint",
        "PortableRunner needs --job_endpoint HOST:PORT, the address of a Beam job server.",
        is_usage=True,
    ),
    Cause(
        r"No such file or directory: '(?:\S*/)?(java)'",
        "The job server of Flink or Spark needs Java, and there is no `{0}`. Install a Java runtime, give "
        "--job_server_java_launcher, or --job_endpoint of a job server that runs elsewhere.",
        is_usage=True,
    ),
    Cause(
        r"Unable to parse jar URL \"([^\"]*)\"",
        "There is no job server at {0}. Give the path of an existing file, or leave the flag out and give "
        "--job_endpoint.",
        is_usage=True,
    ),
    Cause(
        r"Unable to fetch remote job server jar at (\S+?):? ",
        "The job server {0} could not be downloaded. Download it by other means and give its path with "
        "--flink_job_server_jar or --spark_job_server_jar, or give --job_endpoint of a job server that runs.",
        is_usage=True,
    ),
    Cause(
        r"Unable to fetch remote prism binary at (\S+?):? ",
        "Prism could not be downloaded from {0}. Download it by other means and give its path with --prism_location.",
        is_usage=True,
    ),
)
"""Known causes, in the order in which they are tried. None goes away in a second attempt."""

LOST_WORKERS = (
    r"call already cancelled|Multiplexer hanging up|Channel closed prematurely",
    r"Process died with exit code|SDK harness (?:died|exited|was lost|disconnected)|worker.*?disconnected",
    r"Heartbeat of TaskManager|TaskManager with id .* (?:timed out|is no longer reachable)",
    r"Connection unexpectedly closed by remote task manager",
    r"TaskExecutor .*disconnected|ExecutorLostFailure|Lost task",
)
"""Patterns of what engines report when a worker, or a machine with workers, ended before its work was done."""

_FAULT_OF_A_STEP = "Traceback (most recent call last)"


@dataclass(frozen=True)
class Explanation:
    """What a failure means. text: one or more sentences. may_pass, is_usage: as in Cause."""

    text: str
    may_pass: bool
    is_usage: bool = False


def explain(error: BaseException) -> Explanation:
    """Return what an error of an engine or of its client means."""
    text = text_of(error)
    for cause in CAUSES:
        match = re.search(cause.pattern, text)
        if match:
            return Explanation(cause.advice.format(*match.groups()), cause.may_pass, cause.is_usage)

    if any(re.search(pattern, text) for pattern in LOST_WORKERS):
        said = re.sub(r"^(?:[\w$]+(?:Exception|Error): )+", "", last_message(text)).rstrip(".")
        return Explanation(f"A worker, or the machine that it ran on, was lost ({said}).", may_pass=True)
    return Explanation(last_message(text), may_pass=_FAULT_OF_A_STEP not in text)


def last_message(text: str) -> str:
    """Return the last line of an engine's error, which is the cause after all tracebacks, as one sentence."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else "no reason was given"

    last = re.sub(r"^Pipeline \S+ failed in state \w+: ", "", last)
    last = re.sub(r"^(?:[\w$]+\.)*[\w$]+(?:Exception|Error): (?=(?:[\w$]+\.)*[\w$]+(?:Exception|Error): )", "", last)
    last = re.sub(r"\b(?:[a-z][\w$]*\.)+([A-Z][\w$]*(?:Exception|Error))", r"\1", last)  # classes without packages
    return last[:_MAX_MESSAGE].rstrip(".") + "."


def text_of(error: BaseException) -> str:
    """Return an error's text. For a gRPC error these are its `details`, the engine's own words."""
    details = getattr(error, "details", None)
    if callable(details):
        text = details()
        if text:
            return str(text)
    return str(error) or type(error).__name__
