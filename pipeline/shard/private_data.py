"""--mask_private: replaces e-mail addresses, phone numbers and public IP addresses by ones that belong to no person.

    ada@lovelace.org              email@example.com     RFC 2606 reserves the domain
    +44 20 7946 0958              555-0100              numbers that North America keeps for fiction
    8.8.8.8                       192.0.2.1             RFC 5737 reserves it for documentation
    2001:4860:4860::8888          2001:db8::1           RFC 3849 likewise

As in FineWeb (arXiv:2406.17557), addresses become others of their form, so that a model still learns the form, and IP
addresses of private networks stay. Phone numbers, which FineWeb leaves, are those that nothing else is written like:
with + and the code of a country, or in groups of 3, 3 and 4 digits. Names and postal addresses are not found.

Every pattern takes time linear in the length of the text: none begins in the middle of what it could match.
"""

from __future__ import annotations

import re
from collections import Counter
from ipaddress import ip_address

EMAIL = "email@example.com"
PHONE = "555-0100"
IP_V4 = "192.0.2.1"
IP_V6 = "2001:db8::1"

# Up to 64 characters before the @ (RFC 5321), and labels of a domain, the last one of letters.
_EMAIL = re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}+@(?:[\w-]{1,63}+\.)+[^\W\d_]{2,63}+(?![\w-])")

# Each begins with a set of characters, which the search skips to, and then looks back: nothing joins on the left.
_SEPARATOR = r"[ .\u2010-\u2013-]"
_INTERNATIONAL = rf"(?<=\+)[1-9]\d{{0,2}}(?:{_SEPARATOR}?(?:\(\d{{1,4}}\)|\d{{1,5}})){{2,6}}"
_NORTH_AMERICAN = rf"(?:(?<=\()\d{{3}}\) ?|(?<=\d)\d{{2}}{_SEPARATOR})\d{{3}}{_SEPARATOR}\d{{4}}"
_PHONE = re.compile(rf"[+(\d](?<![\w.+/-].)(?:{_INTERNATIONAL}|{_NORTH_AMERICAN})(?![\w/-])")

_IP_V4 = re.compile(r"\d(?<![\w.].)\d{0,2}\.(?:\d{1,3}\.){2}\d{1,3}(?![\w]|\.\d)")
_IP_V6 = re.compile(r"[0-9A-Fa-f:](?<![\w:.].)(?=[0-9A-Fa-f]{0,4}:)[0-9A-Fa-f:]{2,38}+(?![\w:])")

_FEWEST_DIGITS = 8  # of an international number (ITU-T E.164 has at most 15)
_MOST_DIGITS = 15


def mask_private(text: str, counts: Counter[str]) -> str:
    """Return the text without personal addresses and numbers, and add how many of each kind there were to `counts`."""
    if "@" in text:
        text, found = _EMAIL.subn(EMAIL, text)
        if found:
            counts["e-mail addresses masked"] += found

    text = _IP_V4.sub(lambda match: _masked_ip(match[0], IP_V4, counts), text)
    if "::" in text or text.count(":") > 6:
        text = _IP_V6.sub(lambda match: _masked_ip(match[0], IP_V6, counts), text)
    return _PHONE.sub(lambda match: _masked_phone(match[0], counts), text)


def _masked_ip(found: str, replacement: str, counts: Counter[str]) -> str:
    try:
        is_public = ip_address(found).is_global
    except ValueError:
        return found
    if not is_public:
        return found
    counts["IP addresses masked"] += 1
    return replacement


def _masked_phone(found: str, counts: Counter[str]) -> str:
    digits = sum(map(str.isdigit, found))
    if found == PHONE or (found.startswith("+") and not _FEWEST_DIGITS <= digits <= _MOST_DIGITS):
        return found
    counts["phone numbers masked"] += 1
    return PHONE
