//! Requests and answers of seam 1 as the bytes of the driver's ioctls.
