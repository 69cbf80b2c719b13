"""What the emulator lacks. Each module bridges one thing; docs/operations/deploy.md says what stays unproven.

None of them changes the template or the built artifacts. Each checks at the start that the emulator still has
the names that it replaces, so that a newer emulator fails here and not later.
"""
