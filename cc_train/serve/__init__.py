"""`cc-train serve`: a page in the browser that captions two images and collects own captions.

Plain HTML and JavaScript from this folder, served to this machine by uvicorn and Starlette (extra
`[serve]`), and no request to anybody else.
"""
