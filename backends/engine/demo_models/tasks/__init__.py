"""The kinds of questions that the demo models are taught, each drawn with its only right answer."""
