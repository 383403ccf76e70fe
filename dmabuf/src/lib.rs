//! DmaBuf and its life: export, windows, attach, passing to another process.
