"""The semantic cache: answers a question that means the same, within a bound on wrong answers that it keeps."""
