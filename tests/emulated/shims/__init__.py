"""What the emulator lacks. Each module bridges one thing; docs/operations.md says what stays unproven by it.

None of them changes the template or the built artifacts. Each checks at the start that the emulator still has
the names that it replaces, so that a newer emulator fails here and not later.
"""
