//! C programs that call the drop-in libraries as perftest, UCX, libfabric and fabtests do, each in
//! its order. They are compiled against the headers of `drivers/hlthunk/include`, and run on a
//! mock.
