"""Forms of answers, compiled into what may come next after each token. The only package that knows llguidance."""
