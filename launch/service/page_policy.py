"""What a browser may load and run on the page; without imports, as tests of the page have few."""

POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
