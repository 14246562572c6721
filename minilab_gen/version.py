"""The version of all three packages, where a program finds it without a look at what is installed."""

VERSION = "0.1.0"
