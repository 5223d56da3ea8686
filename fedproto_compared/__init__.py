"""Methods that the app's own methods are compared with (docs: compared.md).

They use `fedproto_app` as a user's package does, and the app runs without them. A method is a
module or a folder with a record ``METHOD``, which lets `fedproto_app.core.methods` list it.
"""
