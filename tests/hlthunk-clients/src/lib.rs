//! C programs that make the library calls of perftest, UCX, libfabric and fabtests, each in its
//! order. They are compiled against the headers of `drivers/hlthunk/include`, and run on a mock.
