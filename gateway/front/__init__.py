"""What is in front of the routes: requests as the gateway sees them, and the two ways in which they come.

Nearly all requests are alike: a POST of JSON to a path of the table, with a length and nothing unusual in its head.
These, the plain ones, are parsed, served and answered here. Everything else is aiohttp's: other paths and methods,
uploads, chunked bodies, expectations, HTTP/1.0, and above all what is malformed or could be read in two ways. So the
parser of this package never has to guess: what it does not know by heart it does not touch.

    head      plain or not, as a pure function
    request   a request and the way back to its client, whichever way it came; aiohttp's
    plain     the plain one, and the side of a connection that serves those
"""
