"""Sentences of which one has a word and the other its opposite in the same place, and that differ in nothing else.

"Reads are cached" and "Writes are cached" have one word apart, and so have most sentences that say the same in other
words. Which two words exclude each other is no matter of nearness: a head took a third of such pairs for the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import permutations, product
from typing import NamedTuple

from policies.cache.semantic.sameness.clauses.persons import SUBJECT_OF
from policies.cache.semantic.sameness.clauses.verbs import stem_of, words_in
from policies.cache.semantic.sameness.words import COMMON

_OPPOSITES = """
seller,vendor/buyer,purchaser sender/recipient,receiver,addressee landlord/tenant,renter lender/borrower
creditor/debtor employer/employee payer/payee insurer/insured host/guest doctor/patient teacher/student,pupil
parent/child,children mother/father wife/husband son/daughter sister/brother aunt/uncle adult/child,children,minor
man/woman boy/girl male/female citizen/resident driver/passenger winner/loser plaintiff/defendant client/server
upstream/downstream frontend/backend producer/consumer publisher/subscriber leader/follower primary/secondary,replica
source/target,destination reader/writer read/write input/output encode/decode encrypt/decrypt compress/decompress
upload/download push/pull import/export lock/unlock install/uninstall subscribe/unsubscribe enable/disable
activate/deactivate freeze/unfreeze login/logout allow/deny,forbid,block accept/reject,refuse,decline include/exclude
true/false odd/even ascending/descending horizontal/vertical row/column left/right upper/lower top/bottom
front/back,rear inner/outer inside/outside internal/external above/below upstairs/downstairs north/south east/west
northern/southern eastern/western domestic,national/international,foreign incoming,inbound/outgoing,outbound
public/private personal,private/business,corporate online/store,branch,offline,person debit/credit deposit/withdrawal
income/expense gross/net profit/loss asset/liability gain/loss minimum/maximum min/max original/copy new/existing,old
used/unused young/old first/last,second,third second/third earliest/latest earlier/later early/late before/after
morning/afternoon,evening,night evening/morning day/night am/pm today/tomorrow,yesterday tomorrow/yesterday
summer/winter spring/autumn arrival/departure rise,increase,grow/fall,decrease,shrink raise/lower,reduce
increase/reduce open/close begin,start/end,stop strengthen/weaken win/lose keep/stop,lose hot/cold warm/cool wet/dry
heavy/light thick/thin wide/narrow deep/shallow high/low higher/lower tall/short long/short longer/shorter
large,big/small larger,bigger/smaller fast/slow faster/slower strong/weak stronger/weaker cheap/expensive
cheaper/dearer rich/poor full/empty clean/dirty hard/soft safe/dangerous,unsafe legal/illegal possible/impossible
good/bad better/worse best/worst easy/difficult,hard more/less,fewer most/least,few,fewer many/few
all,every,each/some,most,many,few,none,half some/none both/either,one,neither either/neither
everyone,everybody/nobody,someone everything/nothing,something always/sometimes,rarely,seldom,never,usually,often
often,usually,frequently,generally/sometimes,rarely,seldom,never sometimes/never rarely,seldom/frequently
once/twice,hourly,daily,weekly,monthly,quarterly,yearly,annually twice/thrice
daily/weekly,monthly,yearly,annually,quarterly,hourly weekly/monthly,yearly,annually,quarterly,hourly
monthly/yearly,annually,quarterly quarterly/yearly,annually day/week,month,year,hour week/month,year,hour month/year
hour/minute,second minute/second single,unmarried/married single/double,return until/from,since with/without
plus/minus temporary/permanent optional/mandatory,required,compulsory free/paid automatic/manual
automatically/manually fixed/variable active/inactive present/absent alive/dead refundable/nonrefundable valid/invalid

