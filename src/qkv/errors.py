"""The one exception that stands for a person's mistake."""


class UserError(Exception):
    """A mistake in what a person gave us: files, values, a recipe.

    The message is one sentence that names the file, line or value, the rule that it breaks and the
    way out. The command line prints it without a traceback and exits with code 2.
    """
