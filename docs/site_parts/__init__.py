"""What the site adds to Sphinx: pages of the repository's Markdown, the reference of the docstrings, llms.txt."""
