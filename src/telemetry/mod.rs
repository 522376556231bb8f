//! Counters, histograms and logging.
//!
//! Data threads write their own counters with plain relaxed stores; the control thread sums them when somebody asks.
//! Nothing here locks or allocates on a data thread.

mod counters;
pub mod log;
#[cfg(feature = "dataplane")]
pub mod metrics;
pub mod status;

pub use counters::{
    Counter, DropReason, MAX_RANKS, Registry, ServicePortCounters, ServicePortSnapshot, WorkerCounters,
};
