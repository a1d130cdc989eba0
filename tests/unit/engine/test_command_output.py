"""Tables and texts that commands print."""

import pytest

from quadriga.engine.commands.output import print_table, print_text

LONG = "[red]camera[/red] " + 20 * "of the hall "


def test_a_row_stands_on_one_line_of_a_pipe(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(("id", "name", "n"), [("a", LONG, "7"), ("b", "", "12")], numbers=["n"])
    header, _, first, second = filter(str.strip, capsys.readouterr().out.splitlines())
    assert header.split() == ["id", "name", "n"]
    assert LONG.strip() in first
    assert [first.rstrip()[-2:], second.rstrip()[-2:]] == [" 7", "12"]


def test_a_narrow_terminal_breaks_no_id(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    print_table(("id", "name"), [("1795809696067523212-85cf", LONG)])
    printed = capsys.readouterr().out
    assert "1795809696067523212-85cf" in printed
    assert max(map(len, printed.splitlines())) <= 40


@pytest.mark.parametrize("text", ["[bold]x[/bold]", LONG, "a\nb", ""])
def test_texts_are_printed_as_they_are(capsys, monkeypatch, text):
    monkeypatch.setenv("COLUMNS", "40")
    print_text(text)
    assert capsys.readouterr().out == text + "\n"
