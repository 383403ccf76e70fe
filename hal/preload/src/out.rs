//! [`Out`]: a record's bytes as a sink of the encoder.

use gaudi_capture::raw;
use gaudi_ring::Reserved;

/// A record's bytes as a sink of the encoder.
pub(crate) struct Out<'a>(pub(crate) Reserved<'a>);

impl raw::Sink for Out<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.0.put(bytes);
    }
}
