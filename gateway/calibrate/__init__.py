"""`p2p-gateway calibrate`: what a pull costs against computing, between two pods and with nothing in between.

ladder   which lengths, and in which order: pure
result   measured times → costs, crossover, recommendation: pure
table    the result for a person: pure
measure  the pods are asked
plot     the result as a picture
command  options, files, exit codes
"""
