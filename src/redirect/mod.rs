//! Redirection: the nft table and routing rules that bring VIP packets to our sockets, their installation, upkeep and
//! removal, and the verdict whether a node can carry them.
//!
//! This room never looks at a packet and never decides which Services are taken: it is told what the sets should hold
//! ([`Desired`]) and when the lease may be renewed. It never leaves anything behind that changes traffic: the table belongs
//! to a child ([`holder`]) that ends with us, and goes with it.
//!
//! How nft is spoken to. The table carries `flags owner`, so every change has to come through the one netlink socket that
//! made it. The choices were: our own nf_tables netlink encoder (no crate speaks it with an owner socket under a licence we
//! take; writing forty rules in kernel expressions by hand is a project of its own), the `nftables` crate (starts one nft
//! per transaction, so no socket stays to own the table), or one long-lived interactive nft fed with text. The last one
//! it is: rule text is what operators read and what was tested, and an update costs about a millisecond. Its weakness,
//! no acknowledgement, is met by asking after every transaction (see `nft.rs`). Text is generated from validated values
//! alone; nft, which would resolve host names, never sees anything else.
//!
//! ```text
//! agent ──(only write end, close-on-exec)──► holder ──► nft -j -i ──► owner socket ──► table
//!                                              └─ rtnetlink: rules and routes, put back when removed
//! ```

mod actor;
mod cleanup;
mod client;
mod config;
mod error;
pub mod holder;
mod nft;
mod plan;
mod protocol;
mod routing;
pub mod ruleset;
mod sets;
pub mod verdict;

pub use cleanup::{Cleaned, CleanupError, cleanup};
pub use client::{Redirect, RedirectCounters};
pub use config::{MAX_SET_ELEMENTS, Marks, RedirectConfig, RedirectConfigError};
pub use error::{RedirectError, RedirectEvent};
pub use sets::{Desired, Element, ElementError, check_vip};

use std::path::PathBuf;

/// The running program, even if its file was replaced meanwhile.
fn own_program() -> PathBuf {
    PathBuf::from("/proc/self/exe")
}
