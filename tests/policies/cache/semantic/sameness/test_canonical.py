"""One form for what can be written in several ways."""

from __future__ import annotations

import pytest

from policies.cache.semantic.sameness.canonical import canonical


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("It starts at quarter to six in the evening.", "It starts at 17:45."),
        ("It starts at half past nine in the morning.", "It starts at 9:30 a.m."),
        ("Doors close at 5 pm.", "Doors close at 17:00."),
        ("It costs €12.50.", "It costs twelve euros and fifty cents."),
        ("It costs EUR 12.50.", "It costs 12.5 euros."),
        ("Pay $3.00 now.", "Pay 3 dollars now."),
        ("It is due on March 3rd, 2026.", "It is due on the 3rd of March 2026."),
        ("It is due on 2026-03-03.", "It is due on 3 March 2026."),
        ("Wait half an hour.", "Wait thirty minutes."),
        ("It costs €5 a month.", "It costs five euros each month."),
        ("Take 2 cups of tea a day.", "Take two cups of tea per day."),
        ("Once a year.", "Once every year."),
        ("Wait a second, or a second or two.", "Wait one second, or one second or 2."),
        ("It weighs 3 kg.", "It weighs three kilograms."),
        ("About two million people came.", "About 2 million people came."),
        ("It has 1.5 billion cells.", "It has 1,500,000,000 cells."),
        ("A share of 7%.", "A share of seven per cent."),
        ("You can't enter, it isn't open.", "You cannot enter, it is not open."),
        ("Die Lieferung dauert fünf Tage.", "Die Lieferung dauert 5 Tage."),
        ("Comptez trente-deux jours pour la livraison.", "Comptez 32 jours pour la livraison."),
        ("El envío tarda veintidós días.", "El envío tarda 22 días."),
        ("La consegna è in quindici giorni.", "La consegna è in 15 giorni."),
        ("The deadline is 05/2027.", "The deadline is May 2027."),
        ("Frist: 03.05.2027.", "Frist: 3. Mai 2027."),
        ("Store it at -18 °C.", "Store it at minus eighteen degrees celsius."),
        ("Store it at \u22125 °C.", "Store it at -5 °C."),
        ("Applicants: \u2265 18 years.", "Applicants: at least 18 years."),
        ("Accounts with < 100 euros.", "Accounts with less than 100 euros."),
        ("It is about 50, \u00b12.", "It is ~50, +/-2."),
        ("Use `x >= 3`.", "Use `x>=3`."),
        ("Wait 1½ hours.", "Wait one and a half hours."),
        ("Wait 1½ hours.", "Wait 90 minutes."),
        ("Add 2 1/2 cups.", "Add two and a half cups."),
        ("It has 20 m².", "It has 20 m^2."),
    ],
)
def test_canonical_writes_the_same_in_one_way(one: str, other: str) -> None:
    """Numbers, money, times of day, dates, units, "not"."""
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("It is open from 9 to 17.", "It is open at 16:51."),
        ("It costs 5 euros.", "It costs 5 dollars."),
        ("It takes 30 seconds.", "It takes 30 minutes."),
        ("It is due on 3 April.", "It is due on 4 March."),
        ("Doors close at 5 am.", "Doors close at 5 pm."),
        ("Once a year.", "Eleven a year."),
        ("Add a second owner.", "Add 1 seconds owner."),
        ("It costs 5 euros a month.", "It costs 5 euros 1 month."),
        ("Store it at -18 °C.", "Store it at 18 °C."),
        ("It opens at 5-7.", "It opens at 5 minus 7."),
        ("\u2265 18 years.", "\u2264 18 years."),
        ("Growth of +5 %.", "Growth of -5 %."),
        ("x > 3", "x >= 3"),
        ("It is 10² long.", "It is 102 long."),
        ("Add 1½ cups.", "Add 11/2 cups."),
        ("Set a = b.", "Set a != b."),
        ("Blood of type O+.", "Blood of type O-."),
        ("Written in C.", "Written in C++."),
        ("Go to Cards > Limits.", "Go to Cards more than Limits."),
        ("Go to Settings > 2FA.", "Go to Settings more than 2FA."),
        ("f(x) -> 3 and <b>5</b>", "f(x) more than 3 and less than b more than 5"),
    ],
)
def test_canonical_keeps_apart_what_differs(one: str, other: str) -> None:
    """Nothing is lost on the way."""
    assert canonical(one) != canonical(other)
