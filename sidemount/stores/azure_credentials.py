"""Who asks Azure: files of a directory, each with one value, read again when they change.

`account_name` with `account_key`, `sas_token` or `access_token`; also the names that Azure's command line and its CSI driver give them.
None of the last three: the store is asked anonymously.
"""

import base64
import binascii
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sidemount.stores.credentials import Damaged, Watched

_NAMES: Mapping[str, tuple[str, ...]] = {
    "account_name": ("account_name", "AZURE_STORAGE_ACCOUNT", "azurestorageaccountname"),
    "account_key": ("account_key", "AZURE_STORAGE_KEY", "azurestorageaccountkey"),
    "sas_token": ("sas_token", "AZURE_STORAGE_SAS_TOKEN", "azurestorageaccountsastoken"),
    "access_token": ("access_token",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureCredentials:
    """An account, and at most one proof. The secret parts stay out of every text that is made of it."""

    account: str
    key: bytes = field(default=b"", repr=False)
    sas: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


class AzureFiles(Watched[AzureCredentials]):
    """What a directory says at the moment; None if it says nothing."""

    def __init__(self, directory: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(directory, tuple(name for names in _NAMES.values() for name in names), parse, clock)


def parse(files: Mapping[str, str]) -> AzureCredentials | None:
    """Return what files say. Damaged if it is not whole; the text says nothing of what is in them."""
    values: dict[str, str] = {}
    for kind, names in _NAMES.items():
        present = [files[name] for name in names if name in files]
        if present:
            values[kind] = present[0]
    if not values:
        return None
    for kind, value in values.items():
        if not value or not value.isascii() or not value.isprintable() or " " in value:
            raise Damaged(f"{kind} is empty or holds characters that it cannot have")
    account = values.get("account_name", "")
    if "account_key" in values and not account:
        raise Damaged("account_name is missing")
    if account and not account.replace("-", "").isalnum():
        raise Damaged("account_name is no name of an account")
    try:
        key = base64.b64decode(values.get("account_key", ""), validate=True)
    except binascii.Error:
        raise Damaged("account_key is no base64") from None
    sas = values.get("sas_token", "").removeprefix("?")
    return AzureCredentials(account=account, key=key, sas=sas, token=values.get("access_token", ""))
