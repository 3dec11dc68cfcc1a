"""The daemon's configuration: TOML, then environment, then flags; one frozen, checked record comes out."""

from inflightd.daemon.config.addresses import Address, parse_address
from inflightd.daemon.config.fields import ClassConfig, Config, ScriptedConfig
from inflightd.daemon.config.load import load_config

__all__ = ["Address", "ClassConfig", "Config", "ScriptedConfig", "load_config", "parse_address"]
