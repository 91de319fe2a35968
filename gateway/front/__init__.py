"""What is in front of the routes: clients' connections, and requests as the gateway sees them.

Nearly all requests are alike: a POST of JSON to a path of the table, with a length and nothing unusual in its head.
These, the plain ones, are parsed, served and answered here. Everything else is aiohttp's: other paths and methods,
uploads, chunked bodies, expectations, HTTP/1.0, and above all what is malformed or could be read in two ways. So the
parser of this package never has to guess: what it does not know by heart it does not touch.

    site          a listener
    connection    a connection: plain requests, and between them aiohttp's
    aiohttp_side  the latter: deadlines, limits, and what is said of malformed heads
    head          plain or not, and what of a head goes to pods, as pure functions
    request       a request and the way back to its client, whichever way it came
    plain         a plain one
    answer        the head of its answer
    unusual       one that came through aiohttp
"""
