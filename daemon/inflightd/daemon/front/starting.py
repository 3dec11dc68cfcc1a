"""From the configuration to the first message of an engine process."""

from __future__ import annotations

from inflightd.daemon.config import Config
from inflightd.daemon.core.wire import ClassSettings, KvSettings, ScriptedSettings, Start, StepLimits
from inflightd.daemon.errors import ConfigError, SwapRefused
from inflightd.daemon.front.policies import PolicyInUse, configured_policy
from inflightd.daemon.logs import LogFormat


def _ns(milliseconds: float | None) -> int | None:
    return None if milliseconds is None else int(milliseconds * 1e6)


def first_policy(config: Config) -> PolicyInUse:
    """Raises `ConfigError` for a policy that cannot be used, or a bad option of it."""
    try:
        return configured_policy(config.scheduler, config.scheduler_options)
    except SwapRefused as refused:
        raise not_usable(config, refused) from refused


def not_usable(config: Config, refused: SwapRefused) -> ConfigError:
    """Which field it is about."""
    if refused.rule == "options":
        return ConfigError("scheduler_options", config.scheduler_options, refused.detail)
    return ConfigError("scheduler", config.scheduler, refused.detail)


def class_settings(config: Config) -> list[ClassSettings]:
    """The service classes, with times in nanoseconds."""
    return [
        ClassSettings(
            name=name,
            priority=each.priority,
            ttft_ns=_ns(each.ttft_ms),
            itl_ns=_ns(each.itl_ms),
            max_running=each.max_running,
            kv_share=each.kv_share,
            max_prompt_tokens=each.max_prompt_tokens,
        )
        for name, each in config.served_classes.items()
    ]


def start_message(
    config: Config, model: str, model_name: str, log_format: LogFormat, policy: PolicyInUse | None = None
) -> Start:
    """policy: the one to begin with; None: the configured one, with errors as of `first_policy`."""
    policy = policy or first_policy(config)
    scripted = config.scripted
    return Start(
        engine=config.engine,
        model=model,
        model_name=model_name,
        limits=StepLimits(
            max_batch_size=config.max_batch_size,
            max_num_tokens=config.max_num_tokens,
            max_sequence_tokens=config.max_sequence_tokens,
        ),
        kv=KvSettings(
            blocks=config.kv_blocks,
            memory_bytes=config.kv_memory,
            dtype=config.kv_dtype,
            prefix_cache=config.prefix_cache,
            swap_bytes=config.swap_memory,
        ),
        classes=class_settings(config),
        plan_limit_ns=int(config.plan_limit_ms * 1e6),
        policy=policy.reference,
        policy_options=policy.options,
        precision=config.precision,
        threads=config.threads,
        scripted=ScriptedSettings(
            script=scripted.script,
            token_ids=scripted.token_ids,
            step_ns=int(scripted.step_ms * 1e6),
            load_ns=int(scripted.load_ms * 1e6),
            block_size_tokens=scripted.block_size_tokens,
            host_blocks=scripted.host_blocks,
            vocab_size=scripted.vocab_size,
            context_tokens=scripted.context_tokens,
            eos_token_ids=scripted.eos_token_ids,
        ),
        log_level=config.log_level,
        log_format=log_format,
        ranges=config.ranges,
        ranges_path=config.ranges_path or "",
    )
