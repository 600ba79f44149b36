"""What a real run did.

trace           what it sends, waits for and computes
traced          that as data, and as tables
traced_script   of a whole script, for `gridwise run --trace`
perfetto        as a file for ui.perfetto.dev
comparison      beside the plan
"""
