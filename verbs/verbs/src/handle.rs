//! Handles: numbers by which a provider names the objects of one device.

macro_rules! handles {
    ($($name:ident $doc:literal,)*) => {$(
        #[doc = $doc]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);
    )*};
}

handles! {
    PdHandle "A protection domain.",
    CqHandle "A completion queue.",
    QpHandle "A queue pair; not its number on the wire.",
    SrqHandle "A shared receive queue.",
    MrHandle "A memory region.",
    MwHandle "A memory window.",
    AhHandle "An address handle.",
}
