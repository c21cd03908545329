"""What letters say: sentences with one value each, and questions that only the value answers."""

from collections.abc import Callable
from dataclasses import dataclass

from homunculus.data.dice import Dice
from homunculus.data.documents.flow import mark
from homunculus.data.documents.page import Page
from homunculus.data.documents.words import Words, currency

# A sentence, questions to it, and the maker of its value.
_Known = tuple[str, tuple[str, ...], str]

_ORDINARY: tuple[_Known, ...] = (
    ("Please return the completed form by {} at the latest.",
     ("By which date must the form be returned?", "What is the deadline for returning the form?"), "date"),
    ("A deposit of {} falls due when the contract is signed.",
     ("How much is the deposit?", "What deposit falls due at signing?"), "amount"),
    ("Your appointment has been moved to {}.",
     ("To which date has the appointment been moved?", "When is the new appointment?"), "date"),
    ("In all further letters, please quote the file number {}.",
     ("Which file number should be quoted?", "What is the file number to quote?"), "code"),
    ("Our engineer, {}, will call on you before the work begins.",
     ("Who is the engineer who will call?", "What is the name of the engineer?"), "person"),
    ("The hearing will take place in {}, in the old town hall.",
     ("In which town will the hearing take place?", "Where will the hearing be held?"), "town"),
    ("From next quarter on, the monthly fee rises to {}.",
     ("To how much does the monthly fee rise?", "What will the monthly fee be?"), "amount"),
    ("We have today credited {} to your account.",
     ("Which sum has been credited?", "How much was credited to the account?"), "amount"),
    ("If anything remains unclear, please ring {} on weekdays.",
     ("Which phone number may be rung on weekdays?", "What number should one ring with questions?"), "phone"),
    ("The claim was registered under the number {}.",
     ("Under which number was the claim registered?", "What is the number of the claim?"), "code"),
    ("The present lease ends on {} unless it is renewed.",
     ("On which date does the lease end?", "When does the present lease end?"), "date"),
    ("The inspection starts at {} sharp and takes two hours.",
     ("At what time does the inspection start?", "When does the inspection start on the day?"), "time"),
    ("The whole consignment comes to {} including packing.",
     ("How large is the whole consignment?", "What does the consignment come to?"), "quantity"),
    ("Late payment adds {} to the sum owed.",
     ("Which percentage does late payment add?", "By what share does late payment raise the sum?"), "percentage"),
    ("The parcel was handed over to your neighbour, {}.",
     ("To which neighbour was the parcel handed over?", "Who took the parcel?"), "person"),
    ("Please send the signed copy to {}.",
     ("To which address should the signed copy be sent?", "Where should the signed copy go?"), "email"),
    ("The repair was estimated at {} before tax.",
     ("At how much was the repair estimated?", "What was the estimate for the repair?"), "amount"),
    ("Delivery was promised for {}.",
     ("For which date was delivery promised?", "When should the delivery have come?"), "date"),
)  # fmt: skip
_HELD_OUT: tuple[_Known, ...] = (
    ("Kindly lodge any objection no later than {}.",
     ("By when must an objection be lodged?", "What is the last day for an objection?"), "date"),
    ("The scholarship carries {} a semester.",
     ("How much does the scholarship carry a semester?", "What does the scholarship carry?"), "amount"),
    ("Your berth bears the pennant {} beside the jetty.",
     ("Which pennant does the berth bear?", "What pennant does the berth bear?"), "code"),
    ("The choir rehearses with {} while the conductor recovers.",
     ("With whom does the choir rehearse?", "Who rehearses with the choir?"), "person"),
    ("Gates unlock at {} and latecomers wait in the foyer.",
     ("At what time do the gates unlock?", "When do the gates unlock?"), "time"),
    ("The legacy comprises {} after probate.",
     ("How much does the legacy comprise?", "What does the legacy amount to?"), "amount"),
    ("The excavation resumes near {} once the thaw arrives.",
     ("Near which place does the excavation resume?", "Where does the excavation resume?"), "town"),
    ("Royalties accrue at {} of every matinee.",
     ("At which percentage do royalties accrue?", "What share of every matinee are the royalties?"), "percentage"),
    ("Should the kennel be shut, telephone {} instead.",
     ("Which number should be telephoned if the kennel is shut?", "Whom to telephone: which number?"), "phone"),
    ("The voyage embarks on {} from the leeward quay.",
     ("On which date does the voyage embark?", "When does the voyage embark?"), "date"),
)  # fmt: skip


@dataclass(frozen=True)
class Known:
    """A sentence with its value marked, ways to ask for the value, and the value."""

    sentence: str
    wordings: tuple[str, ...]
    value: str


def letter_facts(page: Page, words: Words, dice: Dice, count: int) -> list[Known]:
    """`count` different facts that a letter may state.

    >>> page = Page((256, 256), "train", Dice("a letter"))
    >>> facts = letter_facts(page, Words("train"), Dice("facts"), 5)
    >>> len({fact.sentence for fact in facts}), all(mark(fact.value) in fact.sentence for fact in facts)
    (5, True)
    """
    sign = currency(dice, page.can)
    makers: dict[str, Callable[[], str]] = {
        "date": lambda: words.date(dice),
        "amount": lambda: words.amount(dice, sign, 10),
        "code": lambda: words.code(dice),
        "person": lambda: words.person(dice),
        "town": lambda: words.town(dice),
        "phone": lambda: words.phone(dice),
        "time": lambda: words.time(dice),
        "quantity": lambda: words.quantity(dice),
        "percentage": lambda: words.percentage(dice),
        "email": lambda: words.email(dice),
    }
    found = []
    for sentence, wordings, kind in dice.sample(_HELD_OUT if words.held_out else _ORDINARY, count):
        value = makers[kind]()
        found.append(Known(sentence.format(mark(value)), wordings, value))
    return found
