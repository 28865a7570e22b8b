"""Keyed hashes for what could name a patient: identifiers, DICOM UIDs, names of files.

Keyed BLAKE3 (section 2.3 of its specification): without the key nobody can tell whose pseudonym it is, not even by hashing
every possible hospital number. What is hashed begins with its kind, so that no hash of one kind is one of another.
"""

import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from blake3 import blake3

from teravox.errors import UserError

KEY_BYTES = blake3.key_size
PUBLIC = "public"  # how a command's --key names the key of the demo cohort
# Known to everyone, for the demo cohort alone: two runs of it agree, and its synthetic patients need no protection.
# Whatever is hashed with it can be guessed, so it must never be used for other data.
PUBLIC_KEY = b"teravox demo cohort, public key."
PSEUDONYM_DIGITS = 12  # 48 bits: among 10,000 patients two meet with a probability below 1e-6, and then are refused
UID_DIGITS = 32
NAME_DIGITS = 16
KEY_DIGITS = 8
LONGEST = 64  # characters of a PatientID (LO, PS3.5 section 6.2); a longer identifier is not looked for in texts
UNMISTAKABLE = 5  # an identifier of so many characters is no part of a word by chance


def _keyed(kind: str, text: str, key: bytes, digits: int) -> str:
    return blake3(f"{kind} {text}".encode("utf-8", "surrogateescape"), key=key).hexdigest()[:digits]


def pseudonym(identifier: str, key: bytes) -> str:
    """P and 12 hexadecimal digits for a patient's identifier."""
    return "P" + _keyed("patient", identifier, key, PSEUDONYM_DIGITS)


def pseudonyms(identifiers: Iterable[str], key: bytes) -> dict[str, str]:
    """Each identifier's pseudonym. Raises UserError, without an identifier, when two have the same."""
    found = {identifier: pseudonym(identifier, key) for identifier in identifiers}
    if len(set(found.values())) < len(found):
        raise UserError(f"pseudonyms: two of {len(found)} patients have the same; move the key file and results away, so that another key is drawn")
    return found


def uid_hash(uid: str, key: bytes) -> str:
    """32 hexadecimal digits for a DICOM UID, whatever padding it carries (PS3.5 section 9.1: to an even length)."""
    return _keyed("uid", uid.rstrip("\0 "), key, UID_DIGITS)


def name_hash(name: str, key: bytes) -> str:
    """16 hexadecimal digits for the name of a file, which need not be UTF-8."""
    return _keyed("name", name, key, NAME_DIGITS)


def key_id(key: bytes) -> str:
    """8 hexadecimal digits that tell keys apart and say nothing about them."""
    return _keyed("key", "", key, KEY_DIGITS)


def made_with_own_key(document: dict[str, Any]) -> bool:
    """Whether the document of a case holds pseudonyms of another key than the demo cohort's."""
    return document.get("key", key_id(PUBLIC_KEY)) != key_id(PUBLIC_KEY)


def hide(text: str, patient: str, key: bytes) -> str:
    """The text with the pseudonym in place of the identifier that it belongs to, which need not be known.

    Paths often hold the identifier. Found is one that stands between other characters than letters and digits, or anywhere
    when it has UNMISTAKABLE characters.
    """

    def replaced(match: re.Match[str]) -> str:
        run, done, start = match.group(), "", 0
        while start < len(run):
            for end in range(min(start + LONGEST, len(run)), start, -1):
                bounded = not (start and run[start - 1].isalnum()) and not run[end : end + 1].isalnum()
                if (bounded or end - start >= UNMISTAKABLE) and pseudonym(run[start:end], key) == patient:
                    done, start = done + patient, end
                    break
            else:
                done, start = done + run[start], start + 1
        return done

    return re.sub(r"[A-Za-z0-9_-]+", replaced, text)  # the characters of an identifier (cases.schema.yaml)


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def write_key(path: Path, key: bytes) -> None:
    """Write a new key file as hexadecimal digits, for this user alone; its folder too when it is new. Raises UserError.

    A file that exists is never overwritten: what was named with its key could not be told apart any more.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UserError(f"{path}: was made by another run in the meantime, expected none; start again") from None
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(f"{key.hex()}\n")
            stream.flush()
            os.fsync(descriptor)
    except OSError:
        path.unlink()
        raise


def read_key(path: Path) -> bytes:
    """The key in a file. Raises UserError, without a word of the file, when it is missing or malformed."""
    try:
        with path.open("rb") as stream:
            text = stream.read(4 * KEY_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}, expected the key of the pseudonyms") from None
    if not re.fullmatch(rf"[0-9a-fA-F]{{{2 * KEY_BYTES}}}", text):
        raise UserError(f"{path}: not a key of {2 * KEY_BYTES} hexadecimal digits; bring back the file from a copy")
    return bytes.fromhex(text)


def kept_key(path: Path) -> bytes:
    """The key in a file, which is drawn and written first when there is none. Raises UserError."""
    if not path.exists():
        write_key(path, new_key())
    return read_key(path)


def key_of(argument: str) -> bytes:
    """The key that a command's --key names: a file, or `public` for that of the demo cohort. Raises UserError."""
    return PUBLIC_KEY if argument == PUBLIC else read_key(Path(argument))
