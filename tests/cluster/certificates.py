"""Create certificate authorities that only a test trusts."""

import datetime as dt
import ipaddress

import pytest


def write_certificates(folder, host):
    """Write a certificate authority and a server certificate.

    Return the paths of the authority, certificate and key.
    """
    x509 = pytest.importorskip("cryptography.x509", reason="the extra `encryption` is not installed")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def build(name, issuer, key, signer, *extensions):
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(signer, hashes.SHA256())

    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(*[False] * 5, True, True, False, False)
    key_id = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    root = build(
        "tests",
        "tests",
        authority,
        authority,
        (x509.BasicConstraints(ca=True, path_length=None), True),
        (usage, True),
        (key_id, False),
    )
    try:
        named = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        named = x509.DNSName(host)
    leaf = build(
        host,
        "tests",
        server,
        authority,
        (x509.SubjectAlternativeName([named]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False),
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    texts = {
        "ca": root.public_bytes(pem),
        "cert": leaf.public_bytes(pem),
        "key": server.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain),
    }
    for name, text in texts.items():
        (folder / name).write_bytes(text)
    return [folder / name for name in texts]
