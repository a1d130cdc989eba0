"""Every inference kept and found again.

An inference goes from the `journal` by the writer (`writing`) into the `database`; `query` finds it, `browsing` shows it,
`changes` corrects it, `maintenance` removes it, `exchange` brings data in and out. `records` says what is stored.
"""
