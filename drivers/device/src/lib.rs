//! Device, Buffer, HostMapping, Queue, Completion and copy: what most embedders call.
