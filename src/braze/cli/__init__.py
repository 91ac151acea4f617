"""The command line: ``braze bench``, ``braze explain``, ``braze cache``, ``braze env``."""
