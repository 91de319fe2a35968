"""The live page: what happens here now, shown in a browser (`/ui`).

`observer` is told of decisions and ends of requests, `live` makes a picture of them once a second for all who look,
`routes` is the HTTP, `static` what the browser gets. While nobody looks, nobody is told of anything.
"""
