//! Operations as `tracing` spans, for programs that embed the library. See
//! docs/src/how-to/spans.md.

use gaudi_seam::{KernelIo, Layer, Request, Result, SharedIo};
use tracing::Level;
use tracing::field::Empty;

use crate::Below;
use crate::trace::{kind_name, operation_name};

const TARGET: &str = "gaudi::span";

/// Gives each operation a span.
///
/// If no subscriber wants the spans, an operation goes straight to the node below, after one
/// relaxed load of `tracing`'s maximum level.
#[derive(Debug)]
struct SpanLayer {
    inner: Below,
    device: String,
}

/// Wraps `io` in a layer that gives each operation a span, if this process has a subscriber.
/// Otherwise returns `io`.
pub(crate) fn over(io: SharedIo) -> SharedIo {
    if !tracing::dispatcher::has_been_set() {
        return io;
    }
    let device = io.node().device.to_string();
    let inner = Below(io);
    std::sync::Arc::new(SpanLayer { inner, device })
}

impl Layer for SpanLayer {
    type Below = dyn KernelIo;

    fn below(&self) -> &dyn KernelIo {
        &*self.inner.0
    }

    fn is_idle(&self) -> bool {
        !tracing::enabled!(target: TARGET, Level::INFO)
    }

    fn around<R: Request>(
        &self,
        request: &mut R,
        mut next: impl FnMut(&mut R) -> Result<R::Answer>,
    ) -> Result<R::Answer> {
        let name = operation_name(request.view());
        let span = tracing::info_span!(
            target: TARGET,
            "gaudi.operation",
            otel.name = name,
            otel.kind = "client",
            otel.status_code = Empty,
            gaudi.call = %R::OPERATION,
            gaudi.device = self.device,
            gaudi.node = kind_name(self.node()),
            error.type = Empty,
            gaudi.errno = Empty,
        );
        let _entered = span.enter();
        let result = next(request);
        if let Err(error) = &result {
            let errno = error.errno().map(|errno| format!("{errno:?}"));
            span.record("otel.status_code", "ERROR");
            span.record("error.type", error.kind().name());
            span.record("gaudi.errno", errno.as_deref());
            tracing::event!(target: TARGET, Level::INFO, { error.message = %error }, "gaudi.failed");
        }
        result
    }
}
