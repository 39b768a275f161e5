"""What the commands' parsers share: options, their types, and the options of runners."""
