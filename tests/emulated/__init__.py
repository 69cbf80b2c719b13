"""The built template in an emulator: AWS's own deployment tool, an emulated AWS, and what is missing there."""
