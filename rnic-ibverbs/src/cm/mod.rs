//! rdma_cm: connections for programs that know addresses rather than devices.
