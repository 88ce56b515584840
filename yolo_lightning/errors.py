"""The exception for mistakes of a user."""


class UserError(ValueError):
    """A value, a file or an option of the user cannot be used.

    The message contains the full key, the value, the accepted values and a remedy. The command line prints the message
    in one line, without a traceback. Every other exception is a mistake of this package or a failure of the machine,
    and keeps its traceback.
    """