verkäufer,verkäuferin/käufer,käuferin vermieter,vermieterin/mieter,mieterin absender/empfänger
arbeitgeber/arbeitnehmer gläubiger/schuldner eltern,elternteil/kind,kinder arzt,ärztin/patient,patientin mutter/vater
mann/frau vor/nach vorher/nachher links/rechts linke,linken,linker,linkes/rechte,rechten,rechter,rechtes oben/unten
obere,oberen/untere,unteren innen/außen morgens/abends,mittags abends/mittags heute/morgen,gestern gestern/morgen
sommer/winter erste,ersten,erster,erstes/letzte,letzten,letzter,letztes,zweite,zweiten,zweiter,zweites
zweite,zweiten/dritte,dritten neue,neuen,neuer,neues/alte,alten,alter,altes,bestehende,bestehenden
mindestens/höchstens mehr/weniger alle,jede,jeder,jedes/manche,einige,wenige,viele,keine viele/wenige
beide,beiden/keine immer/manchmal,selten,nie,oft oft,häufig/selten,manchmal,nie täglich/wöchentlich,monatlich,jährlich
wöchentlich/monatlich,jährlich monatlich/jährlich tag,tage,tagen/woche,wochen,monat,monate,monaten,jahr,jahre,jahren
woche,wochen/monat,monate,monaten,jahr,jahre,jahren monat,monate,monaten/jahr,jahre,jahren mit/ohne bis/ab,seit
steigt,steigen/sinkt,sinken öffnet,öffnen/schließt,schließen erlaubt/verboten privat/geschäftlich hoch/niedrig
höher/niedriger größer/kleiner günstiger,billiger/teurer schneller/langsamer früher/später besser/schlechter

vendeur,vendeuse/acheteur,acheteuse bailleur/locataire expéditeur/destinataire employeur/employé,employée,salarié
créancier/débiteur parent,parents/enfant,enfants médecin/patient,patiente mère/père homme/femme avant/après
gauche/droite haut/bas dessus/dessous intérieur/extérieur matin/soir hier/demain été/hiver
premier,première/dernier,dernière,deuxième,second,seconde nouveau,nouvelle,nouveaux/ancien,ancienne,anciens
minimum/maximum plus/moins tous,toutes,chaque/certains,certaines,quelques,aucun,aucune
toujours/parfois,jamais,rarement,souvent souvent/rarement,jamais,parfois avec/sans
jour,jours/semaine,semaines,mois,année,années,ans semaine,semaines/mois,année,années,ans mois/année,années,ans
quotidien,quotidienne/hebdomadaire,mensuel,mensuelle,annuel,annuelle mensuel,mensuelle/annuel,annuelle
augmente,augmentent/diminue,diminuent,baisse,baissent ouvre,ouvrent/ferme,ferment autorisé/interdit
gratuit,gratuite/payant,payante

vendedor,vendedora/comprador,compradora arrendador/arrendatario,inquilino remitente/destinatario
empleador/empleado,empleada acreedor/deudor padres/hijos madre/padre hombre/mujer antes/después izquierda/derecha
arriba/abajo dentro/fuera mañana/tarde,noche,ayer verano/invierno primero,primera,primer/último,última,segundo,segunda
nuevo,nueva,nuevos,nuevas/antiguo,antigua,antiguos,antiguas,viejo,vieja mínimo/máximo más/menos
todos,todas,cada/algunos,algunas,ninguno,ninguna siempre/nunca,jamás,raramente con/sin
día,días/semana,semanas,mes,meses,año,años semana,semanas/mes,meses,año,años mes,meses/año,años
diario,diaria/semanal,mensual,anual semanal/mensual,anual mensual/anual sube,suben/baja,bajan
abre,abren/cierra,cierran permitido/prohibido gratis/pago

