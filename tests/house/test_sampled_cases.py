"""What is left to the campaign: no value of any parameter is lost, few cases are all run, and others see the rest."""

from sampled_cases import FEW, SHARED, sampled

POSITIONS, NORMS = ("rope", "alibi", "none"), "abcd"
CASES = [f"{positions}-{norm}-{seed}" for positions in POSITIONS for norm in NORMS for seed in range(9)]


def test_a_tenth_is_run_and_any_value_in_one_of_them() -> None:
    for number in range(200):
        chosen = sampled(f"test_{number}", CASES)
        assert len(chosen) <= FEW + len(CASES) // 10 + 3 + 4 + 9
        assert {value for case in chosen for value in case.split("-")} == {
            value for case in CASES for value in case.split("-")
        }


def test_a_value_of_few_cases_is_run_too() -> None:
    rare = [f"rare-{number}-b" for number in range(SHARED)]
    for number in range(50):
        assert sampled(f"test_{number}", CASES + rare) & set(rare)


def test_few_are_all_run_and_the_same_each_time() -> None:
    assert sampled("test", CASES[:FEW]) == set(CASES[:FEW])
    assert sampled("test", CASES) == sampled("test", CASES[::-1])


def test_between_them_many_tests_see_every_case() -> None:
    assert set[str]().union(*(sampled(f"test_{number}", CASES) for number in range(40))) == set(CASES)
