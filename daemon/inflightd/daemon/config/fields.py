"""Every option with its type, range, default and help: the one place they are written down.

`serve --help`, the environment (INFLIGHTD_<NAME>), the TOML keys and `config check` all come from these structs.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

_MAX_COUNT = 2**31 - 1  # what every counter and gRPC's own numbers hold
Count = Annotated[int, Meta(ge=1, le=_MAX_COUNT)]
# Written as a number of bytes or as text such as "4GiB".
ByteSize = Annotated[int, Meta(ge=1, le=2**63 - 1, extra={"kind": "size"})]
SwapSize = Annotated[int, Meta(ge=0, le=2**63 - 1, extra={"kind": "size"})]
MessageSize = Annotated[int, Meta(ge=65_536, le=_MAX_COUNT, extra={"kind": "size"})]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Milliseconds = Annotated[float, Meta(gt=0, le=86_400_000)]
TokenId = Annotated[int, Meta(ge=0, le=_MAX_COUNT)]
OptionValue = bool | int | float | str

DEFAULT_CLASS = "default"


class ClassConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A service class: what its requests are promised and what they may take.  TOML only: [classes.NAME]."""

    priority: Annotated[int, Meta(description="Higher goes first.", ge=-1000, le=1000)] = 0
    ttft_ms: Annotated[Milliseconds | None, Meta(description="Promised time to the first token.")] = None
    itl_ms: Annotated[Milliseconds | None, Meta(description="Promised gap between tokens.")] = None
    max_running: Annotated[Count | None, Meta(description="Most sequences of the class running at a time.")] = None
    kv_share: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(description="Largest fraction of the KV blocks its running sequences may hold."),
    ] = None
    max_prompt_tokens: Annotated[Count | None, Meta(description="A request with a longer prompt is refused.")] = None


class ScriptedConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The scripted engine, which needs no model."""

    script: Annotated[
        Literal["hashed", "echo", "tokens", "silent"],
        Meta(
            description="What it emits: a hash of the text so far, the prompt over and over, given token ids, or none."
        ),
    ] = "hashed"
    token_ids: Annotated[list[TokenId], Meta(description="The tokens of the script 'tokens'.")] = []
    eos_token_ids: Annotated[
        list[TokenId], Meta(description="Its end-of-sequence tokens; none: it never ends by itself.")
    ] = []
    step_ms: Annotated[float, Meta(description="Duration of a step.", ge=0, le=60_000)] = 0.0
    load_ms: Annotated[float, Meta(description="Duration of its load.", ge=0, le=600_000)] = 0.0
    block_size_tokens: Annotated[int, Meta(description="Tokens in a KV block.", ge=1, le=4096)] = 32
    host_blocks: Annotated[
        int, Meta(description="Blocks in host memory, for sequences that are swapped out.", ge=0, le=_MAX_COUNT)
    ] = 0
    vocab_size: Annotated[int, Meta(description="Size of its vocabulary.", ge=259, le=1_000_000)] = 512
    context_tokens: Annotated[int, Meta(description="Its own limit of prompt + output.", ge=2, le=_MAX_COUNT)] = 8192


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration.  Times and sizes carry their unit in the name or are bytes."""

    # what is served
    model: Annotated[str, Meta(description="Name of a pulled model, or path of a GGUF file or model folder.")] = ""
    model_name: Annotated[str, Meta(description="What clients call the model; default: the model's own name.")] = ""
    engine: Annotated[Literal["openvino", "scripted", "tensorrt_llm"], Meta(description="Which engine computes.")] = (
        "openvino"
    )
    precision: Annotated[
        Literal["bf16", "f32"] | None, Meta(description="Arithmetic of the model; default: the engine's choice.")
    ] = None
    threads: Annotated[Count | None, Meta(description="CPU threads of the engine; default: all cores.")] = None

    # scheduling
    scheduler: Annotated[
        str, Meta(description="Scheduler policy: name of an installed one, or module:Class.", min_length=1)
    ] = "throughput-max"
    scheduler_options: Annotated[
        dict[str, OptionValue], Meta(description="An option of the policy, key=value.", extra={"flag": "--set"})
    ] = {}
    plan_limit_ms: Annotated[
        float,
        Meta(description="A policy that plans a step for longer is replaced by the one before.", ge=10, le=60_000),
    ] = 1000.0
    max_batch_size: Annotated[int, Meta(description="Most sequences running at a time.", ge=1, le=4096)] = 32
    max_num_tokens: Annotated[int, Meta(description="Most tokens computed in a step.", ge=1, le=1_048_576)] = 2048
    classes: Annotated[dict[str, ClassConfig], Meta(description="Service classes.", extra={"toml_only": True})] = {}

    # the KV cache
    kv_blocks: Annotated[Count | None, Meta(description="KV blocks in the pool (or --kv-memory).")] = None
    kv_memory: Annotated[ByteSize | None, Meta(description="Memory of the KV pool, such as 2GiB (or --kv-blocks).")] = (
        None
    )
    kv_dtype: Annotated[
        Literal["bf16", "f32", "u8"] | None, Meta(description="Type of cached keys and values; default: the engine's.")
    ] = None
    prefix_cache: Annotated[
        bool,
        Meta(description="Keep the KV of finished prompts and answers until its blocks are needed, and find it again."),
    ] = True
    swap_memory: Annotated[
        SwapSize | None,
        Meta(
            description="Host memory for the KV of preempted sequences, such as 1GiB; 0: they are computed again; "
            "default: the engine's choice, at most 256MiB."
        ),
    ] = None

    # what a request may be
    default_max_tokens: Annotated[
        int, Meta(description="Output limit of requests that set none.", ge=1, le=1_048_576)
    ] = 256
    max_sequence_tokens: Annotated[
        Annotated[int, Meta(ge=2, le=_MAX_COUNT)] | None,
        Meta(description="Most prompt + output tokens of a request; default: what the model and the pool allow."),
    ] = None
    max_message_bytes: Annotated[MessageSize, Meta(description="Largest gRPC message, either way.")] = 16 * 1024 * 1024
    request_lifetime_s: Annotated[
        Seconds | None, Meta(description="Every request ends this long after it arrived; default: no limit.")
    ] = None

    # overload and slow readers
    max_queued_requests: Annotated[Count, Meta(description="Most requests waiting for their first token.")] = 1024
    max_queued_prompt_tokens: Annotated[
        Count, Meta(description="Most prompt tokens of requests waiting for their first token.")
    ] = 1_048_576
    stream_buffer_tokens: Annotated[
        Count, Meta(description="A stream whose reader is this many tokens behind is ended.")
    ] = 4096
    stream_stall_s: Annotated[
        Seconds, Meta(description="A stream whose reader takes nothing for this long is ended.")
    ] = 30.0

    # faults
    wedge_s: Annotated[
        float,
        Meta(
            description="An engine that owes tokens and makes no step, or loads and does not move, for so long is "
            "killed and started again; 0: never.",
            ge=0,
            le=86_400,
        ),
    ] = 60.0

    # where it listens
    listen: Annotated[
        list[str], Meta(description="HOST:PORT, [IPV6]:PORT or unix:PATH; may be given more than once; port 0: any.")
    ] = msgspec.field(default_factory=lambda: ["127.0.0.1:9090"])
    admin_socket: Annotated[
        str | None,
        Meta(
            description="Unix socket of the control service; default: inflightd/admin.sock under RUNTIME_DIRECTORY or "
            "XDG_RUNTIME_DIR, else under /tmp/inflightd-UID."
        ),
    ] = None
    control_listen: Annotated[
        str | None,
        Meta(description="HOST:PORT of the control service, for tokens of scope control; default: the socket alone."),
    ] = None
    metrics_listen: Annotated[str | None, Meta(description="HOST:PORT of the Prometheus endpoint; default: none.")] = (
        None
    )
    insecure: Annotated[
        bool, Meta(description="Allow listeners that other machines can reach, without encryption or tokens.")
    ] = False

    # who may connect and call; SIGHUP reads these files again
    tls_cert: Annotated[
        str | None, Meta(description="PEM file: certificate of the TCP listeners, and its chain; default: no TLS.")
    ] = None
    tls_key: Annotated[str | None, Meta(description="PEM file: its private key, closed to other users.")] = None
    tls_client_ca: Annotated[
        str | None, Meta(description="PEM file: clients need a certificate of one of these authorities.")
    ] = None
    tokens_file: Annotated[
        str | None,
        Meta(description="TOML file of bearer tokens, closed to other users; default: calls need no token."),
    ] = None

    # tracing
    recorder_steps: Annotated[
        int,
        Meta(description="Steps that the flight recorder holds, about 300 bytes each.", ge=100, le=10_000_000),
    ] = 20_000
    trace_dir: Annotated[
        str | None,
        Meta(
            description="Directory of recordings and reports; default: traces under STATE_DIRECTORY, else "
            "inflightd/traces under XDG_STATE_HOME or ~/.local/state."
        ),
    ] = None
    stall_dump_s: Annotated[
        float,
        Meta(description="Without a step for so long, what the recorder holds is written; 0: never.", ge=0, le=86_400),
    ] = 10.0
    ranges: Annotated[
        Literal["auto", "nvtx", "chrome", "off"],
        Meta(description="Ranges of steps and requests: auto is nvtx if a tool is attached; chrome writes files."),
    ] = "auto"
    ranges_path: Annotated[
        str | None,
        Meta(description="Where chrome writes: beside this file, NAME.json, one NAME.PROCESS-PID.json per process."),
    ] = None
    nsys_session: Annotated[
        str, Meta(description="Name of the nsys session the daemon was launched in; serve --nsys sets it.")
    ] = ""

    # the process
    drain_grace_s: Annotated[float, Meta(description="How long streams may go on after SIGTERM.", ge=0, le=86_400)] = (
        20.0
    )
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least severe level that is logged.")
    ] = "info"
    log_format: Annotated[
        Literal["auto", "json", "console"], Meta(description="auto: console on a terminal, else json.")
    ] = "auto"
    log_prompts: Annotated[bool, Meta(description="Log prompts and outputs; never done otherwise.")] = False

    scripted: Annotated[ScriptedConfig, Meta(description="The scripted engine.")] = ScriptedConfig()

    @property
    def served_classes(self) -> dict[str, ClassConfig]:
        """The configured classes and, if it is not among them, the default one."""
        return self.classes if DEFAULT_CLASS in self.classes else {DEFAULT_CLASS: ClassConfig(), **self.classes}
