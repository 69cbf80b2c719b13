"""The console and the page of the API: files of the package."""
