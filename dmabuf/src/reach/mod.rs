//! Peer-to-peer reachability: which PCI function may read and write which accelerator's memory, and
//! why not.
//!
//! An accelerator's dma-buf is mapped for a NIC only where `pci_p2pdma_distance` allows the pair; a
//! refusal reaches the program as a bare `EPERM` of a registration (habanalabs memory.c
//! `hl_dmabuf_attach`, `hl_map_dmabuf`), and the reason goes to the kernel's log. This module
//! computes the same answer beforehand, with the reason.
//!
//! - *Only files are read*: no node is opened, no driver is called. [`Folder`] reads a
//!   machine's tree or a copy of one, [`Manifest`] a text that holds one, [`Recorder`] makes that
//!   text. Links are followed inside the tree only.
//! - *The rule is the kernel's, step by step*: drivers/pci/p2pdma.c of Linux 7.3, in `rule.rs` with
//!   its table of host bridges. Other releases may differ in that table.
//! - *Unreadable data is reported*: ACS bits lie beyond the 64 bytes of configuration space
//!   that an ordinary user reads. Where they decide, the answer is [`Reach::Unknown`] and names the
//!   ports; it is never a guess.
//! - *A tree is not trusted*: loops, garbage, missing and huge files end in [`Topology::problems`],
//!   within fixed bounds.
//!
//! ```
//! use gaudi_dmabuf::reach::{Folder, Topology};
//!
//! let topology = Topology::read(&Folder::new("/"));
//! for card in topology.accelerators() {
//!     for choice in topology.ranking(card.address) {
//!         println!("{} from {}: {}", card.address, choice.importer.name(), choice.route);
//!     }
//! }
//! ```

mod attributes;
mod config;
mod kernel_option;
mod manifest;
mod rule;
mod topology;
mod tree;

pub use config::{Acs, Config, PortType};
pub use kernel_option::{KernelOption, kernel_option};
pub use manifest::{Manifest, ManifestError, Recorder};
pub use rule::{Choice, Reach, Refusal, RootDevice, Route, Via, Why};
pub use topology::{
    Bar, Function, HostBridge, Importer, IommuGroup, Kernel, Link, Parent, Processor, Speed, Topology,
};
pub use tree::{Folder, Node, Tree, resolve};
