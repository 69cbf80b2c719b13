from tests.mutations.table import BUGS, ROOT


def test_each_bug_can_be_planted() -> None:
    for bug in BUGS:
        planted = bug.plant((ROOT / bug.path).read_text())
        compile(planted, bug.name, "exec")
        files = [ROOT / name.partition("::")[0] for name in bug.tests]
        assert {True} == {each.is_file() for each in files}, bug.name
