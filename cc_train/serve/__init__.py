"""`cc-train serve`: a page in the browser that captions two images and collects own captions.

Plain HTML and JavaScript from this folder, served by Python's own HTTP server to this machine: no
other package, and no request to anybody else.
"""
