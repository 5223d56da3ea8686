"""Compare this app's methods with fluke's on the same split of images."""
