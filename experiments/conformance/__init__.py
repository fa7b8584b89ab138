"""The conformance kit over jdp, over other libraries, and over faults made on purpose."""
