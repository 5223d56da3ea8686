"""A module for each format of files and each embedded data set, see `fedproto_app.data.format`."""
