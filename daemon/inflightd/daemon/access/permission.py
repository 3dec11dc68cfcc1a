"""What a caller may ask for: its tenant is its token's, its service classes are limited."""

from __future__ import annotations

import msgspec

from inflightd.daemon.access.tokens import Caller
from inflightd.daemon.config.fields import DEFAULT_CLASS
from inflightd.daemon.errors import PermissionDenied
from inflightd.daemon.front.request import GenerateRequest


def permitted(request: GenerateRequest, caller: Caller) -> GenerateRequest:
    """`request` under the tenant it belongs to.  Raises `PermissionDenied`.

    Only a gateway speaks for others.  Anybody else who names another tenant is refused: a tenant is what keeps the
    prefix caches apart.
    """
    service_class = request.service_class or DEFAULT_CLASS
    if caller.classes and service_class not in caller.classes:
        allowed = ", ".join(sorted(caller.classes))
        raise PermissionDenied(f"service_class: the token {caller.name} is for {allowed} only")
    if not request.tenant or request.tenant == caller.tenant:
        return msgspec.structs.replace(request, tenant=caller.tenant)
    if "gateway" in caller.scopes:
        return request
    raise PermissionDenied(f"tenant: the token {caller.name} is of another tenant and has not the scope gateway")
