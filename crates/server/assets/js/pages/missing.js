// Nothing to do: the page is a form, or a sentence.
