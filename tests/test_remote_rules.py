"""The rules and the advice where some candidates are behind a server: they are judged, and in no set that decodes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from test_selection import limits, pools, statuses

from advisor.advice.recommendation import behind_server, undecodable
from advisor.advice.rules import ProfiledPool, select
from advisor.records import Answer, Limits, Profile, Selection, Standing


def pool(remote: str, **right: int) -> ProfiledPool:
    """Candidates that are right on so many of 100 questions; those in ``remote`` are behind a server."""

    def profiled(model: str, count: int) -> Profile:
        answers = (Answer(f"q{n}", "x", "x", float(n < count), "eos") for n in range(100))
        return Profile(model, tuple(answers))

    return ProfiledPool(
        {name: profiled(name, count) for name, count in right.items()}, {}, (), frozenset(remote.split())
    )


def reasons(selection: Selection) -> dict[str, str]:
    return {decision.model: decision.reason for decision in selection.decisions}


@given(pools, limits, st.data())
def test_the_set_is_what_the_rules_choose_among_the_others(
    standings: list[Standing], rules: Limits, data: st.DataObject
) -> None:
    apart = data.draw(st.sets(st.sampled_from([one.model for one in standings]), max_size=len(standings) - 1))
    others = [one for one in standings if one.model not in apart]
    found = select(standings, rules, (), apart)
    assert found.selected == select(others, rules).selected
    assert all(statuses(found)[name] == "rejected" for name in apart)
    accuracy = {one.model: round(one.accuracy, 9) for one in standings}
    ordered = [accuracy[decision.model] for decision in found.decisions]
    assert ordered == sorted(ordered, reverse=True)


def test_a_reason_says_what_the_rules_make_of_a_candidate_behind_a_server() -> None:
    standings = [Standing("far", 90, 20), Standing("a", 80, 20), Standing("b", 79, 20), Standing("low", 60, 50)]
    found = reasons(select([*standings, Standing("near", 75, 20)], Limits(), (), ("far", "low", "near")))
    server = "it is behind a server and cannot be decoded token by token with others"
    assert found["far"] == f"{server}; it is 10.00 points ahead of the primary"
    assert found["near"] == f"{server}; by the rules it would fit the primary"
    assert found["low"].startswith(
        f"{server}; and its gap to the primary is 20.00 points, over the limit of 10; and its "
    )
    assert found["a"].startswith("the most accurate of 2 candidates that can be decoded together (80.00 points")


def test_two_that_can_be_decoded_are_the_set_even_far_behind_one_that_cannot() -> None:
    found = pool("far", far=95, a=60, b=58)
    assert found.select(Limits()).selected == ("a", "b")
    assert found.best == "far"
    assert found.voters(Limits()) == ()  # by the rules nobody joins the best, so there is nobody to vote


def test_the_voters_are_whom_the_rules_would_choose_wherever_they_are() -> None:
    found = pool("far", far=70, a=72, b=68, c=66)
    assert found.select(Limits()).selected == ("a", "b", "c")
    assert found.voters(Limits()) == ("a", "far", "b")
    text = behind_server(found.select(Limits()), found.remote, found.voters(Limits()))
    assert text is not None
    assert text.startswith("As far is behind a server and cannot be decoded token by token, the set was chosen among")
    assert text.endswith("Votes and routers use a, far and b.")


def test_where_only_one_can_be_decoded_the_rules_choose_among_all_and_the_best_is_advised() -> None:
    found = pool("far there", far=70, a=68, there=66)
    selection = found.select(Limits())
    assert selection.selected == found.voters(Limits()) == ("far", "a", "there")
    advice = undecodable(selection, found.remote)
    assert advice.verdict == "worse"
    assert advice.text.startswith(
        "No set can decode together: by the rules far, a and there fit, but far and there are behind a server"
    )
    assert behind_server(selection, found.remote, selection.selected) is None


def test_one_behind_a_server_that_nobody_joins_is_advised_alone() -> None:
    found = pool("far", far=95, a=60)
    advice = undecodable(found.select(Limits()), found.remote)
    assert advice.text == "By the rules no set can decode together: no other candidate fits far."
    assert undecodable(pool("far", far=95).select(Limits()), found.remote).text == (
        "Use far alone: it is the only candidate that could be run."
    )


def test_without_a_server_nothing_is_other_than_before() -> None:
    found = pool("", a=70, b=68)
    selection = found.select(Limits())
    assert selection == select([Standing("a", 70, 1), Standing("b", 68, 1)], Limits())
    assert found.voters(Limits()) == ()
    assert behind_server(selection, found.remote, ()) is None