venditore,venditrice/acquirente,compratore locatore/inquilino,conduttore mittente/destinatario creditore/debitore
genitori/figli madre/padre uomo/donna prima/dopo sinistra/destra sopra/sotto dentro/fuori mattina/sera,pomeriggio
ieri/domani estate/inverno primo,prima/ultimo,ultima,secondo,seconda
nuovo,nuova,nuovi,nuove/vecchio,vecchia,vecchi,vecchie minimo/massimo più/meno
tutti,tutte,ogni/alcuni,alcune,nessuno,nessuna sempre/mai,raramente,spesso,talvolta con/senza
giorno,giorni/settimana,settimane,mese,mesi,anno,anni settimana,settimane/mese,mesi,anno,anni mese,mesi/anno,anni
mensile/annuale aumenta,aumentano/diminuisce,diminuiscono apre,aprono/chiude,chiudono
"""
"""Words of one side exclude those of the others."""
_MODALS = {"may": "may", "might": "may", "will": "will", "shall": "will", "must": "must"}
_EXCLUDING_MODALS = {("may", "will"), ("will", "may"), ("may", "must"), ("must", "may")}
_ELIDED = frozenset("ld")
"""Before an apostrophe, of articles."""
_PERSONS = frozenset(SUBJECT_OF.values())
_DENYING = re.compile(r"(?:un|non)(\w{3,})|(?:dis|in|im|il|ir)(\w{5,})")
_FEW = 2
_MAX_KEPT = 2048
"""Sentences, about 2 kB each."""


def _exclusions() -> Iterator[tuple[str, str]]:
    for group in _OPPOSITES.split():
        sides = [[stem_of(word) for word in side.split(",")] for side in group.split("/")]
        for ones, others in permutations(sides, 2):
            yield from product(ones, others)


_EXCLUDING = frozenset(_exclusions())
_SAYS_NOTHING = COMMON.union(_ELIDED, _MODALS) - _PERSONS - set(re.split(r"[\s/,]+", _OPPOSITES))


class _Told(NamedTuple):
    """A sentence's `stems` in their order, persons with them, without modals and words that say nothing."""

    stems: tuple[str, ...]
    modals: tuple[str, ...]
    is_passive: bool


def are_opposite(one: str, other: str) -> bool:
    """Whether all that two sentences do not share is a word of one and its opposite in the other, or a letter each."""
    ones, others = _told(one), _told(other)
    if ones.stems == others.stems:
        return len(ones.stems) > 0 and (*ones.modals, *others.modals) in _EXCLUDING_MODALS
    left, right = _apart(ones, others)
    return len(ones.stems) > 1 and _exclude(left, right)


def have_one_of_two(one: str, other: str) -> bool:
    """Whether two sentences say two words each and share but one: what the other word changes nobody can tell from so
    little.
    """
    ones, others = _told(one), _told(other)
    return len(ones.stems) == _FEW and all(_apart(ones, others))


def _exclude(left: str, right: str) -> bool:
    short, long = sorted((left, right), key=len)
    denied = _DENYING.fullmatch(long)
    is_letter = len(short) == len(long) == 1
    return is_letter or (left, right) in _EXCLUDING or (denied is not None and short in denied.groups())


def _apart(ones: _Told, others: _Told) -> tuple[str, str]:
    """The stem of each that the other has not; empty where it is not one, or where the rest stands in another order, as
    it does where one tells what is done by whom.
    """
    mine, theirs = Counter(ones.stems), Counter(others.stems)
    left, right = [*(mine - theirs).elements()], [*(theirs - mine).elements()]
    if len(left) != 1 or len(right) != 1:
        return "", ""
    is_in_order = [stem for stem in ones.stems if stem != left[0]] == [s for s in others.stems if s != right[0]]
    return (left[0], right[0]) if is_in_order or ones.is_passive != others.is_passive else ("", "")


@lru_cache(maxsize=_MAX_KEPT)
def _told(sentence: str) -> _Told:
    """Stored answers are compared again and again."""
    words = [SUBJECT_OF.get(word, word) for word in words_in(sentence)]
    return _Told(
        tuple(stem_of(word) for word in words if word not in _SAYS_NOTHING),
        tuple(_MODALS[word] for word in words if word in _MODALS),
        "by" in words,
    )
