"""The kernels: a whole step of a decoder in one call, with the same bits on every processor. See source/rules.h."""
