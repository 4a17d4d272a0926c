"""Encryption of streams off loopback, without a certificate authority.

Each agent has a self-signed certificate; its SHA-256 fingerprint is part of the agent's endpoint,
which reaches the other agent inside an order. The target refuses any other certificate before it
says a word; the target itself is authenticated by the stream's secret.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import ipaddress
import os
import socket
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from .errors import TlsFailed

_VALID_FOR = datetime.timedelta(days=3650)


@dataclass(frozen=True)
class TlsIdentity:
    """A certificate and its key as files; ``fingerprint`` is its hexadecimal SHA-256."""

    certificate: Path
    key: Path
    fingerprint: str

    @classmethod
    def load_or_create(cls, directory: Path) -> TlsIdentity:
        """The identity kept in ``directory`` (mode 0700, made if missing), or a new one."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        certificate, key = directory / "transfer-certificate.pem", directory / "transfer-key.pem"
        if not (certificate.exists() and key.exists()):
            _write_new(certificate, key)
        return cls.load(certificate, key)

    @classmethod
    def load(cls, certificate: Path, key: Path) -> TlsIdentity:
        """A certificate from elsewhere (PEM files). Raises TlsFailed when they cannot be used."""
        try:
            der = ssl.PEM_cert_to_DER_cert(certificate.read_text().strip())
        except (OSError, ValueError) as error:
            raise TlsFailed(f"{certificate}: {error}") from error
        return cls(certificate, key, hashlib.sha256(der).hexdigest())

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise TlsFailed(f"{self.certificate}: {error}") from error
        return context


def passing_context() -> tuple[ssl.SSLContext, str]:
    """A server context for this process's life, its files already deleted, and its fingerprint."""
    with tempfile.TemporaryDirectory() as directory:
        identity = TlsIdentity.load_or_create(Path(directory))
        return identity.server_context(), identity.fingerprint


def connect_pinned(raw: socket.socket, fingerprint: str) -> ssl.SSLSocket:
    """Speak TLS and refuse any certificate but the one of ``fingerprint``. Raises TlsFailed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The fingerprint is the whole check: there is no authority and the name says nothing.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        wrapped = context.wrap_socket(raw)
    except (ssl.SSLError, ConnectionError, TimeoutError) as error:
        raise TlsFailed(f"the peer does not speak TLS here: {error}") from error
    found = hashlib.sha256(wrapped.getpeercert(binary_form=True) or b"").hexdigest()
    if not hmac.compare_digest(found, fingerprint):
        wrapped.close()
        raise TlsFailed("the peer's certificate is not the one its endpoint names")
    return wrapped


def is_loopback(host: str) -> bool:
    """Whether packets to ``host`` stay here. Of names, only ``localhost`` is believed."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _write_new(certificate: Path, key: Path) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "yoco-agent")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + _VALID_FOR)
        .sign(private, hashes.SHA256())
    )
    pem = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    descriptor = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
    certificate.write_bytes(built.public_bytes(serialization.Encoding.PEM))
