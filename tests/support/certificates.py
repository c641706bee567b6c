"""An authority of the test's own, and servers with certificates that it has issued."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.support.servers import DATABASE, PASSWORD, MariaDBServer, MySQLServer, PostgresServer

SIGNS = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)
CERTIFIED = "certified"  # the user who logs in with a certificate
HOST = "localhost"  # the one name that the certificates of servers have


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates; `certificate` is the file that clients and servers trust."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.certificate = folder / "ca.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(f"the authority in {folder.name}")
        own = self._builder(self._name, self._key.public_key())
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        own = own.add_extension(constraints, critical=True)
        # From 3.13 on Python accepts no authority that does not say that it may sign.
        own = own.add_extension(SIGNS, critical=True)
        self.certificate.write_bytes(_pem(own.sign(self._key, hashes.SHA256())))

    def issue(self, name: str, hosts: Sequence[str] = ()) -> Certificate:
        """A certificate for a server that has these names, or for the user of this name."""
        key = ec.generate_private_key(ec.SECP256R1())
        use = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        made = self._builder(_named(name), key.public_key())
        made = made.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        if hosts:
            names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
            made = made.add_extension(names, critical=False)
        files = Certificate(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        files.certificate.write_bytes(_pem(made.sign(self._key, hashes.SHA256())))
        files.key.touch(mode=0o600)
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files

    def _builder(self, subject: x509.Name, key: Any) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(identifier, critical=False)
            .add_extension(issuer, critical=False)
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


class CertifiedServer:
    """A server with TLS, mixed into one of `servers.py`; `CERTIFIED` needs a certificate there."""

    def __init__(self, authority: Authority) -> None:
        super().__init__(tls=True)  # type: ignore[call-arg]
        self.authority = authority

    @property
    def trusted(self: Any) -> Path:
        """What the server trusts."""
        return Path(self.directory / "root.pem")

    def _certify(self: Any) -> None:
        issued = self.authority.issue(f"server of {type(self).__name__}", [HOST])
        for name, source in (
            ("certificate.pem", issued.certificate),
            ("key.pem", issued.key),
            ("root.pem", self.authority.certificate),
        ):
            self._write(name, source.read_text()).chmod(0o600)


class CertifiedPostgres(CertifiedServer, PostgresServer):
    """PostgreSQL: `CERTIFIED` logs in by certificate alone, all others by password and TLS."""

    def _initialize(self) -> None:
        super()._initialize()
        self._write(
            "data/pg_hba.conf",
            f"local all all trust\nhostssl all {CERTIFIED} 127.0.0.1/32 cert\n"
            "hostssl all all 127.0.0.1/32 scram-sha-256\n",
        )
        data = str(self.directory / "data")
        self._run(
            ["postgres", "--single", "-D", data, "-c", "fsync=off", "postgres"],
            text=f"CREATE ROLE {CERTIFIED} LOGIN\n",
        )

    def _command(self) -> list[str]:
        return [*super()._command(), "-c", f"ssl_ca_file={self.trusted}"]


class CertifiedMariaDB(CertifiedServer, MariaDBServer):
    """MariaDB: `CERTIFIED` needs its password and a certificate."""

    def _initialize(self) -> None:
        super()._initialize()
        certify_user(self)

    def _command(self) -> list[str]:
        return [*super()._command(), f"--ssl-ca={self.trusted}"]


class CertifiedMySQL(CertifiedServer, MySQLServer):
    """A real MySQL, as `CertifiedMariaDB`."""

    def _initialize(self) -> None:
        super()._initialize()
        certify_user(self)

    def _command(self) -> list[str]:
        return [*super()._command(), f"--ssl-ca={self.trusted}"]


def certify_user(server: Any) -> None:
    """Add the user to what the server runs when it starts."""
    statements = (server.directory / "init.sql").read_text()
    user = f"CREATE USER IF NOT EXISTS {CERTIFIED}@'%' IDENTIFIED BY '{PASSWORD}' REQUIRE X509"
    grant = f"GRANT ALL ON {DATABASE}.* TO {CERTIFIED}@'%'"
    server._write("init.sql", f"{statements}{user};\n{grant};\n")
