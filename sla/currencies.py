"""Currencies with a minor unit by ISO 4217, as of 2026. Pure."""

from __future__ import annotations

_TWO_DECIMALS = """
AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE
CHF CHW CNY COP COU CRC CUC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD
HNL HRK HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP
MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR
SDG SEK SGD SHP SLE SLL SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED
VES WST XAD XCD XCG YER ZAR ZMW ZWG ZWL
"""
"""Codes withdrawn since 2020 stay: contracts were written in them."""

_OTHERS = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}

DECIMALS: dict[str, int] = dict.fromkeys(_TWO_DECIMALS.split(), 2) | {
    code: decimals for decimals, codes in _OTHERS.items() for code in codes.split()
}
"""Code → how many digits of an amount in minor units are behind the point."""


def money(minor: int, currency: str) -> str:
    """1234.50 USD for 123450: digits are moved, nothing is rounded."""
    decimals = DECIMALS[currency]
    digits = str(minor).rjust(decimals + 1, "0")
    whole = digits[: len(digits) - decimals]
    return f"{whole}.{digits[-decimals:]} {currency}" if decimals else f"{whole} {currency}"
