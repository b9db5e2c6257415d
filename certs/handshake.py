"""A real TLS handshake that trusts one bundle and nothing else, as an API server makes one."""

import asyncio
import ssl
from collections.abc import Collection

from cryptography import x509

from certs.pem import render_bundle
from certs.trust import Trust, Verdict

HANDSHAKE_S = 5.0
# X509_V_ERR_*, https://docs.openssl.org/master/man3/X509_STORE_CTX_get_error/
_OF_OPENSSL = {
    9: Trust.NOT_YET_VALID,
    10: Trust.EXPIRED,
    26: Trust.NOT_FOR_SERVERS,
    62: Trust.WRONG_NAME,
    64: Trust.WRONG_NAME,
}


async def shake_hands(
    host: str, port: int, name: str, bundle: Collection[x509.Certificate], *, timeout_s: float = HANDSHAKE_S
) -> Verdict:
    """Connect to an address, verify what it serves for `name` under the bundle, and say how that went. Never raises.

    An expired authority is told as an expired certificate: OpenSSL does not tell them apart.
    """
    if not bundle:
        return Verdict(Trust.NO_BUNDLE, "the bundle holds no certificate")
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        context = _context(bundle)
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
    except TimeoutError:
        return Verdict(Trust.TIMED_OUT, f"{where} did not complete a handshake in {timeout_s:g} s")
    except ssl.SSLCertVerificationError as error:
        trust = _OF_OPENSSL.get(error.verify_code, Trust.UNKNOWN_AUTHORITY)
        return Verdict(trust, f"{where}: {error.verify_message}")
    except ssl.SSLError as error:
        return Verdict(Trust.NOT_TLS, f"{where} does not speak TLS with us: {error.reason or error}")
    except OSError as error:
        return Verdict(Trust.UNREACHABLE, f"{where} cannot be reached: {error.strerror or error}")
    except ValueError as error:
        return Verdict(Trust.WRONG_NAME, f"{name!r} is no name that can be verified: {error}")
    # The verdict is in; how the server says good-bye does not matter.
    writer.transport.abort()
    return Verdict(Trust.VERIFIED)


def _context(bundle: Collection[x509.Certificate]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # As in Go: a common name counts for nothing, and whatever is in the bundle is a root.
    context.hostname_checks_common_name = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=render_bundle(bundle).decode())
    context.set_alpn_protocols(["http/1.1"])
    return context
