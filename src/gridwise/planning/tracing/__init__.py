"""What a real run did.

trace           what it sends, waits for and computes
traced          the same as data, and as tables
traced_script   traces a whole script, for `gridwise run --trace`
perfetto        a trace as a file for ui.perfetto.dev
comparison      a trace next to the plan
"""
