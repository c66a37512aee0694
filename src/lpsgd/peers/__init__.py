"""The optimizers that LPSGD is compared with; ``registry`` describes all of them."""
