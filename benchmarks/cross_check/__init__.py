"""This app's methods against those of another library, fluke, on the same split of images."""
