"""The built template, deployed by AWS's own tool into an emulated AWS; `shims` has what is missing there."""
