"""What a failure of an engine means.

Engines report a failure as pages of Java and Python tracebacks with the cause somewhere inside. CAUSES lists failures
that were seen with real engines, Flink 1.16, Prism 2.77, Spark 3.5 and Beam's own job service, and that a user can act
on.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pipeline.beam.internals import CHANNEL_CLOSED


class Cause(NamedTuple):
    """One known cause of a failed job. Another attempt would end in the same error.

    pattern: matches only errors with this cause; what its group found replaces {0} in the advice.
    advice: what is wrong and what to do, as one or more sentences.
    is_usage: nothing can be started with these flags on this machine.
    """

    pattern: str
    advice: str
    is_usage: bool = False


_REFUSED = r"(?:UNAVAILABLE|StatusRuntimeException|ConnectException).*Connection refused"

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
        r"No module named '(pipeline|schemas|apache_beam|tqdm|tokenizers|orjson|sentencex|zstandard|jieba|nlpo3"
        r"|pythainlp|sudachi|trafilatura)[\w.]*'",
        "The workers' Python has no {0}. Install `clozeline[pipeline]`, of the launcher's version, where they run, and "
        "`clozeline[chinese]` for jieba, `clozeline[japanese]` for sudachi, `clozeline[thai]` for nlpo3 and pythainlp, "
        "or `clozeline[corpora]` for trafilatura.",
    ),
    Cause(
        r"(Cannot run program \"[^\"]+\"|(?i:cannot connect to the docker daemon)|docker: (?:command )?not found"
        r"|No such file or directory: 'docker'|exec: \"docker\"|IOException: error=(?:2|8|13)(?=,)"
        r"|Process died with exit code (?!137|143)\d+)",  # not those of SIGKILL and SIGTERM
        "The engine cannot start its workers ({0}). DOCKER needs Docker on the engine's machines. With PROCESS, the "
        "command in --environment_config must be one executable file, without arguments, at the same path on every "
        "machine of the engine; start it there by hand, with --help, to see whether it works.",
    ),
    Cause(
        rf"(?s){_REFUSED}: (\S+:\d+)|ipv[46]:(\S+:\d+): Failed to connect to remote host[^\n]*refused|{_REFUSED}",
        "A connection inside the engine to {0} was refused. Workers of LOOPBACK run in the launcher, which must be on "
        "the engine's machine; those of EXTERNAL run in a pool, `clozeline worker --pool`, which must listen at "
        "--environment_config as seen from the engine; and the job server must reach Flink's or Spark's master.",
    ),
    Cause(
        r"DefaultCredentialsError|RefreshError|Reauthentication is needed|invalid_grant",
        "The credentials of Google Cloud are missing or no longer valid: `gcloud auth application-default login`.",
        is_usage=True,
    ),
    Cause(
        r"Unable to fetch remote (?:job server jar|prism binary) at (\S+?):? ",
        "The engine could not be downloaded from {0}. Download it by other means and give its path with "
        "--flink_job_server_jar, --spark_job_server_jar or --prism_location, or give --job_endpoint of a job server "
        "that runs.",
        is_usage=True,
    ),
)
"""Known causes, in the order in which they are tried."""

LOST_WORKER = (
    rf"call already cancelled|Multiplexer hanging up|{CHANNEL_CLOSED}"
    r"|Process died with exit code|SDK harness (?:died|exited|was lost|disconnected)|worker.*?disconnected"
    r"|Heartbeat of TaskManager|TaskManager with id .* (?:timed out|is no longer reachable)"
    r"|Connection unexpectedly closed by remote task manager"
    r"|TaskExecutor .*disconnected|ExecutorLostFailure|Lost task"
)
"""What engines report when a worker, or a machine with workers, ended before its work was done."""


class Explanation(NamedTuple):
    """What a failure means, in sentences. may_pass: another attempt may succeed. is_usage: see Cause."""

    text: str
    may_pass: bool
    is_usage: bool = False


def explain(error: BaseException) -> Explanation:
    details = getattr(error, "details", None)  # of a gRPC error: the engine's own words
    text = str((details() if callable(details) else "") or error) or type(error).__name__
    for cause in CAUSES:
        match = re.search(cause.pattern, text)
        if match:
            named = [group for group in match.groups() if group] or ["another machine"]
            return Explanation(cause.advice.format(*named), False, cause.is_usage)

    if re.search(LOST_WORKER, text):
        said = re.sub(r"^(?:[\w$]+(?:Exception|Error): )+", "", last_message(text)).rstrip(".")
        return Explanation(f"A worker, or the machine that it ran on, was lost ({said}).", may_pass=True)
    return Explanation(last_message(text), may_pass="Traceback (most recent call last)" not in text)


def last_message(text: str) -> str:
    """Return the last line of an engine's error, which is the cause after all tracebacks, as one sentence."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else "no reason was given"

    last = re.sub(r"^Pipeline \S+ failed in state \w+: ", "", last)
    last = re.sub(r"^(?:[\w$]+\.)*[\w$]+(?:Exception|Error): (?=(?:[\w$]+\.)*[\w$]+(?:Exception|Error): )", "", last)
    last = re.sub(r"\b(?:[a-z][\w$]*\.)+([A-Z][\w$]*(?:Exception|Error))", r"\1", last)  # classes without packages
    return last[:600].rstrip(".") + "."
