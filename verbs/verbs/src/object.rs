//! [`Object`]: an object of a NIC, destroyed by a command.

use std::sync::Arc;

use gaudi_seam::{CloseError, Result};

use crate::context::Context;
use crate::handle::{AhHandle, CqHandle, MwHandle, PdHandle, QpHandle, SrqHandle};
use crate::holders::{Hold, Holders, take_last};

/// A handle, and the command that destroys its object.
pub(crate) trait Handle: Copy {
    const DESTROY: &'static str;
    fn destroy(self, context: &Context) -> Result<()>;
}

macro_rules! handles {
    ($($handle:ident $destroy:ident $operation:literal $($then:ident)?;)*) => {$(
        impl Handle for $handle {
            const DESTROY: &'static str = $operation;

            fn destroy(self, context: &Context) -> Result<()> {
                context.device($operation)?.$destroy(self)?;
                $(context.$then(self);)?
                Ok(())
            }
        }
    )*};
}

handles! {
    PdHandle dealloc_pd "ibv_dealloc_pd";
    CqHandle destroy_cq "ibv_destroy_cq";
    SrqHandle destroy_srq "ibv_destroy_srq";
    QpHandle destroy_qp "ibv_destroy_qp" forget_qp;
    MwHandle dealloc_mw "ibv_dealloc_mw";
    AhHandle destroy_ah "ibv_destroy_ah";
}

/// An object that others hold.
pub(crate) trait Parent {
    fn context(&self) -> &Context;
    fn hold(&self, name: String) -> Hold;
}

/// An object, its parent, and the parts `D` that live as long. Dropping it destroys it, and logs a
/// failure.
pub(crate) struct Object<H: Handle, P: Parent, D = ()> {
    pub(crate) handle: H,
    live: bool,
    pub(crate) parts: D,
    /// The objects that hold this one, and its entry among those of its parent. Boxed, so that an
    /// object stays small enough to return in an error.
    links: Box<(Arc<Holders>, Hold)>,
    pub(crate) parent: P,
}

impl<H: Handle, P: Parent, D> Object<H, P, D> {
    /// Takes a new object, which its parent lists by `name`.
    pub(crate) fn new(handle: H, parent: P, name: String, parts: D) -> Self {
        Self {
            handle,
            live: true,
            parts,
            links: Box::new((Arc::default(), parent.hold(name))),
            parent,
        }
    }

    pub(crate) fn hold(&self, name: String) -> Hold {
        self.links.0.hold(name)
    }

    /// Destroys the object. On an error it stays usable.
    pub(crate) fn destroy(&mut self) -> Result<()> {
        self.handle.destroy(self.parent.context())?;
        self.live = false;
        Ok(())
    }

    /// Destroys a shared object. Fails with its name and an advice if other objects or clones hold
    /// it.
    pub(crate) fn close(
        self: Arc<Self>,
        name: &'static str,
        help: &'static str,
    ) -> Result<(), CloseError<Arc<Self>>> {
        let mut object = take_last(self, |object| &object.links.0, [H::DESTROY, name, help])?;
        let destroyed = object.destroy();
        destroyed.map_err(|error| CloseError::new(Arc::new(object), error))
    }
}

impl<H: Handle, P: Parent, D> Drop for Object<H, P, D> {
    fn drop(&mut self) {
        if self.live {
            let destroyed = self.destroy();
            self.parent.context().report(destroyed);
        }
    }
}
