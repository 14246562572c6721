"""What tests use in place of a part of the product, with that part's interface."""
